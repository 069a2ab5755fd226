"""The folder of a run: what its files are called, what `summary.json` says, and how both are read and written."""

import csv
import io
import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from gatf.errors import UserError
from gatf.io.events import Event, read_events, reason
from gatf.io.files import remove, remove_leftovers, telling, write_text
from gatf.io.lock import exclusive
from gatf.io.parsing import parse_json
from gatf.io.text import csv_cell

CONFIG, EVENTS, SUMMARY, MODEL = "config.yaml", "metrics.jsonl", "summary.json", "model.safetensors"
CHECKPOINTS, DIAGNOSTICS, REPORT = "checkpoints", "diagnostics", "report.html"
EXPLAINED, CONFUSION = "explain", "confusion.csv"
LOCK = ".lock"
"""There while a process runs in the folder, and after one was killed, which then does not matter."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The results of a finished run, as `summary.json` has them.

    Accuracies are in percent. Lists over tasks have an entry for the state after each task.
    """

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    method: str
    """The method's name."""
    dataset: str
    """The data source's name."""
    tasks: int
    """Tasks learnt."""
    seed: int
    """The run's seed."""
    class_order: list[int]
    """The data source's number of each class, in the order learnt."""
    class_names: list[str]
    """In the same order."""
    a_last: float
    """Accuracy over all classes after the last task; every test image weighs the same."""
    a_inc: float
    """Mean of `accuracy_seen` over tasks."""
    a_last_task_weighted: float
    """As `a_last`, if every task weighs the same, however many test images it has."""
    a_inc_task_weighted: float
    """As `a_inc`, weighted likewise."""
    forgetting: float | None
    """Mean drop from a task's best accuracy; null with a single task."""
    accuracy_matrix: list[list[float]]
    """Row t, column k: accuracy on task k after task t; row t has t + 1 entries."""
    accuracy_seen: list[float]
    """Accuracy over all classes so far, after each task."""
    task_aware: list[list[float]]
    """As `accuracy_matrix`, when told which task an image is from."""
    accuracy_by_class: list[list[float]]
    """Row t: accuracy on each class so far, after task t."""
    old_to_new: list[float | None]
    """Share of old-class images taken for a class of the newest task; null for task 0."""
    seconds: list[float]
    """Of each task."""
    total_seconds: float
    """Their sum."""
    peak_memory_mb: list[float]
    """Of the process so far; on a GPU, allocated there during the task."""
    bytes_per_class: int
    """What the method keeps of each class, beside the networks."""
    versions: dict[str, str]
    """Of Python, gatf, torch, numpy, lightning-fabric."""
    processor_seconds: list[float] = field(default_factory=list)
    """Of each task, all threads of the first process: on a busy machine `seconds` says how long one waited, this what
    it took. Empty where a run began before it was counted."""
    repaired: list[int] = field(default_factory=list)
    """Matrices of each task that did not factorise as they were and needed the ladder of `geometry.spd.cholesky` (more
    on the diagonal, or clipped eigenvalues), in statistics, transport and readout; of several processes, in the first.
    Empty in files from before it was counted."""
    config_changes: list[str] = field(default_factory=list)
    """Settings that were changed on the way, with `--force-config`; `config.yaml` has the last ones."""
    networks_from: str | None = None
    """The run whose networks were taken instead of training the same ones, which `seconds` then leave out."""
    networks_of: list[int] = field(default_factory=list)
    """Tasks, from 0, whose networks were taken. Empty where none were, and in files from before it was noted, where it
    was all."""
    machine: dict[str, str] = field(default_factory=dict)
    """When, where and how the run ended: `date` (UTC), `processor`, `threads`, `device` if that is another, and where
    they are known the `command` and the `commit` of gatf's own code."""

    @property
    def taken(self) -> str:
        """Which networks were taken, in words."""
        one = "the first task's network" if self.networks_of == [0] and self.tasks > 1 else "the networks"
        return f"{one} of {self.networks_from}"

    @property
    def accuracy_new(self) -> float:
        """Mean over tasks of the accuracy on a task just after it was learnt; without it, forgetting says little: what
        was never learnt cannot be forgotten."""
        return sum(row[-1] for row in self.accuracy_matrix) / self.tasks

    @property
    def backward_transfer(self) -> float | None:
        """Mean over tasks but the last of the accuracy at the end less that when new (Lopez-Paz and Ranzato, 2017);
        negative is worse, null with a single task."""
        changes = [end - self.accuracy_matrix[task][-1] for task, end in enumerate(self.accuracy_matrix[-1][:-1])]
        return sum(changes) / len(changes) if changes else None

    @property
    def area_under_curve(self) -> float:
        """Mean height of the line through `accuracy_seen` (trapezoids); unlike `a_inc`, both ends count half."""
        seen = self.accuracy_seen
        return (sum(seen) - (seen[0] + seen[-1]) / 2) / (len(seen) - 1) if len(seen) > 1 else seen[0]


DERIVED = ("accuracy_new", "backward_transfer", "area_under_curve")
"""Properties of a summary that its file has too, for those who read it without this package."""


