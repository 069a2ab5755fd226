"""Several processes, one model: the same result as one process with the same batches, and a clean end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gatf.config import RunConfig
from gatf.experiment import resume, start
from gatf.launch import launch
from gatf.methods import METHODS

Tiny = Callable[..., RunConfig]
HERE = Path(__file__).resolve().parent
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
COMPARED = ("gatf", "adagauss", "lwf")
AUGMENTED = {"data.augment": ["crop:1", "trivial"], "optimisation.next.drop_last": False}


def together(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ALONE, capture_output=True, text=True, timeout=300, check=False, **options)


def wanted(folder: Path, config: RunConfig) -> None:
    folder.mkdir(parents=True)
    (folder / "wanted.json").write_text(json.dumps(config.model_dump(mode="json")))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_config: Tiny) -> Path:
    """Folders `one` and `two`: runs of one process and of two, with the same batches."""
    folder = tmp_path_factory.mktemp("processes")
    for place in ("one", "two"):
        for name in COMPARED:
            wanted(folder / place / name, tiny_config(name, **AUGMENTED))
        for name in METHODS:
            wanted(folder / place / f"float32-{name}", tiny_config(name, **{"scenario.stop_after": 2}))
    worker = str(HERE / "worker.py")
    alone = together(sys.executable, worker, str(folder / "one"))
    assert alone.returncode == 0, alone.stderr
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    both = together(sys.executable, *torchrun, worker, str(folder / "two"))
    assert both.returncode == 0, both.stderr
    return folder


@pytest.mark.parametrize("name", COMPARED)
def test_two_processes_give_the_model_of_one(runs: Path, name: str) -> None:
    one, two = (load_file(runs / place / name / "model.safetensors") for place in ("one", "two"))
    assert one.keys() == two.keys()
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=1e-6, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", COMPARED)
def test_two_processes_give_the_metrics_of_one(runs: Path, name: str) -> None:
    one, two = (json.loads((runs / place / name / "summary.json").read_text()) for place in ("one", "two"))
    for key in ("accuracy_matrix", "a_last", "a_inc", "forgetting"):
        assert two[key] == one[key]
    lines = [(runs / place / name / "metrics.jsonl").read_text().splitlines() for place in ("one", "two")]
    assert len(lines[0]) == len(lines[1])
    for events in zip(*lines, strict=True):
        before, after = map(json.loads, events)
        if before["event"] == "epoch":
            assert after["losses"] == pytest.approx(before["losses"], abs=1e-6)


def test_two_processes_give_the_anchors_of_one(runs: Path) -> None:
    one, two = (load_file(runs / place / "gatf" / "anchors.safetensors") for place in ("one", "two"))
    assert len(one) >= 2
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_in_two_processes_that_end_with_the_same_state(runs: Path, name: str) -> None:
    one, two = (runs / place / f"float32-{name}" for place in ("one", "two"))
    alone, shared = (json.loads((folder / "summary.json").read_text())["accuracy_seen"] for folder in (one, two))
    assert len(shared) == 2
    assert shared[0] == pytest.approx(alone[0], abs=3)  # later tasks may draw other pseudo-samples
    digests = load_file(two / "digests.safetensors")["digests"]
    assert torch.equal(digests[0], digests[1])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_config: Tiny) -> Path:
    """A finished run of two processes through the command line, and what it printed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    recipe = folder / "recipe.yaml"
    recipe.write_text(tiny_config("gatf", **{"optimisation.next.epochs": 6}).to_yaml())
    command = ("-m", "gatf", "run", "--recipe", str(recipe), "--devices", "2", "--out", str(folder / "run"))
    done = together(sys.executable, *command)
    assert done.returncode == 0, done.stderr
    (folder / "printed").write_text(done.stdout)
    assert done.stderr == ""
    return folder


def test_one_process_prints_and_writes(undisturbed: Path) -> None:
    assert (undisturbed / "printed").read_text().count("A_last") == 1
    assert {path.name for path in (undisturbed / "run").iterdir()} == {
        "config.yaml", "summary.json", "metrics.jsonl", "model.safetensors", "checkpoints", "report.html",
    }  # fmt: skip
    events = [json.loads(line)["event"] for line in (undisturbed / "run" / "metrics.jsonl").read_text().splitlines()]
    assert events.count("run_start") == events.count("run") == 1


