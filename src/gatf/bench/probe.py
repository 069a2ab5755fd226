"""Estimates of time and memory of a bench: a few measured steps of every row, extrapolated."""

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gatf import experiment
from gatf.bench.executors import description
from gatf.bench.plan import Plan, PlannedRun
from gatf.config import RunConfig, validated
from gatf.data.loader import TaskInfo
from gatf.errors import UserError
from gatf.io.events import Epoch, Event, TaskStart
from gatf.io.parsing import parse_yaml
from gatf.io.run_folder import RunFolder

PROBE_EPOCHS = 2
"""Two, so that a phase with half the epochs has one."""
PROBE_STEPS = 3


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds of one run of a row; None with a reason if it cannot be measured."""

    setting: str
    row: str
    runs: int
    seconds: float | None
    why: str = ""
    memory_mb: float | None = None
    """Peak memory of the GPU or the process; None if the row did not have its own process."""
    probed: float = 0.0
    """Seconds of the measurement itself."""


def estimate(plan: Plan) -> list[Estimate]:
    """One estimate for every row of every setting."""
    found = []
    for (setting, row), runs in _rows(plan).items():
        try:
            found.append(Estimate(setting, row, len(runs), measured(runs[0].config.to_yaml())[0]))
        except UserError as error:
            found.append(Estimate(setting, row, len(runs), None, str(error)))
    return found


def rehearse(plan: Plan, finished: Callable[[Estimate], object]) -> list[Estimate]:
    """As `estimate`, but each row in its own process, which isolates memory and failures; `finished` receives each
    row."""
    found = []
    for (setting, row), runs in _rows(plan).items():
        began = time.monotonic()
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            try:
                seconds, memory = process.submit(measured, runs[0].config.to_yaml(), steps=1).result()
                one = Estimate(setting, row, len(runs), seconds, "", memory, time.monotonic() - began)
            except Exception as error:  # a rehearsal exists to find any error
                one = Estimate(setting, row, len(runs), None, description(error), None, time.monotonic() - began)
        found.append(one)
        finished(one)
    return found


def _rows(plan: Plan) -> dict[tuple[str, str], list[PlannedRun]]:
    """The runs of each row of each setting."""
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in plan.runs:
        groups.setdefault((run.setting, run.row), []).append(run)
    return groups


def measured(text: str, *, steps: int = PROBE_STEPS) -> tuple[float, float]:
    """Seconds that a run with this config (YAML) will take, and the peak of its memory in MB.

    Time two tasks with two epochs of a few steps each, then scale by images × epochs of the whole run. All later tasks
    count like the second one; statistics and evaluation count as measured.
    """
    config = validated(parse_yaml(text))
    whole = experiment.Experiment(config)
    images = [whole.task_info(task).images for task in range(len(whole.scenario))]
    probe = experiment.Experiment(shortened(config, max(whole.scenario.task_sizes), steps=steps))
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.create(probe.config.to_yaml())
        summary = probe.run(folder.path, ())
        events = folder.read_events()
    phases = [_phases(events, task) for task in range(len(summary.seconds))]
    scale = config.optimisation.first.epochs / PROBE_EPOCHS
    epochs = [{one.name: one.epochs * scale for one in phases[0]}, _epochs_later(probe, config)]
    total = 0.0
    for task, count in enumerate(images):
        like = min(task, len(phases) - 1)
        total += sum(one.per_image * count * epochs[like].get(one.name, 0.0) for one in phases[like])
        total += max(summary.seconds[like] - sum(one.training for one in phases[like]), 0.0)
    return total, max(summary.peak_memory_mb)


@dataclass(frozen=True)
class _TimedPhase:
    name: str
    epochs: int
    per_image: float
    """Seconds per image and epoch, of the last epoch: the first one warms up."""
    training: float
    """Seconds of all epochs."""


def _phases(events: list[Event], task: int) -> list[_TimedPhase]:
    """The timed phases of a task of the probe."""
    images = next(event.images for event in events if isinstance(event, TaskStart) and event.task == task)
    seconds: dict[str, list[float]] = {}
    for event in events:
        if isinstance(event, Epoch) and event.task == task:
            seconds.setdefault(event.phase, []).append(event.seconds)
    return [_TimedPhase(name, len(each), each[-1] / images, sum(each)) for name, each in seconds.items()]


def _epochs_later(probe: experiment.Experiment, config: RunConfig) -> dict[str, float]:
    """Epochs per phase of a later task with the whole run's settings; the method reports them after the probe."""
    last = probe.task_info(len(probe.scenario) - 1)
    following = TaskInfo(last.index + 1, last.seen, last.new, last.images)
    probe.method.optimisation = config.optimisation
    probe.method.begin_task(following)
    return {phase.name: float(phase.stage.epochs) for phase in probe.method.phases(following)}


def shortened(config: RunConfig, classes: int, *, steps: int = PROBE_STEPS) -> RunConfig:
    """The same run with two tasks, two epochs and a few steps each."""
    values = config.model_dump(mode="json")
    images = steps * max(config.optimisation.first.batch_size, config.optimisation.next.batch_size)
    few = -(-images // classes)
    values["data"]["max_per_class"] = min(few, config.data.max_per_class or few)
    values["scenario"]["stop_after"] = min(2, config.scenario.stop_after or 2)
    for stage in ("first", "next"):
        values["optimisation"][stage]["epochs"] = PROBE_EPOCHS
    return validated({**values, "diagnostics": False, "checkpoint_every": None})
