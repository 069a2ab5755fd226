"""The folder of a run: names of its files, and reading and writing them."""

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from gatf.errors import UserError
from gatf.io.events import Event, read_events, reason
from gatf.io.files import remove, remove_leftovers, write_errors, write_text
from gatf.io.lock import exclusive
from gatf.io.parsing import parse_json
from gatf.io.text import csv_text

CONFIG, EVENTS, SUMMARY, MODEL = "config.yaml", "metrics.jsonl", "summary.json", "model.safetensors"
CHECKPOINTS, DIAGNOSTICS, REPORT = "checkpoints", "diagnostics", "report.html"
EXPLAINED, CONFUSION = "explain", "confusion.csv"
LOCK = ".lock"
"""Exists while a process runs in the folder. One that a killed process left behind is not locked."""


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
    """Accuracy over all classes after the last task, with equal weights for test images."""
    a_inc: float
    """Mean of `accuracy_seen` over tasks."""
    a_last_task_weighted: float
    """As `a_last`, with equal weights for tasks."""
    a_inc_task_weighted: float
    """As `a_inc`, with equal weights for tasks."""
    forgetting: float | None
    """Mean drop from a task's best accuracy; null with a single task."""
    accuracy_matrix: list[list[float]]
    """Row t, column k: accuracy on task k after task t; row t has t + 1 entries."""
    accuracy_seen: list[float]
    """Accuracy over all seen classes, after each task."""
    task_aware: list[list[float]]
    """As `accuracy_matrix`, with the task of each image known."""
    accuracy_by_class: list[list[float]]
    """Row t: accuracy on each seen class, after task t."""
    old_to_new: list[float | None]
    """Share of old-class images predicted as a class of the newest task; null for task 0."""
    seconds: list[float]
    """Of each task."""
    total_seconds: float
    """Their sum."""
    peak_memory_mb: list[float]
    """Peak of the process; on a GPU, of its memory during the task."""
    bytes_per_class: int
    """Stored per class, in addition to the networks."""
    versions: dict[str, str]
    """Of Python, gatf, torch, numpy, lightning-fabric."""
    processor_seconds: list[float] = field(default_factory=list)
    """CPU time of each task, all threads of the first process. Empty in older files."""
    repaired: list[int] = field(default_factory=list)
    """Matrices per task that needed jitter or clipped eigenvalues to factorise (`geometry.spd.cholesky`). Empty in
    older files."""
    config_changes: list[str] = field(default_factory=list)
    """Settings that were changed with `--force-config`; `config.yaml` has the last values."""
    networks_from: str | None = None
    """The run whose networks were reused instead of training the same ones; `seconds` exclude that training."""
    networks_of: list[int] = field(default_factory=list)
    """Tasks whose networks were reused. Empty in older files with `networks_from`: all tasks."""
    returning: list[int] = field(default_factory=list)
    """Classes, by their place in `class_order`, whose images came in several tasks (`scenario.returning`)."""
    domains: list[str] = field(default_factory=list)
    """Domain of each task (`scenario.domains`); columns of `accuracy_matrix` are then all classes in that domain."""
    machine: dict[str, str] = field(default_factory=dict)
    """`date` of the end (UTC), `processor`, `threads`, `device` for a GPU, and if known `command` and the `commit` of
    gatf."""

    @property
    def taken(self) -> str:
        """Which networks were reused, in words."""
        one = "the first task's network" if self.networks_of == [0] and self.tasks > 1 else "the networks"
        return f"{one} of {self.networks_from}"

    @property
    def accuracy_new(self) -> float:
        """Mean over tasks of the accuracy after learning the task."""
        return sum(row[-1] for row in self.accuracy_matrix) / self.tasks

    @property
    def backward_transfer(self) -> float | None:
        """Mean over all tasks but the last of the final accuracy minus that after learning the task (Lopez-Paz and
        Ranzato, 2017); negative is worse, null with a single task."""
        changes = [end - self.accuracy_matrix[task][-1] for task, end in enumerate(self.accuracy_matrix[-1][:-1])]
        return sum(changes) / len(changes) if changes else None

    @property
    def area_under_curve(self) -> float:
        """Mean height of the line through `accuracy_seen` (trapezoids); unlike `a_inc`, both ends count half."""
        seen = self.accuracy_seen
        return (sum(seen) - (seen[0] + seen[-1]) / 2) / (len(seen) - 1) if len(seen) > 1 else seen[0]


DERIVED = ("accuracy_new", "backward_transfer", "area_under_curve")
"""Properties that the file also contains, for users who read it without this package."""


