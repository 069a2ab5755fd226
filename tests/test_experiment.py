"""Runs repeat, stop, resume and tell what they did."""

import csv
import json
import multiprocessing
import random
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gatf import session
from gatf.config import RunConfig, load_config, nest
from gatf.errors import Diverged, UserError
from gatf.experiment import Experiment, resume, start
from gatf.io import container
from gatf.io.events import Event, Step, Task
from gatf.io.provenance import commit
from gatf.io.run_folder import RunFolder
from gatf.settings import deep_merge
from gatf.training.loop import Interrupted

from .faults import wait_for_task

Tiny = Callable[..., RunConfig]
LONGER = {"optimisation.next.epochs": 12}
RESULTS = ("a_last", "a_inc", "forgetting", "accuracy_matrix", "accuracy_seen", "accuracy_by_class", "task_aware")


def outcome(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[Any]]:
    """Everything of a finished run that must not depend on how it was run: tensors, metrics, logged losses."""
    tensors, _ = container.read(folder / "model.safetensors")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [(e["task"], e["phase"], e["epoch"], e["losses"]) for e in events if e["event"] == "epoch"]
    return tensors, {name: summary[name] for name in RESULTS}, losses


def assert_same(first: Path, second: Path) -> None:
    tensors, metrics, losses = outcome(first)
    other_tensors, other_metrics, other_losses = outcome(second)
    assert tensors.keys() == other_tensors.keys()
    for name in tensors:
        assert torch.equal(tensors[name], other_tensors[name]), name
    assert metrics == other_metrics
    assert losses == other_losses


