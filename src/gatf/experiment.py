"""One run: scenario × method × seed → train, evaluate, checkpoint, log, resume."""

import json
import platform
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gatf import ranks
from gatf.config import RunConfig, read_recipe, validated
from gatf.data.augment import Pipeline, parse_augmentation
from gatf.data.loader import EVALUATION_BATCH, TaskData, TaskInfo, split_pipeline
from gatf.data.scenario import Scenario, build_scenario
from gatf.data.sources import open_source
from gatf.errors import UserError
from gatf.evaluation.metrics import (
    Evaluation,
    choose,
    evaluate,
    forgetting,
    incremental_accuracy,
    last_accuracy,
    task_weighted,
)
from gatf.evaluation.observer import DiagnosticsData, DiagnosticsObserver
from gatf.files import write_text
from gatf.methods import Method, method_class
from gatf.nets import build_backbone, wrap_backbone
from gatf.nets.folding import check_folding
from gatf.nets.resnet import ResNet18
from gatf.nets.shared_norm import share_batch_norm
from gatf.nets.small import SmallNet
from gatf.seeding import keyed_init
from gatf.training import checkpoint
from gatf.training.events import JsonLines, Listener
from gatf.training.loop import Interrupted, Position
from gatf.training.processes import AgreedStop, losing_a_process, open_fabric
from gatf.training.task import Resumed, train_task

CONFIG, SUMMARY, EVENTS, MODEL, CHECKPOINTS, DIAGNOSTICS = (
    "config.yaml", "summary.json", "metrics.jsonl", "model.safetensors", "checkpoints", "diagnostics",
)  # fmt: skip


@dataclass
class Progress:
    """What is known of the finished tasks."""

    accuracy_matrix: list[list[float]] = field(default_factory=list)
    accuracy_seen: list[float] = field(default_factory=list)
    task_aware: list[list[float]] = field(default_factory=list)
    by_class: list[list[float]] = field(default_factory=list)
    old_to_new: list[float | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peak_memory_mb: list[float] = field(default_factory=list)
    seconds_of_task: float = 0.0
    """Spent on the task in hand by earlier processes."""

    def add(self, result: Evaluation, seconds: float, memory: float) -> None:
        self.accuracy_matrix.append(result.by_task)
        self.accuracy_seen.append(result.seen)
        self.task_aware.append(result.task_aware)
        self.by_class.append(result.by_class)
        self.old_to_new.append(result.old_to_new)
        self.seconds.append(round(seconds, 3))
        self.peak_memory_mb.append(round(memory, 1))
        self.seconds_of_task = 0.0


def start(
    config: RunConfig, folder: Path, listeners: tuple[Listener, ...] = (), *, backbone: nn.Module | None = None
) -> dict[str, Any]:
    """Begin a run in a new folder; returns its summary. `backbone` takes the place of the one the config names."""
    experiment = Experiment(config, backbone)  # what can be wrong with the config is found before the folder is made
    if ranks.is_first() and (folder / CONFIG).exists():
        raise UserError(f"{folder} already holds a run; go on with --resume {folder} or choose another --out")
    try:
        if ranks.is_first():
            (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            write_text(folder / CONFIG, config.to_yaml())
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}); choose another --out") from None
    return experiment.run(folder, listeners)


def resume(folder: Path, listeners: tuple[Listener, ...] = (), *, backbone: nn.Module | None = None) -> dict[str, Any]:
    """Go on with an interrupted run, or return the summary of a finished one; `backbone` as it was given to `start`."""
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} holds no run to resume (it has no {CONFIG})")
    if (folder / SUMMARY).is_file():
        summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        return summary
    config = validated(read_recipe(str(folder / CONFIG)))
    return Experiment(config, backbone).run(folder, listeners)


