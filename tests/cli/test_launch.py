"""Several processes started by one command end together: done, killed, stopped or wrong."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gatf.cli.launch import free_port, launch
from gatf.config import RunConfig
from gatf.experiment import resume

from ..faults import PATIENCE, wait_for_task

pytestmark = pytest.mark.slow

Tiny = Callable[..., RunConfig]
MadeOnce = Callable[[str, Callable[[Path], None]], Path]
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}


def together(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ALONE, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.fixture(scope="module")
def undisturbed(made_once: MadeOnce, tiny_config: Tiny) -> Path:
    """A finished run of two launchers with one process each, which are to a run what two machines are, and what each
    printed."""
    settings = {"scenario.stop_after": 2, "optimisation.next.epochs": 6}

    def make(folder: Path) -> None:
        recipe = folder / "recipe.yaml"
        recipe.write_text(tiny_config("gatf", **settings).to_yaml())
        environment = ALONE | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        command = [sys.executable, "-m", "gatf", "run", "--recipe", str(recipe), "--out", str(folder / "run")]
        jobs = [
            subprocess.Popen(
                [*command, "--nodes", "2"], env=environment | {"NODE_RANK": str(node)}, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
            )
            for node in range(2)
        ]  # fmt: skip
        for node, job in enumerate(jobs):
            printed, reported = job.communicate(timeout=PATIENCE)
            assert (job.returncode, reported) == (0, "")
            (folder / f"printed by node {node}").write_text(printed)

    return made_once("undisturbed", make)


def test_the_first_process_prints_and_writes(undisturbed: Path) -> None:
    assert (undisturbed / "printed by node 0").read_text().count("A_last") == 1
    assert (undisturbed / "printed by node 1").read_text() == ""
    assert {path.name for path in (undisturbed / "run").iterdir()} == {
        "config.yaml", "summary.json", "metrics.jsonl", "model.safetensors", "checkpoints", "report.html",
        "confusion.csv",
    }  # fmt: skip
    events = [json.loads(line)["event"] for line in (undisturbed / "run" / "metrics.jsonl").read_text().splitlines()]
    assert events.count("run_start") == events.count("run") == 1


def test_a_stopped_and_a_killed_job_continue(undisturbed: Path, tmp_path: Path) -> None:
    """Two processes of one launcher are stopped in the first task, and one is killed in the second. They end with the
    bits of two launchers. One process can end the run as well."""
    folder, alone = tmp_path / "run", tmp_path / "alone"
    command = [sys.executable, "-m", "gatf", "run", "--quiet", "--no-report", "--devices", "2"]
    first = [*command, "--recipe", str(undisturbed / "recipe.yaml"), "--out", str(folder)]
    job = subprocess.Popen(first, env=ALONE, stdout=subprocess.PIPE, text=True)
    wait_for_task(0, job, folder)
    job.terminate()
    printed, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 130
    assert printed.strip() == f"stopped and saved; continue with: gatf run --resume {folder}"

    job = subprocess.Popen([*command, "--resume", str(folder)], env=ALONE, stderr=subprocess.PIPE, text=True)
    second = second_process(job.pid)
    wait_for_task(1, job, folder)
    os.kill(second, signal.SIGKILL)
    _, reported = job.communicate(timeout=PATIENCE)
    assert job.returncode == 1
    assert reported.splitlines() == [
        f"gatf: process 1 of 2 was killed by SIGKILL, so the others were stopped; saved checkpoints are kept. "
        f"Continue with: gatf run --resume {folder} --devices 2"
    ]
    assert not (folder / "summary.json").exists()
    shutil.copytree(folder, alone)
    assert len(resume(alone).accuracy_seen) == 2

    done = together(*command[:4], "--resume", str(folder), "--devices", "2", "--no-report")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("A_last") == 1
    expected, found = (load_file(place / "model.safetensors") for place in (undisturbed / "run", folder))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def second_process(launcher: int) -> int:
    """The child of the launcher whose rank is 1, once there is one."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # any process of the machine may end while it is read
                own = f"\nPPid:\t{launcher}\n" in (place / "status").read_text()
                if own and b"\0RANK=1\0" in b"\0" + (place / "environ").read_bytes():
                    return int(place.name)
        time.sleep(0.01)
    raise AssertionError("the launcher has no second process")


def test_a_mistake_is_reported_once(tmp_path: Path) -> None:
    """Only the processes notice that there is no such data."""
    done = together(
        sys.executable, "-m", "gatf", "run", "--dataset", "cifar100", "--data-root", str(tmp_path / "none"), "--out",
        str(tmp_path / "run"), "--devices", "2",
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("'cifar100' is not in") == len(done.stderr.splitlines()) == 1, done.stderr


def test_a_folder_that_holds_a_run_is_refused_before_processes_start(
    undisturbed: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatf.cli.run.launch", lambda *_, **__: pytest.fail("launched"))
    code, _, reported = call("run", "--out", undisturbed / "run", "--devices", 2)
    assert (code, reported.count("already contains a run"), len(reported.splitlines())) == (2, 1, 1)


def test_the_port_of_a_launch_is_not_given_to_a_connection_meanwhile() -> None:
    """Systems give connections ports from 32768 on."""
    ports = [free_port() for _ in range(50)]
    assert max(ports) < 32768
    assert len(set(ports)) > 40
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", ports[0]))


def test_several_nodes_need_to_know_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="NODE_RANK, MASTER_ADDR, MASTER_PORT in the environment"):
        launch(["run"], devices=1, nodes=2, folder="x")


def test_two_launchers_are_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="leave out --devices"):
        launch(["run"], devices=2, nodes=1, folder="x")