@pytest.fixture(scope="module", params=["gatf", "adagauss"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_config: Tiny) -> Path:
    """A run that nothing disturbed, long enough for another process to be killed in the middle of it."""
    folder = tmp_path_factory.mktemp("whole") / request.param
    start(tiny_config(request.param, **LONGER), folder)
    return folder


def test_the_saved_config_repeats_the_run(whole: Path, tmp_path: Path) -> None:
    start(load_config(str(whole / "config.yaml")), tmp_path / "again")
    assert_same(whole, tmp_path / "again")


@pytest.mark.slow
def test_a_run_killed_at_a_random_moment_resumes_to_the_same_bits(whole: Path, tmp_path: Path) -> None:
    """A real process, a real SIGKILL at a random delay: early (in the first task) or late (in a later one)."""
    folder, task = tmp_path / "killed", {"adagauss": 0, "gatf": 1}[whole.name]
    config = load_config(str(whole / "config.yaml"))
    process = multiprocessing.get_context("fork").Process(target=start, args=(config, folder))
    process.start()
    wait_for_task(task, process, folder)
    time.sleep(random.Random(whole.name).uniform(0, 0.03))
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (folder / "summary.json").exists()
    resume(folder)
    assert_same(whole, folder)


@pytest.mark.parametrize(("method", "steps"), [("gatf", 1), ("gatf", 14), ("gatf", 20), ("finetune", 5)])
def test_a_stop_within_an_epoch_resumes_to_the_same_bits(
    tmp_path: Path, tiny_config: Tiny, method: str, steps: int
) -> None:
    config = tiny_config(method, checkpoint_every=None)
    start(config, tmp_path / "whole")
    taken = 0

    def stop_later(event: Event) -> None:
        nonlocal taken
        taken += isinstance(event, Step)
        if isinstance(event, Step) and taken == steps:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        start(config, tmp_path / "stopped", (stop_later,))
    assert taken == steps  # the step in hand was finished, and no other begun
    resume(tmp_path / "stopped")
    assert_same(tmp_path / "whole", tmp_path / "stopped")


def test_a_config_without_its_folder_of_checkpoints_is_run(tiny_config: Tiny, tmp_path: Path) -> None:
    """As a folder is handed on when only the config is copied."""
    (tmp_path / "config.yaml").write_text(tiny_config("finetune").to_yaml(), encoding="utf-8")
    summary = resume(tmp_path)
    assert RunFolder(tmp_path).after_task(summary.tasks - 1).is_file()


def test_resuming_a_finished_run_returns_its_summary(whole: Path) -> None:
    before = (whole / "summary.json").stat().st_mtime_ns
    assert resume(whole).a_last == outcome(whole)[1]["a_last"]
    assert (whole / "summary.json").stat().st_mtime_ns == before


def test_the_class_order_has_a_seed_of_its_own_or_the_runs(tiny_config: Tiny) -> None:
    def order(seed: int, **more: Any) -> tuple[int, ...]:
        return Experiment(tiny_config("gatf", **{"seed": seed, "scenario.order": "seed"} | more)).scenario.order

    assert order(0) == order(1)
    own = {"class_order_seed": None}
    assert order(0, **own) == order(5, class_order_seed=0)
    assert order(1, **own) == order(5, class_order_seed=1)
    assert order(0, **own) != order(1, **own)
    assert order(0, **own, **{"scenario.order": "natural"}) == tuple(range(6))


def test_what_a_run_folder_holds(whole: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text(encoding="utf-8"))
    assert summary["method"] == whole.name
    assert (summary["dataset"], summary["tasks"], summary["seed"]) == ("digits", 3, 0)
    assert [len(row) for row in summary["accuracy_matrix"]] == [1, 2, 3]
    assert len(summary["class_order"]) == 6
    rows = [sum(row) / len(row) for row in summary["accuracy_matrix"]]
    assert summary["a_last_task_weighted"] == pytest.approx(rows[-1])
    assert summary["a_inc_task_weighted"] == pytest.approx(sum(rows) / 3)
    assert summary["a_last"] == summary["accuracy_seen"][-1]  # by images: digits' test classes differ in size
    assert len(summary["seconds"]) == len(summary["peak_memory_mb"]) == 3
    assert len(summary["processor_seconds"]) == 3
    assert min(summary["processor_seconds"]) > 0
    assert min(summary["peak_memory_mb"]) > 0
    assert summary["bytes_per_class"] == 4 * (8 + 36)
    assert set(summary["versions"]) >= {"gatf", "torch", "python"}
    confused = list(csv.DictReader((whole / "confusion.csv").read_text(encoding="utf-8").splitlines()))
    assert list(confused[0]) == ["class", "predicted", "images"]
    right = sum(int(row["images"]) for row in confused if row["class"] == row["predicted"])
    assert 100 * right / sum(int(row["images"]) for row in confused) == pytest.approx(summary["a_last"])
    assert yaml.safe_load((whole / "config.yaml").read_text(encoding="utf-8"))["data"]["name"] == "digits"
    assert not list(whole.rglob("*.partial"))
    assert len(list((whole / "checkpoints").iterdir())) == 2
    kinds = [json.loads(line)["event"] for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert kinds[0] == "run_start"
    assert kinds[-1] == "run"
    assert kinds.count("task") == 3


def test_a_damaged_checkpoint_is_named(whole: Path, tmp_path: Path, tiny_config: Tiny) -> None:
    folder = tmp_path / "damaged"

    def stop(event: Event) -> None:
        if isinstance(event, Task):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        start(tiny_config(whole.name, **LONGER), folder, (stop,))
    newest = max((folder / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.raises(UserError, match=f"{newest.name}.*damaged"):
        resume(folder)
    newest.unlink()
    resume(folder)
    assert_same(whole, folder)


def test_nothing_is_written_when_the_config_cannot_run(tmp_path: Path, tiny_config: Tiny) -> None:
    for overrides, words in (
        ({"scenario.tasks": 11, "scenario.stop_after": None}, "cannot be split"),
        ({"optimisation.next.batch_size": 8}, "batch_size"),
        ({"data.name": "nope"}, "no data source"),
        ({"backbone.name": "nope"}, "no backbone"),
        ({"data.augment": ["nope"]}, "nope"),
    ):
        with pytest.raises(UserError, match=words):
            start(tiny_config("gatf", **overrides), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_folder_in_use_or_not_writable_is_refused(whole: Path, tmp_path: Path, tiny_config: Tiny) -> None:
    with pytest.raises(UserError, match="already contains a run"):
        start(tiny_config("gatf"), whole)
    blocked = tmp_path / "file"
    blocked.write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="cannot write"):
        start(tiny_config("gatf"), blocked / "run")
    with pytest.raises(UserError, match="holds no run"):
        resume(tmp_path)


def test_a_second_run_in_the_folder_is_refused(tmp_path: Path, tiny_config: Tiny) -> None:
    folder, refused = tmp_path / "run", []

    def again(event: Event) -> None:
        if isinstance(event, Task):
            for act in (partial(resume, folder), partial(start, tiny_config("joint"), folder)):
                with pytest.raises(UserError, match="is in use by another process") as caught:
                    act()
                refused.append(caught)

    start(tiny_config("finetune", **{"scenario.stop_after": 1}), folder, (again,))
    assert len(refused) == 2
    assert "finetune" in (folder / "config.yaml").read_text(encoding="utf-8")
    assert not (folder / ".lock").exists()


def stop_after_task(event: Event) -> None:
    if isinstance(event, Task):
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def stopped(tmp_path: Path, tiny_config: Tiny) -> Path:
    """A run of three tasks that was stopped after the first."""
    with pytest.raises(Interrupted):
        start(tiny_config("finetune", checkpoint_every=None), tmp_path / "stopped", (stop_after_task,))
    return tmp_path / "stopped"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("seed", 1, r"seed was 0, is 1\."),
        ("optimisation.next.lr", 0.5, r"optimisation\.next\.lr was 0\.01, is 0\.5\."),
        ("scenario.tasks", 2, r"scenario\.tasks was 5, is 2\."),
        ("data.augment", ["flip"], r"data\.augment was \['crop:1'\], is \['flip'\]\."),
    ],
)
def test_a_checkpoint_of_another_config_is_refused(stopped: Path, path: str, value: Any, said: str) -> None:
    config = yaml.safe_load((stopped / "config.yaml").read_text(encoding="utf-8"))
    edited = deep_merge(config, nest(path, value))
    (stopped / "config.yaml").write_text(yaml.safe_dump(edited), encoding="utf-8")
    before = (stopped / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match=rf"task001.*written with another config.*: {said}.*--force-config"):
        resume(stopped)
    assert (stopped / "metrics.jsonl").read_bytes() == before


def test_a_checkpoint_of_another_method_is_refused_even_when_forced(stopped: Path, tiny_config: Tiny) -> None:
    (stopped / "config.yaml").write_text(tiny_config("gatf").to_yaml(), encoding="utf-8")
    with pytest.raises(UserError, match=r"method\.name was finetune, is gatf"):
        resume(stopped)
    with pytest.raises(UserError, match="not one of this method"):
        resume(stopped, force_config=True)


def test_where_a_run_is_computed_may_change(stopped: Path, tmp_path: Path, tiny_config: Tiny) -> None:
    config = (stopped / "config.yaml").read_text(encoding="utf-8").replace("device: auto", "device: cpu")
    (stopped / "config.yaml").write_text(config, encoding="utf-8")
    assert resume(stopped).config_changes == []


def test_a_forced_config_continues_and_is_recorded(stopped: Path) -> None:
    """Also when the run is stopped again, and goes on without being forced: the new config is the run's own then."""
    with pytest.raises(Interrupted):
        resume(stopped, (stop_after_task,), force_config=True, overrides={"optimisation.next.lr": 0.02})
    change = ["optimisation.next.lr was 0.01, is 0.02"]
    summary = resume(stopped)
    assert summary.config_changes == change
    kept = [json.loads(line) for line in (stopped / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [e["text"] for e in kept if e["event"] == "warning"] == [
        f"the run continues with another config: {change[0]}"
    ]
    assert [e["lr"] for e in kept if e["event"] == "epoch"][3] == 0.02


def test_a_diverged_run_continues_at_a_lower_rate(tmp_path: Path, tiny_config: Tiny) -> None:
    """To the bits of a run that had that rate from the start."""
    calm = tiny_config("lwf", **{"optimisation.next.warmup": 0.0})
    start(calm, tmp_path / "whole")
    wild = {"optimisation.next.lr": 1e12, "optimisation.next.warmup": 0.0}
    with pytest.raises(Diverged):
        start(tiny_config("lwf", checkpoint_every=None, **wild), tmp_path / "run")
    lower = {"optimisation.next.lr": calm.optimisation.next.lr}
    summary = resume(tmp_path / "run", force_config=True, overrides=lower)
    assert len(summary.config_changes) == 1
    assert_same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\xff\xfe", "cannot be read"), (b"a: 2001-99-99", "not valid YAML"), (b"seed: x", "seed"), (b"- 1", "mapping")],
)
def test_a_config_that_was_edited_badly_is_one_sentence(stopped: Path, content: bytes, said: str) -> None:
    (stopped / "config.yaml").write_bytes(content)
    with pytest.raises(UserError, match=said):
        resume(stopped)


def test_a_half_written_summary_is_one_sentence(stopped: Path) -> None:
    summary = resume(stopped)
    whole = (stopped / "summary.json").read_text(encoding="utf-8")
    (stopped / "summary.json").write_text(whole[: len(whole) // 2], encoding="utf-8")
    with pytest.raises(UserError, match=r"summary\.json cannot be read.*delete it to continue"):
        resume(stopped)
    (stopped / "summary.json").unlink()
    assert resume(stopped).accuracy_matrix == summary.accuracy_matrix


def test_a_method_that_keeps_images_shows_their_size(tiny_config: Tiny) -> None:
    """40 images of 8×8 bytes of each class, beside what the head takes."""
    joint, finetune = (Experiment(tiny_config(name)) for name in ("joint", "finetune"))
    assert joint.bytes_per_class() == 40 * 64 + joint.method.bytes_per_class()
    assert finetune.bytes_per_class() == finetune.method.bytes_per_class()


def test_the_commit_of_the_code(tmp_path: Path) -> None:
    code = tmp_path / "src" / "gatf"
    code.mkdir(parents=True)
    assert commit(code) is None  # installed from elsewhere
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (code / "a.py").write_text("a = 1\n", encoding="utf-8")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert commit(code) == head[:12]
    (code / "a.py").write_text("a = 2\n", encoding="utf-8")
    assert commit(code) == f"{head[:12]}-dirty"


def test_closed_data_cannot_be_touched(tiny_config: Tiny) -> None:
    data = Experiment(tiny_config("gatf")).task_data(0)
    next(iter(data.batches("train")))
    data.close()
    with pytest.raises(RuntimeError, match="images of task 0 are deleted"):
        next(iter(data.batches("train")))


def test_a_method_that_looks_back_is_caught(tiny_config: Tiny, tmp_path: Path) -> None:
    experiment = Experiment(tiny_config("finetune"))
    kept = []
    experiment.method.end_task = kept.append  # type: ignore[method-assign,assignment]
    (tmp_path / "checkpoints").mkdir()
    experiment.run(tmp_path, ())
    assert len(kept) == 3
    for data in kept:
        with pytest.raises(RuntimeError, match="are deleted"):
            next(iter(data.batches("test")))


@pytest.mark.parametrize("method", ["gatf", "lwf", "ldc"])
def test_compiled_networks_learn_what_plain_ones_learn(
    method: str, tmp_path: Path, tiny_config: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured as graphs but run as they are: generating code for them would take half a minute.

    The teacher is captured once, although every task makes a new one, and each step after task 0 calls it compiled.
    """
    torch._dynamo.reset()
    captured: list[int] = []
    calls: list[int] = []
    original = torch.compile

    def watched(function: Callable[..., Any], mode: None) -> Callable[..., Any]:
        number = len(captured)
        captured.append(0)
        calls.append(0)

        def capture(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            captured[number] += 1
            return graph.forward

        through_dynamo = original(function, backend=capture)

        def call(*arguments: Any) -> Any:
            calls[number] += 1
            return through_dynamo(*arguments)

        return call

    stages = {"epochs": 2, "batch_size": 40}
    settings: dict[str, Any] = {f"optimisation.{n}.{key}": stages[key] for n in ("first", "next") for key in stages}
    if method == "gatf":
        settings["method.refine"] = True  # the frozen student is another copy of the same layers
    plain = start(tiny_config(method, **settings), tmp_path / "plain")
    steps: list[Step] = []
    monkeypatch.setattr(torch, "compile", watched)
    heard = (lambda event: steps.append(event) if isinstance(event, Step) and event.task > 0 else None,)
    fast = start(tiny_config(method, compile=True, **settings), tmp_path / "compiled", heard)
    assert fast.accuracy_matrix == plain.accuracy_matrix
    expected, found = (outcome(tmp_path / name)[0] for name in ("plain", "compiled"))
    assert expected.keys() == found.keys()
    assert all(torch.allclose(expected[name], found[name], atol=1e-4) for name in expected)
    assert plain.tasks > 2
    assert captured[1] == (2 if method == "ldc" else 1)  # once per size of batches; the projector has larger ones
    frozen = [event for event in steps if event.phase in ("adapter", "projector")]  # they call two frozen networks
    assert calls[1] == len(steps) + len(frozen)


def test_recorded_graphs_reuse_their_memory_from_step_to_step(
    tmp_path: Path, tiny_config: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step begins with the mark that torch's CUDA graphs need; `compile=true` has none."""
    marks: list[None] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(None))
    monkeypatch.setattr(torch, "compile", lambda function, mode: function)
    experiment = Experiment(tiny_config("gatf", compile=True))
    phases = session._Compiled(experiment.method, torch.device("cuda"), graphs=True).within_steps
    batch = next(iter(experiment.task_data(0).batches("train")))
    experiment.method.begin_task(experiment.task_info(0))
    (phase,) = phases(experiment.method.phases(experiment.task_info(0)))
    phase.loss(batch)
    assert len(marks) == 1


def test_compiling_needs_a_compiler(tmp_path: Path, tiny_config: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs a C\\+\\+ compiler"):
        start(tiny_config("gatf", compile=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("scenario", "tasks"),
    [({"scenario.returning": 0.5}, None), ({"scenario.domains": ["original", "night", "invert"]}, 3)],
)
def test_classes_may_come_again(tmp_path: Path, tiny_config: Tiny, scenario: dict[str, Any], tasks: int | None) -> None:
    """Returning classes and domains: a closed-form method learns them, and the summary says what came again."""
    summary = start(tiny_config("ncm", **scenario), tmp_path / "run")
    assert len(summary.domains) == (tasks or 0)
    assert bool(summary.returning) == (tasks is None)
    assert [len(row) for row in summary.accuracy_matrix] == list(range(1, summary.tasks + 1))
    if tasks:
        assert [len(row) for row in summary.accuracy_by_class] == [len(summary.class_order)] * tasks
    with pytest.raises(UserError, match=r"'gatf' cannot learn new images of known classes.* use joint, ncm"):
        start(tiny_config("gatf", **scenario), tmp_path / "other")