class Experiment:
    """A config brought to life: data, scenario, method and the engine that trains it."""

    def __init__(self, config: RunConfig, backbone: nn.Module | None = None) -> None:
        self.config = config
        source = open_source(config.data)
        self.scenario: Scenario = build_scenario(source, config.scenario, config.order_seed)
        steps, crop = parse_augmentation(config.data.augment), config.data.test_crop
        self.pipeline = Pipeline(steps, source.mean, source.std, crop).check(source.image_shape)
        split_pipeline(source.train, self.pipeline)  # raises if these images cannot be augmented that way
        self.fabric = open_fabric(config.device, config.precision)
        self.warnings = list(source.warnings)
        self.method: Method = build_method(config, source.image_shape, backbone, self.warnings).to(self.fabric.device)
        if config.compile:
            compile_backbone(self.method.backbone, self.fabric.device)
        if ranks.world() > 1:
            self.method.backbone = share_batch_norm(self.method.backbone, self.fabric.device)

    def task_info(self, task: int) -> TaskInfo:
        return self._info(task, len(self._members(task)[0]))

    def _info(self, task: int, images: int) -> TaskInfo:
        return TaskInfo(task, self.scenario.offsets[task], self.scenario.task_sizes[task], images)

    def _members(self, task: int) -> tuple[Tensor, Tensor]:
        """Numbers and labels of a task's training images; of all tasks so far for a method that may keep them."""
        first = task if self.method.exemplar_free else 0
        return self.scenario.members(self.scenario.source.train, first, task)

    def task_data(self, task: int) -> TaskData:
        """The task's training images; of all tasks so far for a method that is not exemplar-free."""
        members = self._members(task)
        return TaskData(
            self._info(task, len(members[0])), self.scenario.source.train, members,
            pipeline=self.pipeline, seed=self.config.seed, device=self.fabric.device,
        )  # fmt: skip

    def run(self, folder: Path, listeners: tuple[Listener, ...]) -> dict[str, Any]:
        """Train all tasks; of several processes the first one writes and tells."""
        events = JsonLines(folder / EVENTS if ranks.is_first() else None)
        listeners = listeners if ranks.is_first() else ()
        if self.config.diagnostics and ranks.is_first():
            private = DiagnosticsData(self.scenario, self.pipeline, self.fabric.device)
            listeners = (*listeners, DiagnosticsObserver(self.method, private, folder / DIAGNOSTICS, folder / EVENTS))
        session = _Session(self, folder, events, listeners)
        with stop_signals() as stopping:
            session.stop = stopping if ranks.world() == 1 else AgreedStop(stopping, self.fabric.device)
            try:
                with losing_a_process(folder):
                    return session.run()
            finally:
                events.close()

    @torch.inference_mode()
    def evaluate(self, task: int) -> Evaluation:
        """How the method does on the test images of tasks 0..task."""
        tasks = self.scenario.task_of_class()
        tasks = tasks[tasks <= task]
        device = self.fabric.device
        chosen = [choose(scores, own.to(device), tasks.to(device)) for scores, own in self._scored(task)]
        _, labels = self.scenario.members(self.scenario.source.test, 0, task)
        return evaluate(ranks.gather_rows(torch.cat(chosen)).cpu(), labels, tasks)

    @torch.inference_mode()
    def test_scores(self, task: int) -> tuple[Tensor, Tensor]:
        """Scores [N, classes seen] and labels [N] of the test images of tasks 0..task, on the CPU."""
        scores = torch.cat([scores for scores, _ in self._scored(task)])
        _, labels = self.scenario.members(self.scenario.source.test, 0, task)
        return ranks.gather_rows(scores).cpu(), labels

    def _scored(self, task: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Scores and labels of this process's part of the test images, a batch at a time."""
        self.method.eval()
        images = self.scenario.source.test
        members, labels = (part[ranks.part(len(part))] for part in self.scenario.members(images, 0, task))
        batches = members.split(EVALUATION_BATCH)
        with self.method.frozen():
            for pixels, wanted in zip(images.stream(batches), labels.split(EVALUATION_BATCH), strict=True):
                yield self.method.scores(self.pipeline(pixels.to(self.fabric.device), None)), wanted


class _Session:
    """One process's part of a run."""

    def __init__(
        self, experiment: Experiment, folder: Path, events: JsonLines, listeners: tuple[Listener, ...]
    ) -> None:
        self.experiment, self.folder, self.events = experiment, folder, events
        self.method, self.config = experiment.method, experiment.config
        self.listeners: tuple[Listener, ...] = (events, *listeners)
        self.progress = Progress()
        self.stop: Callable[[], bool] = lambda: False
        self._clock = time.monotonic()

    def tell(self, kind: str, /, **fields: Any) -> None:
        for listener in self.listeners:
            listener(kind, **fields)

    def run(self) -> dict[str, Any]:
        tasks = len(self.experiment.scenario)
        tensors, meta = self._latest()
        first, phase, position = self._restore(tensors, meta)
        self.tell("run_start", tasks=tasks, method=self.config.method.name, resumed_at=first if meta else None)
        for sentence in self.experiment.warnings:
            self.tell("warning", text=sentence)
        for task in range(first, tasks):
            self._learn(task, phase if task == first else 0, position if task == first else None, tensors)
            if self.stop() and task + 1 < tasks:
                raise Interrupted
        summary = self.summary()
        if ranks.is_first():
            meta = {"config": self.config.model_dump(mode="json")}
            checkpoint.save(self.folder / MODEL, self.method.state_dict(), meta)
            write_text(self.folder / SUMMARY, json.dumps(summary, indent=2))
        self.tell("run", **{name: summary[name] for name in ("a_last", "a_inc", "forgetting", "total_seconds")})
        return summary

    def _learn(self, task: int, phase: int, position: Position | None, tensors: dict[str, Tensor]) -> None:
        """One task: begin, phases, end, evaluation, checkpoint."""
        self._clock = time.monotonic()
        method, data = self.method, self.experiment.task_data(task)
        train_task(
            method, data, self.experiment.fabric,
            listener=self._with_task(task),
            resumed=Resumed(phase, position, tensors) if position is not None else None,
            save=partial(self._save, task),
            stop=self.stop,
            save_every=self.config.checkpoint_every,
        )  # fmt: skip
        self.tell("trained", task=task)
        method.eval()
        method.end_task(data)
        ranks.take_from_first(method.state_dict().values())
        data.close()
        self._drain_notices(task)
        result = self.experiment.evaluate(task)
        self.progress.add(result, self._seconds_of_task(), peak_memory_mb(self.experiment.fabric.device))
        self.tell("task", task=task, seen=result.seen, accuracies=result.by_task, seconds=self.progress.seconds[-1])
        self._save(task + 1, 0, Position(), None)

    def _with_task(self, task: int) -> Listener:
        def tell(kind: str, /, **fields: Any) -> None:
            self._drain_notices(task)
            self.tell(kind, task=task, **fields)

        return tell

    def _drain_notices(self, task: int) -> None:
        for notice in self.method.notices:
            self.tell("notice", name=notice.name, task=task, **notice.values)
        self.method.notices.clear()

    def _seconds_of_task(self) -> float:
        return self.progress.seconds_of_task + time.monotonic() - self._clock

    def _save(self, task: int, phase: int, position: Position, optimiser: torch.optim.Optimizer | None) -> None:
        """Write a checkpoint named by where the run stands, then drop all but the newest two."""
        if not ranks.is_first():
            return
        tensors = {f"method.{name}": value for name, value in self.method.state_dict().items()}
        tensors |= {f"sums.{name}": value for name, value in position.sums.items()}
        if optimiser is not None:
            tensors |= checkpoint.flatten_optimiser(optimiser)
        progress = asdict(self.progress)
        if optimiser is not None:
            progress["seconds_of_task"] = self._seconds_of_task()
        meta = {
            "task": task, "phase": phase, "epoch": position.epoch, "step": position.step,
            "within_task": optimiser is not None, "progress": progress, "events": self.events.position(),
        }  # fmt: skip
        name = f"task{task:03d}-phase{phase}-epoch{position.epoch:04d}-step{position.step:05d}.safetensors"
        checkpoint.save(self.folder / CHECKPOINTS / name, tensors, meta)
        for old in sorted((self.folder / CHECKPOINTS).glob("*.safetensors"))[:-2]:
            old.unlink()

    def _latest(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        newest = ranks.from_first(max((self.folder / CHECKPOINTS).glob("*.safetensors"), default=None))
        return checkpoint.load(newest) if newest is not None else ({}, {})

    def _restore(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> tuple[int, int, Position | None]:
        """Put the method where the checkpoint was: the task, the phase and the position in it."""
        self.events.truncate(meta.get("events", 0))
        if not meta:
            return 0, 0, None
        self.progress = Progress(**meta["progress"])
        if meta["within_task"]:
            self.method.begin_task(self.experiment.task_info(meta["task"]))
        self.method.load_state_dict(_with_prefix(tensors, "method."))
        if not meta["within_task"]:
            return meta["task"], 0, None
        return meta["task"], meta["phase"], Position(meta["epoch"], meta["step"], _with_prefix(tensors, "sums."))

    def summary(self) -> dict[str, Any]:
        progress, scenario = self.progress, self.experiment.scenario
        by_task = task_weighted(progress.accuracy_matrix)
        return {
            "method": self.config.method.name,
            "dataset": self.config.data.name,
            "tasks": len(scenario),
            "seed": self.config.seed,
            "class_order": list(scenario.order),
            "class_names": list(scenario.class_names),
            "a_last": last_accuracy(progress.accuracy_seen),
            "a_inc": incremental_accuracy(progress.accuracy_seen),
            "a_last_task_weighted": last_accuracy(by_task),
            "a_inc_task_weighted": incremental_accuracy(by_task),
            "forgetting": forgetting(progress.accuracy_matrix),
            "accuracy_matrix": progress.accuracy_matrix,
            "accuracy_seen": progress.accuracy_seen,
            "task_aware": progress.task_aware,
            "accuracy_by_class": progress.by_class,
            "old_to_new": progress.old_to_new,
            "seconds": progress.seconds,
            "total_seconds": round(sum(progress.seconds), 3),
            "peak_memory_mb": progress.peak_memory_mb,
            "bytes_per_class": self.method.bytes_per_class(),
            "versions": versions(),
        }


def build_method(
    config: RunConfig, image_shape: tuple[int, int, int], backbone: nn.Module | None = None,
    notes: list[str] | None = None,
) -> Method:  # fmt: skip
    """The method with the given backbone, or the one the config names, its weights drawn from the seed or pretrained.

    What is worth saying about pretrained weights is added to `notes`.
    """
    if backbone is not None:
        backbone = wrap_backbone(backbone, image_shape)
    else:
        with keyed_init(config.seed, "init", "backbone"):
            backbone = build_backbone(config.backbone, image_shape[0], notes)
    backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if not isinstance(backbone, ResNet18 | SmallNet):
        check_folding(backbone, image_shape)
    return method_class(config.method.name)(config.method, backbone, config.optimisation, config.seed)


def compile_backbone(backbone: nn.Module, device: torch.device) -> None:
    """Have the backbone compiled when training first calls it, or say why it cannot be.

    In eval mode it runs as it is: batches of other sizes and modes would each be compiled again.
    """
    if ranks.world() > 1:
        raise UserError("compile=true is for runs of one process; leave it out with several")
    if device.type == "cpu" and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise UserError("compile=true needs a C++ compiler (g++ or clang++) on the PATH")
    plain = backbone._call_impl
    compiled = torch.compile(plain)
    backbone._compiled_call_impl = lambda images: compiled(images) if backbone.training else plain(images)


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C and SIGTERM ask for a stop after the step in hand; a second one ends the process at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    try:
        previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: signals are the caller's
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def peak_memory_mb(device: torch.device) -> float:
    """Largest memory of the process so far, or allocated on the GPU since the last call."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / 2**20
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / (2**20 if sys.platform == "darwin" else 2**10)


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in ("gatf", "torch", "numpy", "lightning-fabric")},
    }
