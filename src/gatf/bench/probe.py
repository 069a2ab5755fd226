"""Estimates of time and memory of a bench: a few measured steps of every row, extrapolated."""

import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gatf import experiment
from gatf.bench.executors import description
from gatf.bench.plan import Plan, PlannedRun
from gatf.config import RunConfig, validated
from gatf.data.base import rank_in_class
from gatf.data.loader import Order, TaskInfo, shuffled
from gatf.devices import available_device
from gatf.errors import UserError
from gatf.io.events import Epoch
from gatf.io.parsing import parse_yaml
from gatf.io.run_folder import RunFolder
from gatf.training.phase import Phase

PROBE_STEPS = 3
FEW = 2
"""Images per class in a rehearsal. They are repeated until a batch is full."""
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
    processor: float = 0.0
    """Its processor seconds."""
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
                seconds, memory, processor = process.submit(_isolated, config, part).result()
                return replace(one, seconds=seconds, memory_mb=memory, processor=processor, part=part, why="")
            except MemoryError as error:
                one = replace(one, why=description(error))
            except Exception as error:  # a rehearsal exists to find any error
                return replace(one, why=KILLED if isinstance(error, BrokenProcessPool) else description(error))
    return one


def _isolated(config: str, part: int) -> tuple[float, float, float]:
    """`measured` in its own process, and its processor seconds; `MemoryError` when memory runs out, where the system
    would kill the process."""
    if available_device(validated(parse_yaml(config)).device) == "cpu":
        limit_memory()
    try:
        return *measured(config, steps=1, few=FEW, part=part), sum(os.times()[:4])
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


def measured(text: str, *, steps: int = PROBE_STEPS, few: int | None = None, part: int = 1) -> tuple[float, float]:
    """Seconds that a run with this config (YAML) will take, and the peak of its memory in MB.

    Time two tasks with a few steps per phase, then scale by images × epochs of the whole run. All later tasks count
    like the second one; statistics count as measured, and evaluation by the number of test images. `few` are the images
    per class, by default enough for the steps. `part` divides the batch; memory is then extrapolated.
    """
    config = validated(parse_yaml(text))
    whole = experiment.Experiment(config)
    tasks = range(len(whole.scenario))
    images, tests = [whole.task_info(task).images for task in tasks], [_tests(whole, task) for task in tasks]
    classes = max(whole.scenario.task_sizes)
    del whole
    epochs = 1 if few is not None and available_device(config.device) == "cpu" else 2  # on a GPU the first warms up
    short = partial(_Short, config, classes, steps=steps, few=few, epochs=epochs)
    least = max(short(LEAST).summary.peak_memory_mb) if part > 1 else 0.0  # before the larger: a peak does not fall
    probe = short(part)
    memory = max(probe.summary.peak_memory_mb)
    if part > 1:
        memory += (memory - least) * (1 - 1 / part) / (1 / part - 1 / LEAST)
    last = probe.summary.tasks - 1
    began = time.perf_counter()
    probe.experiment.evaluate(last)
    per_test = (time.perf_counter() - began) / max(_tests(probe.experiment, last), 1)
    total = 0.0
    for task in tasks:
        like = min(task, last)
        phases = [phase for phase in probe.phases.values() if phase.task == like]
        total += images[task] * sum(phase.epochs * phase.seconds[-1] / phase.images for phase in phases)
        other = probe.summary.seconds[like] - sum(sum(phase.seconds) for phase in phases)
        total += max(other - per_test * _tests(probe.experiment, like), 0.0) + per_test * tests[task]
    return total, memory


@dataclass
class _TimedPhase:
    task: int
    epochs: int
    """In the whole run."""
    images: int
    """Per epoch of the short run."""
    seconds: list[float] = field(default_factory=list)
    """Of its epochs."""


class _Short:
    """A run of two tasks with a few steps per epoch."""

    def __init__(self, config: RunConfig, classes: int, part: int, *, steps: int, few: int | None, epochs: int) -> None:
        """With as many test images as training images per class and task."""
        config = shortened(config, classes, steps=steps, few=few, part=part)
        self.experiment = experiment.Experiment(config)
        scenario, tests = self.experiment.scenario, self.experiment.scenario.source.test
        groups = tests.labels + scenario.source.classes * scenario.tasks(tests).clamp_min(0)  # a class in each domain
        rank = rank_in_class(groups, torch.bincount(groups))
        kept = torch.nonzero(rank < (config.data.max_per_class or 1)).squeeze(1)
        self.experiment.scenario = scenario.with_tests(kept)
        self.phases: dict[tuple[int, str], _TimedPhase] = {}
        method = self.experiment.method
        method.phases = partial(self._short_phases, method.phases, steps, epochs)  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as name:
            folder = RunFolder(Path(name))
            folder.create(config.to_yaml())
            self.summary = self.experiment.run(folder.path, ())
            for event in folder.read_events():
                if isinstance(event, Epoch):
                    self.phases[event.task, event.phase].seconds.append(event.seconds)

    def _short_phases(
        self, phases: Callable[[TaskInfo], list[Phase]], steps: int, epochs: int, task: TaskInfo
    ) -> list[Phase]:
        """The method's phases with a few epochs and steps."""
        found = phases(task)
        for phase in found:
            images = steps * phase.loaded
            self.phases[task.index, phase.name] = _TimedPhase(task.index, phase.stage.epochs, images)
            changes = {"epochs": min(epochs, phase.stage.epochs), "warmup": 0.0}
            phase.stage = phase.stage.model_copy(update=changes)
            phase.order = _repeated(phase.order or shuffled, images)
        return found


def _repeated(order: Order, images: int) -> Order:
    """The same order, repeated or cut so that it visits a number of images."""

    def repeated(labels: Tensor, draws: torch.Generator) -> Tensor:
        visited = order(labels, draws)
        return visited.repeat(-(-images // max(len(visited), 1)))[:images]

    return repeated


def _tests(of: experiment.Experiment, task: int) -> int:
    """How many test images are scored after a task."""
    return len(of.scenario.members(of.scenario.source.test, 0, task)[0])


def shortened(
    config: RunConfig, classes: int, *, steps: int = PROBE_STEPS, few: int | None = None, part: int = 1
) -> RunConfig:
    """The same run with two tasks, few images, a `part`-th of the batch and of the bottleneck, which methods with
    covariances need to be smaller than the batch."""
    values = config.model_dump(mode="json")
    if config.backbone.bottleneck is not None:
        values["backbone"]["bottleneck"] = max(config.backbone.bottleneck // part, 1)
    stages = [values["optimisation"][stage] for stage in ("first", "next")]
    for stage in stages:
        stage["batch_size"] = max(stage["batch_size"] // part, 2)
    few = few or -(-steps * max(stage["batch_size"] for stage in stages) // classes)
    if config.data.evaluate_on != "test":
        few = max(few, math.ceil(1 / config.data.val_fraction))
    values["data"]["max_per_class"] = min(few, config.data.max_per_class or few)
    values["scenario"]["stop_after"] = min(2, config.scenario.stop_after or 2)
    return validated({**values, "diagnostics": False, "checkpoint_every": None})
