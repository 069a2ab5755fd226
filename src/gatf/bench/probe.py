"""Estimates of time and memory of a bench: a few measured steps of every row, extrapolated."""

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gatf import experiment
from gatf.bench.executors import description
from gatf.bench.plan import Plan, PlannedRun
from gatf.config import RunConfig, validated
from gatf.data.base import rank_in_class
from gatf.data.loader import TaskInfo
from gatf.devices import available_device
from gatf.errors import UserError
from gatf.io.events import Epoch, Event, TaskStart
from gatf.io.parsing import parse_yaml
from gatf.io.run_folder import RunFolder, Summary

PROBE_EPOCHS = 2
"""Two, so that a phase with half the epochs has one."""
PROBE_STEPS = 3
PARTS, LEAST = (1, 4, 16), 64
"""A rehearsal that runs out of memory is repeated with a quarter of the batch, then with a 16th; its memory is
extrapolated from that and from a 64th."""
KILLED = "the system killed its process, as it does when memory runs out"


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
    part: int = 1
    """The batch was divided by this, because the whole one does not fit; memory is extrapolated."""


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
        one = _rehearsed(Estimate(setting, row, len(runs), None), runs[0].config.to_yaml())
        found.append(replace(one, probed=time.monotonic() - began))
        finished(found[-1])
    return found


def _rehearsed(one: Estimate, config: str) -> Estimate:
    """With the largest part of the batch that fits."""
    for part in PARTS:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            try:
                seconds, memory = process.submit(_isolated, config, part).result()
                return replace(one, seconds=seconds, memory_mb=memory, part=part, why="")
            except MemoryError as error:
                one = replace(one, why=description(error))
            except Exception as error:  # a rehearsal exists to find any error
                return replace(one, why=KILLED if isinstance(error, BrokenProcessPool) else description(error))
    return one


def _isolated(config: str, part: int) -> tuple[float, float]:
    """`measured` in its own process; `MemoryError` when memory runs out, where the system would kill the process."""
    if available_device(validated(parse_yaml(config)).device) == "cpu":
        limit_memory()
    try:
        return measured(config, steps=1, part=part)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise MemoryError(str(error)) from None
        raise


def limit_memory() -> None:
    """Make allocations fail when this process would use more memory than is available; only Linux reports that."""
    with suppress(OSError, ImportError, ValueError):
        import resource

        text = Path("/proc/meminfo").read_text(encoding="utf-8").partition("MemAvailable:")[2]
        available = int(text.split()[0]) * 1024
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        known = [limit for limit in (available, soft) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))


def _rows(plan: Plan) -> dict[tuple[str, str], list[PlannedRun]]:
    """The runs of each row of each setting."""
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in plan.runs:
        groups.setdefault((run.setting, run.row), []).append(run)
    return groups


def measured(text: str, *, steps: int = PROBE_STEPS, part: int = 1) -> tuple[float, float]:
    """Seconds that a run with this config (YAML) will take, and the peak of its memory in MB.

    Time two tasks with two epochs of a few steps each, then scale by images × epochs of the whole run. All later tasks
    count like the second one; statistics count as measured, and evaluation by the number of test images. `part` divides
    the batch; memory is then extrapolated.
    """
    config = validated(parse_yaml(text))
    whole = experiment.Experiment(config)
    tasks = range(len(whole.scenario))
    images, tests = [whole.task_info(task).images for task in tasks], [_tests(whole, task) for task in tasks]
    classes = max(whole.scenario.task_sizes)
    del whole
    least = 0.0
    if part > 1:  # before the larger part, because the peak of a process does not fall
        least = max(_short_run(shortened(config, classes, steps=steps, part=LEAST))[1].peak_memory_mb)
    probe, short, events = _short_run(shortened(config, classes, steps=steps, part=part))
    memory = max(short.peak_memory_mb)
    if part > 1:
        memory += (memory - least) * (1 - 1 / part) / (1 / part - 1 / LEAST)
    phases = [_phases(events, task) for task in range(short.tasks)]
    began = time.perf_counter()
    probe.evaluate(len(phases) - 1)
    per_test = (time.perf_counter() - began) / max(_tests(probe, len(phases) - 1), 1)
    scale = config.optimisation.first.epochs / PROBE_EPOCHS
    epochs = [{one.name: one.epochs * scale for one in phases[0]}, _epochs_later(probe, config)]
    total = 0.0
    for task in tasks:
        like = min(task, len(phases) - 1)
        total += sum(one.per_image * images[task] * epochs[like].get(one.name, 0.0) for one in phases[like])
        other = short.seconds[like] - sum(one.training for one in phases[like]) - per_test * _tests(probe, like)
        total += max(other, 0.0) + per_test * tests[task]
    return total, memory


def _short_run(config: RunConfig) -> tuple[experiment.Experiment, Summary, list[Event]]:
    """Run it on as many test images as training images per class and task."""
    probe = experiment.Experiment(config)
    scenario, tests = probe.scenario, probe.scenario.source.test
    groups = tests.labels + scenario.source.classes * scenario.tasks(tests).clamp_min(0)  # a class in each domain
    rank = rank_in_class(groups, torch.bincount(groups))
    probe.scenario = scenario.with_tests(torch.nonzero(rank < (config.data.max_per_class or 1)).squeeze(1))
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.create(config.to_yaml())
        return probe, probe.run(folder.path, ()), folder.read_events()


def _tests(of: experiment.Experiment, task: int) -> int:
    """How many test images are scored after a task."""
    return len(of.scenario.members(of.scenario.source.test, 0, task)[0])


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


def shortened(config: RunConfig, classes: int, *, steps: int = PROBE_STEPS, part: int = 1) -> RunConfig:
    """The same run with two tasks, two epochs and a few steps each, of a `part`-th of the batch and of the bottleneck,
    which methods with covariances need to be smaller than the batch."""
    values = config.model_dump(mode="json")
    if config.backbone.bottleneck is not None:
        values["backbone"]["bottleneck"] = max(config.backbone.bottleneck // part, 1)
    stages = [values["optimisation"][stage] for stage in ("first", "next")]
    for stage in stages:
        stage |= {"epochs": PROBE_EPOCHS, "batch_size": max(stage["batch_size"] // part, 2)}
    few = -(-steps * max(stage["batch_size"] for stage in stages) // classes)
    values["data"]["max_per_class"] = min(few, config.data.max_per_class or few)
    values["scenario"]["stop_after"] = min(2, config.scenario.stop_after or 2)
    return validated({**values, "diagnostics": False, "checkpoint_every": None})
