"""Where the runs of a bench happen: in this process, in several on this machine, or on a Ray cluster.

Every job is a prepared run folder (`prepare`), and doing it is resuming it: a job that was killed, or whose worker was
lost, is done again from its last checkpoint.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gatf import experiment
from gatf.bench.plan import PlannedRun
from gatf.config import read_recipe, validated
from gatf.errors import ExitCode, UserError
from gatf.io.events import Listener
from gatf.io.run_folder import RunFolder
from gatf.io.signals import stop_signals
from gatf.network_reuse import network_source_beside
from gatf.training.loop import Interrupted

POLL_SECONDS = 0.5


class Watcher(Protocol):
    """Is told how the jobs of a bench go."""

    def listener(self, run: PlannedRun) -> Listener: ...

    def started(self, run: PlannedRun) -> None: ...

    def finished(self, run: PlannedRun) -> None: ...

    def failed(self, run: PlannedRun, why: str) -> None: ...

    def tick(self) -> None: ...


class Executor(Protocol):
    """Does jobs; raises `Interrupted` when it was asked to stop and everything is saved."""

    def execute(self, jobs: Sequence[PlannedRun], folder: Path, watcher: Watcher) -> None: ...


def prepare(run: PlannedRun, folder: Path) -> None:
    """Make the run's folder hold its config, so that resuming it begins it; refuse a folder with another config.

    A folder of an earlier version is as if it had the defaults of settings that were added since."""
    target = RunFolder(folder / run.name)
    if not target.begun:
        target.create(run.config.to_yaml())
    elif validated(read_recipe(str(target.config))).to_yaml() != run.config.to_yaml():
        raise UserError(f"{target.path} holds a run of another config; remove it or choose another --out")


def told(error: Exception) -> str:
    """Why a run failed, in one line."""
    said = " ".join(str(error).split())
    return said if isinstance(error, UserError) else f"{type(error).__name__}: {said}"


class InProcess:
    """One after the other, here."""

    def execute(self, jobs: Sequence[PlannedRun], folder: Path, watcher: Watcher) -> None:
        for run in jobs:
            watcher.started(run)
            try:
                go_on(folder / run.name, (watcher.listener(run),))
            except Interrupted:
                raise
            except Exception as error:  # one run's failure, foreseen or not, is not the end of the others
                watcher.failed(run, told(error))
            else:
                watcher.finished(run)


@dataclass
class Processes:
    """Several at once on this machine, each a process of its own with its share of the threads."""

    count: int
    retries: int = 1
    """How often a job whose process died is done again."""
    threads: int = 0
    """Threads a process; 0: the cores shared out."""
    _running: dict[str, tuple[PlannedRun, subprocess.Popen[str]]] = field(default_factory=dict)
    _slots: dict[str, int] = field(default_factory=dict)
    """Which of the `count` places each run that is under way has."""

    def execute(self, jobs: Sequence[PlannedRun], folder: Path, watcher: Watcher) -> None:
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

    def _start(self, run: PlannedRun, folder: Path, watcher: Watcher) -> None:
        threads = self.threads or max(1, (os.cpu_count() or 1) // self.count)
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
        self, run: PlannedRun, process: subprocess.Popen[str], watcher: Watcher, waiting: list[PlannedRun],
        tries: dict[str, int],
    ) -> None:  # fmt: skip
        """A process has ended: well, asked to stop, with an error, or killed (a negative code, then once more)."""
        said = process.communicate()[1].strip()
        if process.returncode == ExitCode.DONE:
            watcher.finished(run)
        elif process.returncode == ExitCode.INTERRUPTED:
            return
        elif process.returncode < 0 and tries[run.name] < self.retries:
            tries[run.name] += 1
            waiting.insert(0, run)
        else:
            last = said.splitlines()[-1] if said else f"its process ended with code {process.returncode}"
            watcher.failed(run, last.removeprefix("gatf: "))


def one_gpu(slot: int) -> dict[str, str]:
    """The environment in which a process sees one GPU of this machine, in turn by its place; nothing without GPUs."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named else [str(index) for index in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": visible[slot % len(visible)]} if torch.cuda.device_count() else {}


@dataclass
class RayCluster:
    """On the workers of a Ray cluster (extra `cluster`), whose nodes share the bench's folder."""

    address: str | None = None
    """Of a running cluster, `auto` for the one of this machine; None starts one here."""
    cpus: float = 1
    gpus: float | None = None
    """Of each run; fractions share a GPU. None: one where the cluster has GPUs and the runs may use them."""
    retries: int = 3
    """How often a run is taken up again after its worker was lost."""

    def execute(self, jobs: Sequence[PlannedRun], folder: Path, watcher: Watcher) -> None:
        try:
            import ray
        except ImportError:
            raise UserError("--executor ray needs the extra: pip install 'gatf-cil[cluster]'") from None
        if not ray.is_initialized():
            here = {"include_dashboard": False} if self.address is None else {}
            ray.init(address=self.address, log_to_driver=False, **here)
        gpus = self.gpus
        if gpus is None:
            gpus = float(ray.cluster_resources().get("GPU", 0) > 0 and any(run.config.device != "cpu" for run in jobs))
        options = {"num_cpus": self.cpus, "num_gpus": gpus, "max_retries": self.retries}
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
    """One job, wherever it is: go on with the run in a folder."""
    import torch

    torch.set_num_threads(max(1, threads))
    go_on(Path(folder))
    return folder


def go_on(folder: Path, listeners: tuple[Listener, ...] = ()) -> None:
    """Do the run in a folder, with the networks of one beside it that has trained the same and kept them."""
    experiment.resume(folder, listeners, networks_from=network_source_beside(folder))
