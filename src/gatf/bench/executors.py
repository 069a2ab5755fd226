"""Executors of a bench: this process, several processes on this machine, or a Ray cluster.

A job is a prepared run folder (`prepare`), and executing it means resuming it. A job whose process was killed continues
from its last checkpoint.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gatf import experiment
from gatf.bench.plan import PlannedRun
from gatf.bench.progress import LiveTable
from gatf.config import read_recipe, validated
from gatf.errors import ExitCode, UserError, connected_ray
from gatf.io.events import Listener
from gatf.io.run_folder import RunFolder
from gatf.io.signals import stop_signals
from gatf.network_reuse import network_source_beside
from gatf.training.loop import Interrupted

POLL_SECONDS = 0.5
RETRIES, LOST_WORKERS = 1, 3
"""Retries of a job whose process was killed, and of one whose Ray worker was lost."""


def prepare(run: PlannedRun, folder: Path) -> None:
    """Write the run's config into its folder, so that it can be resumed; refuse a folder with another config.

    Settings that a folder of an earlier version lacks have their defaults."""
    target = RunFolder(folder / run.name)
    if not target.begun:
        target.create(run.config.to_yaml())
    elif validated(read_recipe(str(target.config))).to_yaml() != run.config.to_yaml():
        raise UserError(f"{target.path} contains a run of another config; delete it or choose another --out")


def description(error: Exception) -> str:
    """The reason of a failed run, in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


class InProcess:
    """One after the other, in this process."""

    def execute(self, jobs: Sequence[PlannedRun], folder: Path, watcher: LiveTable) -> None:
        for run in jobs:
            watcher.started(run)
            try:
                continue_run(folder / run.name, (watcher.listener(run),))
            except Interrupted:
                raise
            except Exception as error:  # the other runs continue after any failure
                watcher.failed(run, description(error))
            else:
                watcher.finished(run)


@dataclass
class Processes:
    """Several processes on this machine, each with its share of the threads."""

    count: int
    _running: dict[str, tuple[PlannedRun, subprocess.Popen[str]]] = field(default_factory=dict)
    _slots: dict[str, int] = field(default_factory=dict)
    """The slot, below `count`, of each running job."""

    def execute(self, jobs: Sequence[PlannedRun], folder: Path, watcher: LiveTable) -> None:
        waiting, tries = list(jobs), dict.fromkeys((run.name for run in jobs), 0)
        with stop_signals() as stopping:
            while waiting or self._running:
                while waiting and len(self._running) < self.count and not stopping():
                    self._start(waiting.pop(0), folder, watcher)
                for run, process in [*self._running.values()]:
                    if process.poll() is not None:
                        self._running.pop(run.name)
                        self._settle(run, process, watcher, waiting, tries)
                watcher.tick()
                if stopping() and not self._running:
                    raise Interrupted
                time.sleep(POLL_SECONDS / 5)

    def _start(self, run: PlannedRun, folder: Path, watcher: LiveTable) -> None:
        threads = max(1, (os.cpu_count() or 1) // self.count)
        command = [sys.executable, "-m", "gatf.bench.worker", str(folder / run.name)]
        taken = {self._slots[name] for name in self._running}
        slot = self._slots[run.name] = next(slot for slot in range(self.count) if slot not in taken)
        process = subprocess.Popen(
            command, env={**os.environ, "OMP_NUM_THREADS": str(threads), **one_gpu(slot)}, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._running[run.name] = (run, process)
        watcher.started(run)

    def _settle(
        self, run: PlannedRun, process: subprocess.Popen[str], watcher: LiveTable, waiting: list[PlannedRun],
        tries: dict[str, int],
    ) -> None:  # fmt: skip
        """Handle the end of a process: success, a requested stop, an error, or a signal (negative code: retry)."""
        output = process.communicate()[1].strip()
        if process.returncode == ExitCode.DONE:
            watcher.finished(run)
        elif process.returncode == ExitCode.INTERRUPTED:
            return
        elif process.returncode < 0 and tries[run.name] < RETRIES:
            tries[run.name] += 1
            waiting.insert(0, run)
        else:
            last = output.splitlines()[-1] if output else f"its process ended with code {process.returncode}"
            watcher.failed(run, last.removeprefix("gatf: "))


def one_gpu(slot: int) -> dict[str, str]:
    """The environment that shows a process one GPU, chosen in turn by its slot; empty without GPUs."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named else [str(index) for index in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": visible[slot % len(visible)]} if torch.cuda.device_count() else {}


@dataclass
class RayCluster:
    """Workers of a Ray cluster (extra `cluster`) whose nodes share the bench's folder."""

    address: str | None = None
    """Address of a running cluster, `auto` for one on this machine; None starts a local one."""
    cpus: float = 1
    gpus: float | None = None
    """GPUs per run; fractions share a GPU. None: one if the cluster has GPUs and the runs may use them."""

    def execute(self, jobs: Sequence[PlannedRun], folder: Path, watcher: LiveTable) -> None:
        ray = connected_ray(self.address)
        gpus = self.gpus
        if gpus is None:
            gpus = float(ray.cluster_resources().get("GPU", 0) > 0 and any(run.config.device != "cpu" for run in jobs))
        options = {"num_cpus": self.cpus, "num_gpus": gpus, "max_retries": LOST_WORKERS}
        task: Any = ray.remote(**options)(run_job)
        root = folder.resolve()
        running = {task.remote(str(root / run.name), int(self.cpus)): run for run in jobs}
        for run in jobs:
            watcher.started(run)
        try:
            while running:
                done, _ = ray.wait(list(running), timeout=POLL_SECONDS)
                for reference in done:
                    run = running.pop(reference)
                    try:
                        ray.get(reference)
                    except ray.exceptions.RayError as error:
                        watcher.failed(run, str(error).strip().splitlines()[-1])
                    else:
                        watcher.finished(run)
                watcher.tick()
        except KeyboardInterrupt:
            for reference in running:
                ray.cancel(reference)  # an interrupt in the worker, which saves and stops
            raise Interrupted from None


def run_job(folder: str, threads: int) -> str:
    """One job on a worker: continue the run in a folder."""
    import torch

    torch.set_num_threads(max(1, threads))
    continue_run(Path(folder))
    return folder


def continue_run(folder: Path, listeners: tuple[Listener, ...] = ()) -> None:
    """Continue the run in a folder. It reuses the networks of a run beside it that trained and kept the same ones."""
    experiment.resume(folder, listeners, networks_from=network_source_beside(folder))


Executor = InProcess | Processes | RayCluster
"""Executes jobs; raises `Interrupted` after a requested stop, when everything is saved."""
