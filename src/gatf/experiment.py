"""One run: scenario × method × seed → train, evaluate, checkpoint, log, resume."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from gatf import distributed
from gatf.config import RunConfig, read_recipe, validated, with_overrides
from gatf.data.features import SourceFeatures, cached_features, network_identity
from gatf.data.listing import some
from gatf.data.loader import EVALUATION_BATCH, TaskData, TaskInfo, split_pipeline
from gatf.data.preprocessing import Preprocessing
from gatf.data.scenario import Scenario, build_scenario
from gatf.data.sources import limit_training, open_source
from gatf.errors import CannotWrite, Diverged, UserError
from gatf.evaluation import metrics
from gatf.evaluation.metrics import Evaluation
from gatf.evaluation.observer import DiagnosticsData, DiagnosticsObserver
from gatf.geometry import spd
from gatf.io import events
from gatf.io.events import Event, JsonLines, Listener, reason
from gatf.io.provenance import machine, peak_memory_mb, versions
from gatf.io.run_folder import CONFIG, RunFolder, Summary
from gatf.io.signals import stop_signals
from gatf.methods import METHODS, Method
from gatf.methods.parts.features import FeatureMethod
from gatf.model import file as model_file
from gatf.model.calibration import NO_CALIBRATION
from gatf.model.novelty import NO_NOVELTY
from gatf.model.record import UpdateRecord, remembered
from gatf.model.state import Model
from gatf.network_reuse import NetworkSource
from gatf.session import TRAINED, Session, under, whole_number
from gatf.settings import PYTHON
from gatf.training import checkpoint
from gatf.training.context import RunContext
from gatf.training.loop import Interrupted, Position
from gatf.training.processes import AgreedStop, losing_a_process
from gatf.training.task import Resumed

SUMMARISED = (
    "accuracy_matrix", "accuracy_seen", "task_aware", "old_to_new", "seconds", "peak_memory_mb", "repaired",
    "config_changes", "networks_from", "networks_of",
)  # fmt: skip
"""Fields that the summary takes from the progress."""
UNCALIBRATED = "probabilities are not calibrated, which gatf run does not do; an update with gatf learn does"


@dataclass
class RunProgress:
    """Results of the finished tasks, and time spent on the current one; stored in checkpoints."""

    accuracy_matrix: list[list[float]] = field(default_factory=list)
    accuracy_seen: list[float] = field(default_factory=list)
    task_aware: list[list[float]] = field(default_factory=list)
    by_class: list[list[float]] = field(default_factory=list)
    old_to_new: list[float | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    peak_memory_mb: list[float] = field(default_factory=list)
    repaired: list[int] = field(default_factory=list)
    config_changes: list[str] = field(default_factory=list)
    """Settings that were changed on purpose when the run was resumed."""
    networks_from: str | None = None
    """The run whose networks were reused."""
    networks_of: list[int] = field(default_factory=list)
    """Tasks whose networks were reused."""
    seconds_of_task: float = 0.0
    """Spent on the current task by earlier processes."""
    processor_seconds_of_task: float = 0.0
    """Processor time, likewise."""
    repaired_of_task: int = 0
    """Matrices of the current task that earlier processes repaired."""
    threads: int = 0
    """Of torch. The last bits depend on it, so a resumed run uses as many."""

    def add(self, result: Evaluation, seconds: float, processor_seconds: float, memory: float, repaired: int) -> None:
        self.accuracy_matrix.append(result.by_task)
        self.accuracy_seen.append(result.seen)
        self.task_aware.append(result.task_aware)
        self.by_class.append(result.by_class)
        self.old_to_new.append(result.old_to_new)
        self.seconds.append(round(seconds, 3))
        self.processor_seconds.append(round(processor_seconds, 3))
        self.peak_memory_mb.append(round(memory, 1))
        self.repaired.append(repaired)
        self.seconds_of_task, self.processor_seconds_of_task, self.repaired_of_task = 0.0, 0.0, 0


def read_progress(meta: Mapping[str, Any]) -> RunProgress:
    """The progress stored in a checkpoint; a `UserError` if it is incomplete."""
    try:
        progress = TypeAdapter(RunProgress).validate_python(meta.get("progress"))
    except ValueError as error:
        raise UserError(f"the checkpoint has no results of the finished tasks: {reason(error)}") from None
    lists = (progress.accuracy_seen, progress.task_aware, progress.by_class, progress.old_to_new, progress.seconds)
    rows = [len(row) for row in progress.accuracy_matrix]
    if {len(each) for each in lists} != {len(rows)} or rows != list(range(1, len(rows) + 1)):
        raise UserError("the checkpoint is inconsistent: its results are of different numbers of tasks")
    return progress


def start(
    config: RunConfig, folder: Path, listeners: tuple[Listener, ...] = (), *, backbone: nn.Module | None = None,
    networks_from: Path | None = None, scenario: Scenario | None = None,
) -> Summary:  # fmt: skip
    """Begin a run in a new folder; returns its summary. `backbone` replaces the one that the config names, `scenario`
    the data and tasks; `networks_from` is the folder of a run whose networks are reused instead of training the same
    ones.

    >>> short = {"scenario.stop_after": 2, "optimisation.first.epochs": 1}
    >>> config = gatf.load_config("digits", method="ncm", overrides=short)
    >>> summary = gatf.run(config, Path("runs/ncm"))
    >>> len(summary.accuracy_matrix), 0 <= summary.a_last <= 100
    (2, True)
    """
    network_source = None if networks_from is None else NetworkSource(networks_from, config)
    experiment = Experiment(config, backbone, scenario)  # errors in the config are found before the folder is made
    place = RunFolder(folder)
    with _alone(place):
        if distributed.is_first():
            place.refuse_if_begun()
            place.create(experiment.config.to_yaml())
        return experiment.run(folder, listeners, network_source=network_source)


def resume(
    folder: Path, listeners: tuple[Listener, ...] = (), *, backbone: nn.Module | None = None,
    force_config: bool = False, overrides: Mapping[str, Any] | None = None, networks_from: Path | None = None,
    scenario: Scenario | None = None,
) -> Summary:  # fmt: skip
    """Continue an interrupted run, or return the summary of a finished one; `backbone` and `scenario` as for `start`.
    Without `networks_from` the remaining tasks are trained.

    A checkpoint of another config than the folder's is refused unless `force_config` is given; then the run records the
    changes. `overrides` (dotted paths) change the folder's config first.

    >>> short = {"scenario.stop_after": 1, "optimisation.first.epochs": 1}
    >>> config = gatf.load_config("digits", method="ncm", overrides=short)
    >>> summary = gatf.run(config, Path("runs/begun"))
    >>> gatf.resume(Path("runs/begun")) == summary  # it is finished
    True
    """
    place = RunFolder(folder)
    if place.finished:
        return place.read_summary()
    config = _config_of(place, overrides)
    network_source = None if networks_from is None else NetworkSource(networks_from, config)
    experiment = Experiment(config, backbone, scenario)
    with _alone(place):
        if overrides and distributed.is_first():
            place.create(experiment.config.to_yaml())
        return experiment.run(folder, listeners, force_config=force_config, network_source=network_source)


def _alone(place: RunFolder) -> AbstractContextManager[None]:
    """The lock of the run folder, taken by the first of the processes that share a run."""
    return place.writing() if distributed.is_first() else nullcontext()


def reopen(folder: Path, overrides: Mapping[str, Any] | None = None) -> "Experiment":
    """The experiment of a run folder, for analysis: `Experiment.go_to` restores its method as it was after a task.
    `overrides` (dotted paths) are for what may differ from where it ran: `device`, `data.root`."""
    return Experiment(_config_of(RunFolder(folder), overrides))


def _config_of(place: RunFolder, overrides: Mapping[str, Any] | None) -> RunConfig:
    if not place.begun:
        raise UserError(f"{place.path} holds no run (it has no {CONFIG})")
    return validated(with_overrides(read_recipe(str(place.config)), overrides))


def _with_scenario(config: RunConfig, scenario: Scenario) -> RunConfig:
    """The config with the classes and tasks of a scenario from Python; its data has no name that can be opened."""
    if scenario.train_tasks is not None:
        raise UserError(
            "a scenario from Python with returning classes or domains cannot be run: set scenario.returning"
        )
    name = PYTHON + scenario.source.name.removeprefix(PYTHON)
    tasks = config.scenario.model_copy(update={"order": scenario.order, "task_sizes": scenario.task_sizes})
    return config.model_copy(update={"data": config.data.model_copy(update={"name": name}), "scenario": tasks})


class Experiment:
    """A scenario and the session that learns it, built from a config."""

    def __init__(self, config: RunConfig, backbone: nn.Module | None = None, scenario: Scenario | None = None) -> None:
        if scenario is not None:
            config = _with_scenario(config, scenario)
        self.config = config
        self._network_is_named = backbone is None
        source = open_source(config.data) if scenario is None else limit_training(scenario.source, config.data)
        scenario = build_scenario(source, config.scenario, config.order_seed)
        self.session = Session(config, Preprocessing(source.image_shape, source.mean, source.std), backbone=backbone)
        if scenario.train_tasks is not None and not self.method.revisits:
            raise UserError(
                f"method '{config.method.name}' cannot learn new images of known classes, which scenario.returning and "
                f"scenario.domains bring; use {some([name for name in METHODS if METHODS[name].revisits], most=9)}"
            )
        self.scenario: Scenario = scenario.with_central_share(self.session.preprocessing.central_share)
        split_pipeline(source.train, self.session.pipeline)  # raises if these images cannot be augmented that way
        self.warnings = [*source.warnings, *self.session.warnings]

    @property
    def method(self) -> Method:
        return self.session.method

    def go_to(self, folder: Path, task: int) -> None:
        """Restore the method from the checkpoint that the run in this folder wrote after a task."""
        tensors, meta = checkpoint.load(RunFolder(folder).after_task(task))
        self.session.restore(tensors, meta, None)
        self.method.eval()

    @cached_property
    def features(self) -> SourceFeatures | None:
        """Cached features of all images if no task trains the network, else None. Also None for a network given from
        Python, which has no stable identity, and for one whose bottleneck is set when the first task begins."""
        method, config = self.method, self.config
        fixed = isinstance(method, FeatureMethod) and method.network_is_fixed
        if not fixed or not self._network_is_named or config.backbone.bottleneck is not None or distributed.world() > 1:
            return None
        identity = network_identity(str(method.backbone), method.backbone.state_dict())
        net = method.frozen_copy(method.backbone)
        return cached_features(self.scenario, net, identity, self.session.pipeline, self.session.device)

    def task_info(self, task: int) -> TaskInfo:
        return self.scenario.task_info(task, all_so_far=not self.method.exemplar_free)

    def task_data(self, task: int) -> TaskData:
        """The task's training images; those of all seen tasks for a method that is not exemplar-free."""
        return self.scenario.task_data(
            task, self.session.pipeline, seed=self.config.seed, device=self.session.device,
            all_so_far=not self.method.exemplar_free, features=None if self.features is None else self.features.train,
        )  # fmt: skip

    def bytes_per_class(self) -> int:
        """Stored bytes per class; for a method that is not exemplar-free including its images, one byte per value."""
        kept = self.method.bytes_per_class()
        if self.method.exemplar_free:
            return kept
        images, _ = self.scenario.members(self.scenario.source.train, 0, len(self.scenario) - 1)
        classes = sum(self.scenario.task_sizes)
        return kept + round(len(images) * math.prod(self.scenario.source.image_shape) / classes)

    def run(
        self, folder: Path, listeners: tuple[Listener, ...], *, force_config: bool = False,
        network_source: NetworkSource | None = None,
    ) -> Summary:  # fmt: skip
        """Learn all tasks; of several processes the first one writes files and reports events. `force_config` as in
        `resume`."""
        place = RunFolder(folder)
        written = JsonLines(place.events if distributed.is_first() else None)
        listeners = listeners if distributed.is_first() else ()
        if self.config.diagnostics and distributed.is_first():
            private = DiagnosticsData(self.scenario, self.session.pipeline, self.session.device)
            listeners = (*listeners, DiagnosticsObserver(self.method, private, place))
        with stop_signals() as stopping:
            stop = stopping if distributed.world() == 1 else AgreedStop(stopping, self.session.device)
            try:
                with losing_a_process(folder), self.session.threads():
                    return _Run(self, place, written, listeners, stop, network_source).run(force_config)
            except Diverged as error:
                raise error.offer(folder) from error
            finally:
                written.close()

    @torch.inference_mode()
    def evaluate(self, task: int) -> Evaluation:
        """Accuracies on the test images of tasks 0..task."""
        tasks = self.scenario.task_of_class()
        tasks = tasks[tasks <= task].to(self.session.device)
        members, labels = self.scenario.members(self.scenario.source.test, 0, task)
        own = distributed.part(len(members))
        wanted = labels[own].to(self.session.device)
        chosen, done = [], 0
        finite = torch.ones((), dtype=torch.bool, device=self.session.device)
        for scores in self._scored(members[own]):
            finite &= scores.isfinite().all()
            chosen.append(metrics.choose(scores, wanted[done : done + len(scores)], tasks))
            done += len(scores)
        if distributed.any_of(not finite, self.session.device):
            raise self.session.diverged(task, "evaluation", "scores not finite")
        of_image = self.scenario.tasks(self.scenario.source.test)[members]
        return metrics.evaluate(distributed.gather_rows(torch.cat(chosen)).cpu(), labels, tasks.cpu(), of_image)

    @torch.inference_mode()
    def accuracy_after_learning(self, task: int) -> float:
        """Accuracy in percent on the test images of the newest task, predicting among all seen classes."""
        members, labels = self.scenario.members(self.scenario.source.test, task, task)
        chosen = torch.cat([scores.argmax(dim=1).cpu() for scores in self._scored(members)])
        return 100 * float((chosen == labels).double().mean())

    @torch.inference_mode()
    def test_scores(self, task: int) -> tuple[Tensor, Tensor]:
        """Scores [N, classes seen] and labels [N] of the test images of tasks 0..task, on the CPU."""
        members, labels = self.scenario.members(self.scenario.source.test, 0, task)
        own = members[distributed.part(len(members))]
        scores = torch.cat(list(self._scored(own)))
        return distributed.gather_rows(scores).cpu(), labels

    def _scored(self, members: Tensor) -> Iterator[Tensor]:
        """Scores [B, classes] of some test images, a batch at a time."""
        if self.features is None or not isinstance(self.method, FeatureMethod):
            yield from self.session.scored(self.scenario.source.test, members)
            return
        for rows in members.split(EVALUATION_BATCH):
            yield self.method.eval().feature_scores(self.features.test[rows].to(self.session.device))