@dataclass(frozen=True)
class RunFolder:
    """A run on disk. The properties are the places of its files, which need not be there."""

    path: Path

    @property
    def config(self) -> Path:
        """Every setting, enough to repeat the run."""
        return self.path / CONFIG

    @property
    def events(self) -> Path:
        """One event per line, appended while the run goes on."""
        return self.path / EVENTS

    @property
    def summary(self) -> Path:
        """The results, written at the end: a folder with it is a finished run."""
        return self.path / SUMMARY

    @property
    def model(self) -> Path:
        """The finished classifier, as a model file."""
        return self.path / MODEL

    @property
    def checkpoints(self) -> Path:
        """Where the run stood, the newest two; with `keep_networks` also after every task."""
        return self.path / CHECKPOINTS

    @property
    def diagnostics(self) -> Path:
        """Tables of drift, errors and margins, of a run that was asked for them."""
        return self.path / DIAGNOSTICS

    @property
    def report(self) -> Path:
        """The page for people, which needs no other file."""
        return self.path / REPORT

    @property
    def confusion(self) -> Path:
        """Which classes were answered for which, after the last task that was learnt."""
        return self.path / CONFUSION

    @property
    def explained(self) -> Path:
        """Where the points go, by `gatf explain run`: a table for scripts."""
        return self.path / f"{EXPLAINED}.csv"

    @property
    def explained_in_words(self) -> Path:
        """The same as JSON, with a sentence for each loss."""
        return self.path / f"{EXPLAINED}.json"

    @property
    def begun(self) -> bool:
        """Whether there is a run that can go on."""
        return self.config.is_file()

    def refuse_if_begun(self) -> None:
        """A `UserError` where a new run would take the folder of another one."""
        if self.begun:
            raise UserError(f"{self.path} already holds a run; go on with --resume {self.path} or choose another --out")

    @property
    def finished(self) -> bool:
        return self.summary.is_file()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Inside, no other process runs in this folder, and what killed ones left half-written is gone."""
        busy = f"{self.path} is being run by another process; wait until that has ended"
        with exclusive(self.path / LOCK, busy=busy, blocked=f"cannot write to {self.path}"):
            for folder in (self.path, self.checkpoints, self.diagnostics):
                remove_leftovers(folder)
            self._make_room()
            yield

    def create(self, config: str) -> None:
        """Make the folder of a run that can begin, or go on, from this config."""
        self._make_room()
        write_text(self.config, config)

    def _make_room(self) -> None:
        """For checkpoints; a folder that was handed on without them would else fail when the first one is written."""
        if not self.checkpoints.is_dir():
            with telling(self.checkpoints):
                self.checkpoints.mkdir(parents=True, exist_ok=True)

    def checkpoint(self, task: int, phase: int, epoch: int, step: int) -> Path:
        """Of the run before this step; names sort as the run goes on."""
        return self.checkpoints / f"task{task:03d}-phase{phase}-epoch{epoch:04d}-step{step:05d}.safetensors"

    def after_task(self, task: int) -> Path:
        """The checkpoint between this task and the next."""
        return self.checkpoint(task + 1, 0, 0, 0)

    def saved_checkpoints(self) -> list[Path]:
        """Those that are there, the newest last."""
        return sorted(self.checkpoints.glob("*.safetensors"))

    def prune_checkpoints(self, kept: Collection[Path] = ()) -> None:
        """Keep the newest two, and those that are meant to stay."""
        for old in self.saved_checkpoints()[:-2]:
            if old not in kept:
                remove(old)

    def read_events(self) -> list[Event]:
        """What the run told so far."""
        return read_events(self.events)[0]

    def write_confusion(self, pairs: Iterable[tuple[str, str, int]]) -> None:
        """Class, answer and number of images."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("class", "answered", "images"))
        writer.writerows((csv_cell(name), csv_cell(answer), count) for name, answer, count in pairs)
        write_text(self.confusion, text.getvalue())

    def write_summary(self, summary: Summary) -> None:
        derived = {name: getattr(summary, name) for name in DERIVED}
        write_text(self.summary, json.dumps(asdict(summary) | derived, indent=2))

    def read_summary(self) -> Summary:
        """The results of a finished run; a file that is cut off or not a run's summary is a `UserError`."""
        try:
            loaded = parse_json(self.summary.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.summary} cannot be read: {error}; remove it to go on from the last checkpoint"
            ) from None
        try:
            return parse_summary(loaded)
        except ValueError as error:
            raise UserError(f"{self.summary} is not the summary of a run: {reason(error)}") from None


def parse_summary(loaded: Any) -> Summary:
    """The summary that a JSON object holds; a `ValueError` if it is none. Fields of a later version are left out."""
    if not isinstance(loaded, dict):
        raise ValueError("it is no JSON object")
    old = "a_last_task_weighted" not in loaded  # written before there were such numbers
    missing = {"a_last_task_weighted": 0.0, "a_inc_task_weighted": 0.0} if old else {}
    summary = _adapter().validate_python(loaded | missing)
    for name in ("accuracy_matrix", "accuracy_seen", "task_aware", "accuracy_by_class", "old_to_new", "seconds"):
        if len(getattr(summary, name)) != summary.tasks or summary.tasks < 1:
            raise ValueError(f"its '{name}' does not have an entry for each of its {summary.tasks} tasks")
    if any(len(row) != task for task, row in enumerate(summary.accuracy_matrix, start=1)):
        raise ValueError("a row of its 'accuracy_matrix' does not have an entry for each task so far")
    if not old:
        return summary
    each = [sum(row) / len(row) for row in summary.accuracy_matrix]
    return replace(summary, a_last_task_weighted=each[-1], a_inc_task_weighted=sum(each) / len(each))


@cache
def _adapter() -> TypeAdapter[Summary]:
    return TypeAdapter(Summary)