def test_a_killed_process_ends_the_job_with_one_message_and_the_run_resumes(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "gatf", "run", "--quiet", "--recipe", str(undisturbed / "recipe.yaml")]
    job = subprocess.Popen(
        [*command, "--out", str(folder), "--devices", "2"], env=ALONE, stderr=subprocess.PIPE, text=True
    )
    wait_for_task(1, job, folder)
    os.kill(second_process(job.pid), signal.SIGKILL)
    _, told = job.communicate(timeout=60)
    assert job.returncode == 1
    assert told.splitlines() == [
        f"gatf: process 1 of 2 was killed by SIGKILL, so the others were stopped; what was saved is kept. Go on with: "
        f"gatf run --resume {folder} --devices 2"
    ]
    assert not (folder / "summary.json").exists()
    done = together(sys.executable, "-m", "gatf", "run", "--resume", str(folder), "--devices", "2", "--quiet")
    assert done.returncode == 0, done.stderr
    expected, found = (load_file(place / "model.safetensors") for place in (undisturbed / "run", folder))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def wait_for_task(task: int, job: "subprocess.Popen[str]", folder: Path) -> None:
    """Until the run in the folder has trained an epoch of the task."""
    events, deadline = folder / "metrics.jsonl", time.monotonic() + 120
    while not (events.exists() and f'"task": {task}, "phase"' in events.read_text()):
        assert job.poll() is None, job.stderr.read() if job.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.002)


def second_process(launcher: int) -> int:
    """The child of the launcher whose rank is 1."""
    for place in Path("/proc").iterdir():
        own = place.name.isdigit() and f"\nPPid:\t{launcher}\n" in (place / "status").read_text()
        if own and b"\0RANK=1\0" in b"\0" + (place / "environ").read_bytes():
            return int(place.name)
    raise AssertionError("the launcher has no second process")


def test_a_terminated_job_stops_together_and_resumes_in_one_process(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    command = [sys.executable, "-m", "gatf", "run", "--quiet", "--recipe", str(undisturbed / "recipe.yaml")]
    job = subprocess.Popen(
        [*command, "--out", str(folder), "--devices", "2"], env=ALONE, stdout=subprocess.PIPE, text=True
    )
    wait_for_task(0, job, folder)
    job.terminate()
    printed, _ = job.communicate(timeout=60)
    assert job.returncode == 130
    assert printed.strip() == f"stopped and saved; go on with: gatf run --resume {folder}"
    assert resume(folder)["a_last"] > 40


def test_a_mistake_is_told_once(tmp_path: Path, tiny_config: Tiny) -> None:
    start(tiny_config("finetune", **{"scenario.stop_after": 1}), tmp_path / "run")
    done = together(sys.executable, "-m", "gatf", "run", "--out", str(tmp_path / "run"), "--devices", "2")
    assert done.returncode == 2
    assert done.stderr.count("already holds a run") == len(done.stderr.splitlines()) == 1


def test_several_nodes_need_to_know_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="NODE_RANK, MASTER_ADDR, MASTER_PORT in the environment"):
        launch(["run"], devices=1, nodes=2, folder="x")


def test_two_launchers_are_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="leave out --devices"):
        launch(["run"], devices=2, nodes=1, folder="x")


def test_two_nodes_are_two_launchers(undisturbed: Path, tmp_path: Path) -> None:
    """Two launchers of one process each on this machine are to the run what two machines are."""
    environment = ALONE | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "gatf", "run", "--quiet", "--recipe", str(undisturbed / "recipe.yaml")]
    jobs = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / "run"), "--nodes", "2"],
            env=environment | {"NODE_RANK": str(node)}, stdout=subprocess.DEVNULL,
        )
        for node in range(2)
    ]  # fmt: skip
    assert [job.wait(timeout=120) for job in jobs] == [0, 0]
    expected, found = (load_file(place / "model.safetensors") for place in (undisturbed / "run", tmp_path / "run"))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