class RunFolder:
    """A run on disk. The attributes are paths of files that may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG
        """Every setting, enough to repeat the run."""
        self.events = path / EVENTS
        """One event per line, appended during the run."""
        self.summary = path / SUMMARY
        """The results, written at the end: a folder with it is a finished run."""
        self.model = path / MODEL
        """The model file of the finished run."""
        self.checkpoints = path / CHECKPOINTS
        """The newest two checkpoints; with `keep_networks` also one after every task."""
        self.diagnostics = path / DIAGNOSTICS
        """Tables of drift, errors and margins, of a run with `diagnostics`."""
        self.report = path / REPORT
        """The self-contained HTML report."""
        self.confusion = path / CONFUSION
        """Numbers of images per true and predicted class, after the last finished task."""
        self.explained = path / f"{EXPLAINED}.csv"
        """The accuracy decomposition of `gatf explain run`, as a table."""
        self.explained_in_words = path / f"{EXPLAINED}.json"
        """The same as JSON, with a sentence per accuracy gap."""

    @property
    def begun(self) -> bool:
        """Whether the folder has a run that can be resumed."""
        return self.config.is_file()

    def refuse_if_begun(self) -> None:
        """Raise a `UserError` if the folder already has a run."""
        if self.begun:
            raise UserError(
                f"{self.path} already contains a run; continue it with --resume {self.path} or choose another --out"
            )

    @property
    def finished(self) -> bool:
        return self.summary.is_file()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the folder for this process and delete temporary files of killed processes."""
        busy = f"{self.path} is in use by another process; wait until it has ended"
        with exclusive(self.path / LOCK, busy=busy, blocked=f"cannot write to {self.path}"):
            for folder in (self.path, self.checkpoints, self.diagnostics):
                remove_leftovers(folder)
            self._make_room()
            yield

    def create(self, config: str) -> None:
        """Create the folder of a run with this config, or write a new config into it."""
        self._make_room()
        write_text(self.config, config)

    def _make_room(self) -> None:
        """Create the folder of checkpoints, which a copied run may lack."""
        if not self.checkpoints.is_dir():
            with write_errors(self.checkpoints):
                self.checkpoints.mkdir(parents=True, exist_ok=True)

    def checkpoint(self, task: int, phase: int, epoch: int, step: int) -> Path:
        """The path of the checkpoint before this step. Names sort in the order of the run."""
        return self.checkpoints / f"task{task:03d}-phase{phase}-epoch{epoch:04d}-step{step:05d}.safetensors"

    def after_task(self, task: int) -> Path:
        """The checkpoint between this task and the next."""
        return self.checkpoint(task + 1, 0, 0, 0)

    def saved_checkpoints(self) -> list[Path]:
        """Existing checkpoints, the newest last."""
        return sorted(self.checkpoints.glob("*.safetensors"))

    def prune_checkpoints(self, kept: Collection[Path] = ()) -> None:
        """Delete all checkpoints but the newest two and those in `kept`."""
        for old in self.saved_checkpoints()[:-2]:
            if old not in kept:
                remove(old)

    def read_events(self) -> list[Event]:
        """The events of the run up to now."""
        return read_events(self.events)[0]

    def write_confusion(self, pairs: Iterable[tuple[str, str, int]]) -> None:
        """Write triples of true class, predicted class and number of images."""
        write_text(self.confusion, csv_text([("class", "predicted", "images"), *pairs]))

    def write_summary(self, summary: Summary) -> None:
        derived = {name: getattr(summary, name) for name in DERIVED}
        write_text(self.summary, json.dumps(asdict(summary) | derived, indent=2))

    def read_summary(self) -> Summary:
        """The results of a finished run; a file that is cut off or not a run's summary is a `UserError`."""
        try:
            loaded = parse_json(self.summary.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.summary} cannot be read: {error}; delete it to continue from the last checkpoint"
            ) from None
        try:
            return parse_summary(loaded)
        except ValueError as error:
            raise UserError(f"{self.summary} is not the summary of a run: {reason(error)}") from None


def parse_summary(loaded: Any) -> Summary:
    """The summary in a JSON object; a `ValueError` if it is invalid. Fields of later versions are ignored."""
    if not isinstance(loaded, dict):
        raise ValueError("it is no JSON object")
    summary = _adapter().validate_python(loaded)
    for name in ("accuracy_matrix", "accuracy_seen", "task_aware", "accuracy_by_class", "old_to_new", "seconds"):
        if len(getattr(summary, name)) != summary.tasks or summary.tasks < 1:
            raise ValueError(f"its '{name}' does not have an entry for each of its {summary.tasks} tasks")
    if any(len(row) != task for task, row in enumerate(summary.accuracy_matrix, start=1)):
        raise ValueError("a row of its 'accuracy_matrix' does not have an entry for each task up to it")
    return summary


@cache
def _adapter() -> TypeAdapter[Summary]:
    return TypeAdapter(Summary)
