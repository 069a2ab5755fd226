"""A run that takes the networks of another one ends as if it had trained them."""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from gatf.bench.plan import Plan, PlannedRun
from gatf.bench.suite import run_plan
from gatf.config import RunConfig
from gatf.errors import UserError
from gatf.experiment import resume, start
from gatf.io.events import Epoch, Task, WarningEvent
from gatf.io.run_folder import RunFolder
from gatf.network_reuse import NetworkSource, network_source_beside
from gatf.training import checkpoint

pytestmark = pytest.mark.slow

Tiny = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def network_source(tmp_path_factory: pytest.TempPathFactory, tiny_config: Tiny) -> Path:
    folder = tmp_path_factory.mktemp("lender") / "sdc-seed0"
    start(tiny_config("sdc", keep_networks=True), folder)
    return folder


@pytest.fixture(scope="module")
def lends_first(tmp_path_factory: pytest.TempPathFactory, tiny_config: Tiny) -> Path:
    folder = tmp_path_factory.mktemp("first") / "gatf-seed0"
    start(tiny_config("gatf", keep_networks=True), folder)
    return folder


def same_model(one: Path, other: Path) -> bool:
    ours, theirs = (load_file(RunFolder(folder).model) for folder in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("method", ["adc", "ldc", "dpcr"])
def test_the_same_bits_without_training(network_source: Path, method: str, tiny_config: Tiny, tmp_path: Path) -> None:
    trained = start(tiny_config(method), tmp_path / "trained")
    taken = start(tiny_config(method), tmp_path / "taken", networks_from=network_source)
    assert taken.accuracy_matrix == trained.accuracy_matrix
    assert same_model(tmp_path / "trained", tmp_path / "taken")
    assert (trained.networks_from, taken.networks_from) == (None, "sdc-seed0")
    phases = {event.phase for event in RunFolder(tmp_path / "taken").read_events() if isinstance(event, Epoch)}
    assert phases == ({"projector"} if method == "ldc" else set())  # which is trained on the two networks


@pytest.mark.parametrize("method", ["slda", "ranpac", "klda", "acil", "ds-al"])
def test_closed_form_methods_share_the_network_of_the_first_task(
    method: str, tiny_config: Tiny, tmp_path: Path
) -> None:
    start(tiny_config("ncm", keep_networks=True), tmp_path / "lender")
    trained = start(tiny_config(method), tmp_path / "trained")
    taken = start(tiny_config(method), tmp_path / "taken", networks_from=tmp_path / "lender")
    assert taken.accuracy_matrix == trained.accuracy_matrix
    assert same_model(tmp_path / "trained", tmp_path / "taken")
    assert not any(isinstance(event, Epoch) for event in RunFolder(tmp_path / "taken").read_events())
    with pytest.raises(UserError, match="trained other networks"):  # which trains in every task
        NetworkSource(tmp_path / "lender", tiny_config("gatf-lda"))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("adagauss", {"method.readout": "rda", "method.adapter_lr": 0.02}),
        ("gatf", {"method.readout": "rda", "method.anchor.final_refresh": True}),
        ("gatf", {"method.refine": True}),
        ("sdc", {"method.sigma": 0.1}),
    ],
)
def test_what_follows_training_on_the_same_networks(
    method: str, settings: dict[str, Any], tiny_config: Tiny, tmp_path: Path
) -> None:
    start(tiny_config(method, keep_networks=True), tmp_path / "lender")
    trained = start(tiny_config(method, **settings), tmp_path / "trained")
    taken = start(tiny_config(method, **settings), tmp_path / "taken", networks_from=tmp_path / "lender")
    assert taken.accuracy_matrix == trained.accuracy_matrix
    assert same_model(tmp_path / "trained", tmp_path / "taken")