@dataclass
class _Found:
    """A checkpoint to resume from."""

    path: Path
    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    changes: list[str] = field(default_factory=list)
    """Settings that differ from the run's config."""


class _Run:
    """One process's part of a run: the loop over tasks, checkpoints and events."""

    def __init__(
        self, experiment: Experiment, folder: RunFolder, written: JsonLines, listeners: tuple[Listener, ...],
        stop: Callable[[], bool], network_source: NetworkSource | None = None,
    ) -> None:  # fmt: skip
        self.experiment, self.folder, self.written = experiment, folder, written
        self.stop, self.network_source = stop, network_source
        self.session, self.method, self.config = experiment.session, experiment.method, experiment.config
        self.listeners: tuple[Listener, ...] = (written, *listeners)
        self.progress = RunProgress()
        self._clock, self._processor_clock = time.monotonic(), time.process_time()
        self._ladder = spd.Ladder()
        self._trained: dict[str, Tensor] = {}
        """Weights trained in the finished phases of the current task, if networks are to be kept."""

    def emit(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    def run(self, force_config: bool) -> Summary:
        tasks = len(self.experiment.scenario)
        found = self._find(force_config)
        first, resumed = self._restore(found)
        self.progress.threads = torch.get_num_threads()
        method = self.config.method.name
        stages = [self.config.optimisation.stage(task) for task in range(tasks)]
        steps = tuple(
            stage.epochs * -(-self.experiment.task_info(task).images // stage.batch_size)
            for task, stage in enumerate(stages)
        )
        resumed_at = None if found is None else first
        self.emit(events.RunStart(tasks=tasks, method=method, resumed_at=resumed_at, steps=steps))
        for sentence in self.experiment.warnings:
            self.emit(events.WarningEvent(text=sentence))
        if found is not None and found.changes:
            self._record_changes(found)
        source = self.network_source
        if source is not None and source.why_first_alone is not None and first == 0 and resumed is None:
            text = f"only the first task's network of {source.name} is reused; later ones would differ "
            self.emit(events.WarningEvent(text=f"{text}({source.why_first_alone})"))
        for task in range(first, tasks):
            self._learn(task, resumed if task == first else None)
            if self.stop() and task + 1 < tasks:
                raise Interrupted
        summary = self.summary()
        if distributed.is_first():
            self.folder.prune_checkpoints(self._kept())  # left behind by a killed process
            self._write_model()
        finished = events.Run(
            a_last=summary.a_last, a_inc=summary.a_inc, forgetting=summary.forgetting,
            total_seconds=summary.total_seconds,
        )  # fmt: skip
        self.emit(finished)
        if distributed.is_first():
            self.folder.write_summary(summary)  # written last: it marks the run as finished
        return summary

    def _learn(self, task: int, resumed: Resumed | None) -> None:
        """One task: train and end it, evaluate, checkpoint."""
        self._clock, self._processor_clock = time.monotonic(), time.process_time()
        self._trained = {} if resumed is None else under(resumed.tensors, TRAINED)
        source = self.network_source
        reused = source is not None and task < source.tasks and resumed is None
        context = RunContext(
            partial(self._emit_after_notices, task), self.stop, save=partial(self._save, task),
            save_every=self.config.checkpoint_every,
            networks=partial(self._take, source) if source is not None and reused else None,
            trained=self._keep if self.config.keep_networks else None,
        )  # fmt: skip
        with spd.counting() as self._ladder:
            self.session.learn_task(self.experiment.task_data(task), context, resumed=resumed)
            self._emit_after_notices(task)
            result = self.experiment.evaluate(task)
        memory = peak_memory_mb(self.session.device)
        seconds, processor_seconds, repaired = self._spent().values()
        self.progress.add(result, seconds, processor_seconds, memory, repaired)
        if distributed.is_first():
            names = self.experiment.scenario.class_names
            pairs = result.predictions.tolist()
            self.folder.write_confusion((names[true], names[answer], count) for true, answer, count in pairs)
        rounded = self.progress.seconds[-1]
        self.emit(events.Task(task=task, seen=result.seen, accuracies=result.by_task, seconds=rounded))
        self._save(task + 1, 0, Position(), None)

    def _take(self, network_source: NetworkSource, task: int) -> dict[str, Tensor]:
        """The weights that another run trained in a task; the reuse is recorded."""
        self.progress.networks_from = network_source.name
        if task not in self.progress.networks_of:
            self.progress.networks_of.append(task)
        return network_source.trained(task)

    def _keep(self, trained: dict[str, Tensor]) -> None:
        self._trained |= trained

    def _write_model(self) -> None:
        """The finished classifier as a model file, which predicts and can learn further classes."""
        try:
            model_file.save(self._model(), self.folder.model)
        except CannotWrite:
            raise
        except UserError as error:
            self.emit(events.WarningEvent(text=f"no model file was written: {error}"))

    def _model(self) -> Model:
        scenario, tasks = self.experiment.scenario, range(len(self.experiment.scenario))
        stages = [self.config.optimisation.stage(task) for task in tasks]
        trained, tested = ([len(scenario.members(part, task, task)[0]) for task in tasks] for part in scenario.parts)
        labels = scenario.labels(scenario.source.train)
        records = [
            UpdateRecord(
                number=task, date=datetime.now(UTC).isoformat(timespec="seconds"),
                added=scenario.class_names[scenario.offsets[task] :][: scenario.task_sizes[task]],
                images=trained[task], held_out=tested[task], epochs=stages[task].epochs,
                seconds=self.progress.seconds[task], accuracy_new=self.progress.accuracy_matrix[task][task],
                temperature=1.0, bytes_per_class=self.method.bytes_per_class(),
                warnings=(UNCALIBRATED,) if task == tasks[-1] else (),
            )
            for task in tasks
        ]  # fmt: skip
        return Model(
            self.config, self.session.preprocessing, self.method.eval(), scenario.class_names,
            torch.bincount(labels[labels >= 0], minlength=len(scenario.order)), 1.0, NO_CALIBRATION,
            torch.zeros(0, dtype=torch.float64), NO_NOVELTY, remembered(tuple(records)),
        )  # fmt: skip

    def _emit_after_notices(self, task: int, *after: Event) -> None:
        notices = [events.Notice(task=task, name=each.name, values=each.values) for each in self.method.notices]
        self.method.notices.clear()
        for event in (*notices, *after):
            self.emit(event)

    def _spent(self) -> dict[str, Any]:
        """On the current task, with what earlier processes spent on it."""
        before = self.progress
        return {
            "seconds_of_task": before.seconds_of_task + time.monotonic() - self._clock,
            "processor_seconds_of_task": before.processor_seconds_of_task + time.process_time() - self._processor_clock,
            "repaired_of_task": before.repaired_of_task + self._ladder.used,
        }

    def _save(self, task: int, phase: int, position: Position, optimiser: torch.optim.Optimizer | None) -> None:
        """Write a checkpoint named by its position, then delete all but the newest two (and with `keep_networks`
        those after each task)."""
        if not distributed.is_first():
            return
        progress = vars(self.progress) | ({} if optimiser is None else self._spent())
        meta = {"task": task, "progress": progress, "events": self.written.position()}
        target = self.folder.checkpoint(task, phase, position.epoch, position.step)
        self.session.save(target, meta, phase=phase, position=position, optimiser=optimiser, trained=self._trained)
        self.folder.prune_checkpoints(self._kept())

    def _kept(self) -> set[Path]:
        """Checkpoints to keep beside the newest ones."""
        tasks = range(len(self.experiment.scenario.task_sizes)) if self.config.keep_networks else ()
        return {self.folder.after_task(done) for done in tasks}

    def _find(self, force_config: bool) -> _Found | None:
        """The newest checkpoint, if any; a `UserError` if its config differs and `force_config` is not given."""
        newest = distributed.from_first(next(reversed(self.folder.saved_checkpoints()), None))
        if newest is None:
            return None
        found = _Found(newest, *checkpoint.load(newest))
        found.changes = self.session.changes(found.meta)
        if found.changes and not force_config:
            raise UserError(
                f"{newest} was written with another config than {self.folder.config} has now: "
                f"{'; '.join(found.changes)}. "
                "Restore the config, or add --force-config to continue with the new one; the run records the change"
            )
        return found

    def _restore(self, found: _Found | None) -> tuple[int, Resumed | None]:
        """The task to continue with, and the position in it."""
        if found is None:
            self.written.truncate(0)
            return 0, None
        self.progress, task = read_progress(found.meta), whole_number(found.meta, "task")
        tasks = len(self.experiment.scenario)
        if task > tasks or len(self.progress.seconds) != task or (found.meta.get("within_task") and task == tasks):
            raise UserError(f"{found.path} is of a run with other tasks than the {tasks} of the config")
        within = self.experiment.task_info(task) if found.meta.get("within_task") else None
        resumed = self.session.restore(found.tensors, found.meta, within)
        self.written.truncate(whole_number(found.meta, "events"))
        if self.progress.threads and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(self.progress.threads)
        return task, resumed

    def _record_changes(self, found: _Found) -> None:
        """Report the changes and write them with the new config into the checkpoint."""
        self.progress.config_changes += found.changes
        self.emit(events.WarningEvent(text=f"the run continues with another config: {'; '.join(found.changes)}"))
        if distributed.is_first():
            now = {"progress": asdict(self.progress), "events": self.written.position()}
            checkpoint.save(found.path, found.tensors, {**found.meta, **now, **self.session.described()})

    def summary(self) -> Summary:
        progress, scenario = self.progress, self.experiment.scenario
        by_task = metrics.task_weighted(progress.accuracy_matrix)
        return Summary(
            method=self.config.method.name,
            dataset=self.config.data.name,
            tasks=len(scenario),
            seed=self.config.seed,
            class_order=list(scenario.order),
            class_names=list(scenario.class_names),
            a_last=metrics.last_accuracy(progress.accuracy_seen),
            a_inc=metrics.incremental_accuracy(progress.accuracy_seen),
            a_last_task_weighted=metrics.last_accuracy(by_task),
            a_inc_task_weighted=metrics.incremental_accuracy(by_task),
            forgetting=metrics.forgetting(progress.accuracy_matrix),
            returning=sorted({number for task in range(len(scenario)) for number in scenario.returning(task)})
            if scenario.train_tasks is not None and not scenario.domains
            else [],
            domains=list(scenario.domains),
            accuracy_by_class=progress.by_class,
            total_seconds=round(sum(progress.seconds), 3),
            processor_seconds=progress.processor_seconds if len(progress.processor_seconds) == len(scenario) else [],
            bytes_per_class=self.experiment.bytes_per_class(),
            versions=versions(),
            machine=machine(self.method.device),
            **{name: getattr(progress, name) for name in SUMMARISED},
        )
