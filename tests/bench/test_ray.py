"""A bench on a Ray cluster of two workers, one of which is killed in the middle of its run."""

import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from gatf import experiment
from gatf.bench.executors import RayCluster
from gatf.bench.plan import load_plan
from gatf.bench.suite import run_plan
from gatf.io import container

ray = pytest.importorskip("ray", reason="the extra `cluster` is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
SMALL = (
    "data: {name: digits, max_per_class: 30}\nscenario: {tasks: 5, stop_after: 2}\n"
    "backbone: {name: small, width: 8, bottleneck: 8}\ncheckpoint_every: 1\n"
    "optimisation: {first: {epochs: 40, batch_size: 32}, next: {epochs: 40, batch_size: 32, lr: 0.01}}\n"
)


def workers() -> Iterator[int]:
    """Process ids of the workers of our own cluster that run a job."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if command.startswith(b"ray::run_job") and os.getpid() in ancestors(int(entry.name)):
                yield int(entry.name)
        except OSError:
            continue


def ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds worker processes in /proc")
def test_a_lost_worker_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    text = f"recipe: {tmp_path / 'small.yaml'}\nmethods: [finetune]\nseeds: [0, 1, 2]\n"
    (tmp_path / "bench.yaml").write_text(text, encoding="utf-8")
    plan = load_plan(str(tmp_path / "bench.yaml"))
    folder = tmp_path / "out"
    killed: list[int] = []

    def kill_one() -> None:
        while not killed:
            begun = any(folder.glob("*/checkpoints/*.safetensors"))
            for pid in workers() if begun else ():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                break
            time.sleep(0.02)

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        thread = threading.Thread(target=kill_one, daemon=True)
        thread.start()
        assert run_plan(plan, folder, Console(file=io.StringIO()), RayCluster(cpus=1)) == {}
        thread.join(timeout=10)
    finally:
        ray.shutdown()
    assert len(killed) == 1
    for run in plan.runs:
        experiment.start(run.config, tmp_path / "alone" / run.name)
        remote, _ = container.read(folder / run.name / "model.safetensors")
        alone, _ = container.read(tmp_path / "alone" / run.name / "model.safetensors")
        assert all(remote[name].equal(alone[name]) for name in alone)