@pytest.mark.parametrize("killed", [False, True])
def test_a_refined_run_lends_its_map_as_it_was_before(killed: bool, tiny_config: Tiny, tmp_path: Path) -> None:
    """Also where it was killed while the map was refined."""

    class Stop(Exception):
        pass

    def while_refining(event: Any) -> None:
        if killed and isinstance(event, Epoch) and event.phase == "adapter" and event.epoch == 1:
            raise Stop

    four = {"optimisation.next.epochs": 4}  # as many as it takes to refine for two
    with pytest.raises(Stop) if killed else nullcontext():
        refined = tiny_config("gatf", **four, **{"method.refine": True}, keep_networks=True)
        start(refined, tmp_path / "lender", (while_refining,))
    if killed:
        resume(tmp_path / "lender")
    trained = start(tiny_config("gatf", **four), tmp_path / "trained")
    taken = start(tiny_config("gatf", **four), tmp_path / "taken", networks_from=tmp_path / "lender")
    assert taken.accuracy_matrix == trained.accuracy_matrix
    assert same_model(tmp_path / "trained", tmp_path / "taken")


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        (
            "gatf",
            {"method.anchor.kind": "none", "method.refine": True},
            "method.anchor.kind is sylvester there and none here",
        ),
        ("gatf", {"optimisation.next.lr": 0.002}, "optimisation.next.lr is"),
        ("adagauss", {"method.distill": 0.4}, "method.name is gatf there and adagauss here"),
    ],
)
def test_what_differs_later_has_the_first_task_in_common(
    lends_first: Path, method: str, settings: dict[str, Any], words: str, tiny_config: Tiny, tmp_path: Path
) -> None:
    trained = start(tiny_config(method, **settings), tmp_path / "trained")
    reported: list[Any] = []
    taken = start(tiny_config(method, **settings), tmp_path / "taken", (reported.append,), networks_from=lends_first)
    assert taken.accuracy_matrix == trained.accuracy_matrix
    assert same_model(tmp_path / "trained", tmp_path / "taken")
    assert (taken.networks_from, taken.networks_of) == ("gatf-seed0", [0])
    assert {event.task for event in reported if isinstance(event, Epoch)} == {1, 2}
    [warning] = [event.text for event in reported if isinstance(event, WarningEvent)]
    assert "only the first task's network of gatf-seed0 is reused; later ones would differ (" in warning
    assert words in warning


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method.rotation": False}, "method.rotation is True there and False here"),
        ({"optimisation.first.lr": 0.02}, "optimisation.first.lr is"),
        ({"scenario.tasks": 10}, "scenario.tasks is 5 there and 10 here"),
    ],
)
def test_another_first_task_is_refused(
    settings: dict[str, Any], words: str, lends_first: Path, tiny_config: Tiny, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="trained other networks than this run would: ") as reported:
        NetworkSource(lends_first, tiny_config("gatf", **{"method.topology": 1.0} | settings))
    assert words in str(reported.value)


def test_of_those_beside_the_one_that_has_most_lends(lends_first: Path, tiny_config: Tiny) -> None:
    folder = lends_first.parent
    RunFolder(folder / "rda").create(tiny_config("gatf", **{"method.topology": 1.0, "method.readout": "rda"}).to_yaml())
    assert network_source_beside(folder / "rda") == lends_first
    start(tiny_config("gatf", **{"method.topology": 1.0}, keep_networks=True), folder / "topology")
    assert network_source_beside(folder / "rda") == folder / "topology"


def test_a_first_task_begun_alone_takes_nothing(lends_first: Path, tiny_config: Tiny, tmp_path: Path) -> None:
    """Where the run was killed within its first task, it goes on with its own, and says so."""

    class Stop(Exception):
        pass

    def after_an_epoch(event: Any) -> None:
        if isinstance(event, Epoch) and event.epoch == 1:
            raise Stop

    config = tiny_config("gatf", **{"method.topology": 1.0}, checkpoint_every=1)
    with pytest.raises(Stop):
        start(config, tmp_path / "run", (after_an_epoch,))
    summary = resume(tmp_path / "run", networks_from=lends_first)
    assert (summary.networks_from, summary.networks_of) == (None, [])


def test_a_resumed_run_may_train_the_remaining_tasks(network_source: Path, tiny_config: Tiny, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def after_the_first_task(event: Any) -> None:
        if isinstance(event, Task):
            raise Stop

    start(tiny_config("adc"), tmp_path / "whole", networks_from=network_source)
    for name, networks in (("taken", network_source), ("trained", None)):
        with pytest.raises(Stop):
            start(tiny_config("adc"), tmp_path / name, (after_the_first_task,), networks_from=network_source)
        resume(tmp_path / name, networks_from=networks)
        assert same_model(tmp_path / "whole", tmp_path / name)


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("adc", {"seed": 1}, "seed is 0 there and 1 here"),
        ("adc", {"method.base.temperature": 1.0}, "method.base.temperature is 2.0 there and 1.0 here"),
        ("adc", {"optimisation.next.batch_size": 16}, "optimisation.next.batch_size is"),
        ("dpcr", {"method.distill": 1.0}, "method.base.distill is 10.0 there and 1.0 here"),
        ("gatf", {}, "method.name is None there and gatf here"),
        ("lwf", {}, "method.name is None there and lwf here"),
    ],
)
def test_what_would_train_another_network_is_refused(
    network_source: Path, method: str, settings: dict[str, Any], words: str, tiny_config: Tiny, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="trained other networks than this run would: ") as reported:
        start(tiny_config(method, **settings), tmp_path / "run", networks_from=network_source)
    assert words in str(reported.value)
    assert not (tmp_path / "run").exists()


