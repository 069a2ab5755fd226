"""How long a bench will take: a few steps of every row, timed, and multiplied."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from gatf import experiment
from gatf.bench.plan import Plan, PlannedRun
from gatf.config import RunConfig, validated
from gatf.data.loader import TaskInfo
from gatf.errors import UserError
from gatf.io.events import Epoch, Event, TaskStart
from gatf.io.run_folder import RunFolder

PROBE_EPOCHS = 2
"""Enough for phases of half the epochs to have one."""
PROBE_STEPS = 3


@dataclass(frozen=True)
class Estimate:
    """Seconds of one run of a row; None where it cannot be probed, and why."""

    setting: str
    row: str
    runs: int
    seconds: float | None
    why: str = ""


def estimate(plan: Plan) -> list[Estimate]:
    """One estimate for every row of every setting."""
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in plan.runs:
        groups.setdefault((run.setting, run.row), []).append(run)
    found = []
    for (setting, row), runs in groups.items():
        try:
            found.append(Estimate(setting, row, len(runs), seconds_of(runs[0].config)))
        except UserError as error:
            found.append(Estimate(setting, row, len(runs), None, str(error)))
    return found


def seconds_of(config: RunConfig) -> float:
    """Time two tasks on a few images of each class for two epochs, then count images × epochs of the whole run.

    Tasks after the first are taken to be like the second; statistics and evaluation cost what they cost in the probe.
    """
    whole = experiment.Experiment(config)
    images = [whole.task_info(task).images for task in range(len(whole.scenario))]
    probe = experiment.Experiment(shortened(config, max(whole.scenario.task_sizes)))
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.create(probe.config.to_yaml())
        summary = probe.run(folder.path, ())
        told = folder.read_events()
    phases = [_phases(told, task) for task in range(len(summary.seconds))]
    scale = config.optimisation.first.epochs / PROBE_EPOCHS
    epochs = [{one.name: one.epochs * scale for one in phases[0]}, _epochs_later(probe, config)]
    total = 0.0
    for task, count in enumerate(images):
        like = min(task, len(phases) - 1)
        total += sum(one.an_image * count * epochs[like].get(one.name, 0.0) for one in phases[like])
        total += max(summary.seconds[like] - sum(one.training for one in phases[like]), 0.0)
    return total


@dataclass(frozen=True)
class _TimedPhase:
    name: str
    epochs: int
    an_image: float
    """Seconds an image and epoch, of the last epoch: the first warms up."""
    training: float
    """Seconds of all its epochs."""


def _phases(events: list[Event], task: int) -> list[_TimedPhase]:
    """What the probe's task was made of."""
    images = next(event.images for event in events if isinstance(event, TaskStart) and event.task == task)
    seconds: dict[str, list[float]] = {}
    for event in events:
        if isinstance(event, Epoch) and event.task == task:
            seconds.setdefault(event.phase, []).append(event.seconds)
    return [_TimedPhase(name, len(each), each[-1] / images, sum(each)) for name, each in seconds.items()]


def _epochs_later(probe: experiment.Experiment, config: RunConfig) -> dict[str, float]:
    """Epochs of every phase of a later task under the whole run's settings, asked of the method after the probe."""
    last = probe.task_info(len(probe.scenario) - 1)
    following = TaskInfo(last.index + 1, last.seen, last.new, last.images)
    probe.method.optimisation = config.optimisation
    probe.method.begin_task(following)
    return {phase.name: float(phase.stage.epochs) for phase in probe.method.phases(following)}


def shortened(config: RunConfig, classes: int) -> RunConfig:
    """The same run with two tasks, two epochs and a few steps each."""
    values = config.model_dump(mode="json")
    steps = PROBE_STEPS * max(config.optimisation.first.batch_size, config.optimisation.next.batch_size)
    few = -(-steps // classes)
    values["data"]["max_per_class"] = min(few, config.data.max_per_class or few)
    values["scenario"]["stop_after"] = min(2, config.scenario.stop_after or 2)
    for stage in ("first", "next"):
        values["optimisation"][stage]["epochs"] = PROBE_EPOCHS
    return validated({**values, "diagnostics": False, "checkpoint_every": None})