def test_what_cannot_lend_is_refused(network_source: Path, tiny_config: Tiny, tmp_path: Path) -> None:
    start(tiny_config("sdc"), tmp_path / "forgetful")
    with pytest.raises(UserError, match="did not keep the networks of tasks 1, 2: run it again with --set keep_net"):
        start(tiny_config("adc"), tmp_path / "run", networks_from=tmp_path / "forgetful")
    with pytest.raises(UserError, match="contains no finished run"):
        start(tiny_config("adc"), tmp_path / "run", networks_from=tmp_path / "nowhere")


def test_a_reused_run_must_have_trained_all_tasks_alike(
    network_source: Path, tiny_config: Tiny, tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(network_source, changed)
    summary = json.loads((changed / "summary.json").read_text())
    (changed / "summary.json").write_text(json.dumps(summary | {"config_changes": ["seed was 0, is 1"]}))
    with pytest.raises(UserError, match="other networks than this run would: seed was 0, is 1"):
        NetworkSource(changed, tiny_config("adc"))


def test_networks_of_an_earlier_version_are_refused_and_a_bench_trains_its_own(
    network_source: Path, tiny_config: Tiny, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    shutil.copytree(network_source, old)
    path = RunFolder(old).after_task(0)
    tensors, meta = checkpoint.load(path)
    checkpoint.save(path, {name: value for name, value in tensors.items() if not name.startswith("trained.")}, meta)
    with pytest.raises(UserError, match="nothing that could be reused, or its version of gatf did not keep it"):
        NetworkSource(old, tiny_config("adc"))
    RunFolder(tmp_path / "adc").create(tiny_config("adc").to_yaml())
    assert network_source_beside(tmp_path / "adc") is None


def test_tasks_that_train_nothing_take_nothing(tiny_config: Tiny, tmp_path: Path) -> None:
    trained = start(tiny_config("fetril", keep_networks=True), tmp_path / "lender")
    taken = start(tiny_config("fetril"), tmp_path / "taken", networks_from=tmp_path / "lender")
    assert taken.accuracy_matrix == trained.accuracy_matrix
    assert (taken.networks_from, taken.networks_of) == ("lender", [0])


def test_on_the_command_line(network_source: Path, call: Any, tiny_config: Tiny, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(tiny_config("adc").to_yaml())
    code, _, reported = call("run", "--recipe", recipe, "--networks-from", network_source, "--out", tmp_path / "run")
    assert code == 0, reported
    assert RunFolder(tmp_path / "run").read_summary().networks_from == "sdc-seed0"
    code, _, reported = call(
        "run", "--recipe", recipe, "--seed", 3, "--networks-from", network_source, "--out", tmp_path / "other"
    )
    assert code == 2
    assert "seed is 0 there and 3 here" in reported
    assert len(reported.splitlines()) == 1


def test_runs_of_a_bench_take_what_another_row_has_trained(tiny_config: Tiny, tmp_path: Path) -> None:
    runs = [
        PlannedRun(f"{row}-seed{seed}", "tiny", row, tiny_config(row, seed=seed, keep_networks=True))
        for row in ("sdc", "adc", "finetune")
        for seed in (0, 1)
    ]
    assert run_plan(Plan("tiny", "tiny", tuple(runs)), tmp_path, Console(quiet=True)) == {}
    taken = {run.name: RunFolder(tmp_path / run.name).read_summary().networks_from for run in runs}
    assert taken == {run.name: run.name.replace("adc", "sdc") if run.row == "adc" else None for run in runs}
    reported = (tmp_path / "results.md").read_text()
    assert "- adc, seed 1: reused the networks of sdc-seed1; its seconds exclude that training\n" in reported
    assert reported.count("reused the networks of") == 2
