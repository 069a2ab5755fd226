"""The events that a run reports: one class per kind, and the file that stores them, one per line.

Accuracies are in percent; tasks and epochs count from 0. An event's line has its kind under `event`, then its fields in
the order in which they are declared here.
"""

import io
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gatf.errors import UserError
from gatf.io.files import write_errors
from gatf.io.parsing import parse_json


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a run."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)
    kind: ClassVar[str]
    """Its name in the file."""

    def record(self) -> dict[str, Any]:
        """The object that is written as one line of the file."""
        return {"event": self.kind, **vars(self)}


@dataclass(frozen=True, kw_only=True)
class TaskEvent(Event):
    """An event of one task."""

    task: int
    """Its number."""


@dataclass(frozen=True, kw_only=True)
class EpochEvent(TaskEvent):
    """An event of one epoch."""

    phase: str
    """What is trained: the name that the method gave the phase."""
    epoch: int
    """Its number within the phase."""


@dataclass(frozen=True, kw_only=True)
class RunStart(Event):
    """The run begins or continues."""

    kind = "run_start"
    tasks: int
    """Tasks of the run."""
    method: str
    """The method's name."""
    resumed_at: int | None
    """The task at which a resumed run continues; null for a new run."""
    steps: tuple[int, ...] = ()
    """Expected steps per task, from the config's epochs and batch sizes; some methods take more."""


@dataclass(frozen=True, kw_only=True)
class WarningEvent(Event):
    """A warning for the user, about the data or weights at the start, or why no model file was written at the end."""

    kind = "warning"
    text: str
    """One sentence."""


@dataclass(frozen=True, kw_only=True)
class TaskStart(TaskEvent):
    """A task begins, or continues from a checkpoint within it."""

    kind = "task_start"
    classes: int
    """New classes."""
    images: int
    """Training images; for `joint` those of all seen tasks."""
    steps: int
    """Steps of all its phases."""


@dataclass(frozen=True, kw_only=True)
class Step(EpochEvent):
    """An optimiser step is done. Listeners receive it; it is not written to the file."""

    kind = "step"
    epochs: int
    """Epochs of the phase."""


@dataclass(frozen=True, kw_only=True)
class FeaturesExtracted(TaskEvent):
    """Progress of a forward pass over the task's images without training. Listeners receive it; it is not written to
    the file."""

    kind = "features_extracted"
    images: int
    """Images done; 0 at the start."""
    of: int
    """Images in total."""


@dataclass(frozen=True, kw_only=True)
class Epoch(EpochEvent):
    """An epoch is done."""

    kind = "epoch"
    losses: dict[str, float]
    """The mean of every term of the loss over the epoch's steps, weights included: their sum is the loss."""
    lr: float
    """Learning rate of the epoch, of the last parameter group."""
    seconds: float
    """Duration; for an interrupted epoch, of the part after the interruption."""


@dataclass(frozen=True, kw_only=True)
class Trained(TaskEvent):
    """All phases of the task are done. Statistics and transport follow."""

    kind = "trained"


@dataclass(frozen=True, kw_only=True)
class Notice(TaskEvent):
    """Numbers that a method reports about itself."""

    kind = "notice"
    name: str
    """What it is about."""
    values: dict[str, float]
    """The numbers by name. In the file each is a field of its own, after `name` and `task`."""

    def record(self) -> dict[str, Any]:
        return {"event": self.kind, "name": self.name, "task": self.task, **self.values}


@dataclass(frozen=True, kw_only=True)
class Task(TaskEvent):
    """A task is learnt and evaluated."""

    kind = "task"
    seen: float
    """Accuracy over the test images of all seen classes."""
    accuracies: list[float]
    """Accuracy on the test images of each seen task."""
    seconds: float
    """Duration of training, statistics and evaluation."""


@dataclass(frozen=True, kw_only=True)
class Run(Event):
    """The run is finished."""

    kind = "run"
    a_last: float
    """Accuracy over all classes after the last task."""
    a_inc: float
    """Mean of `seen` over tasks."""
    forgetting: float | None
    """Mean drop from a task's best accuracy; null with a single task."""
    total_seconds: float
    """Of all tasks."""


KINDS: dict[str, type[Event]] = {
    event.kind: event
    for event in (RunStart, WarningEvent, TaskStart, Step, FeaturesExtracted, Epoch, Trained, Task, Run, Notice)
}
"""Every kind of event, by its name in the file."""

Listener = Callable[[Event], None]
"""Receives every event of a run."""


class JsonLines:
    """Appends events to a file, all but progress within an epoch. `truncate` removes what came after a checkpoint.
    Without a path (in a process that does not write) it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path or Path()
        with write_errors(self._path):
            self._file = io.StringIO() if path is None else path.open("a", encoding="utf-8")
        self._writes = path is not None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Step | FeaturesExtracted) or not self._writes:
            return
        with write_errors(self._path):
            self._file.write(json.dumps(event.record(), allow_nan=True) + "\n")
            self._file.flush()

    def position(self) -> int:
        return self._file.tell()

    def truncate(self, position: int) -> None:
        """Keep the whole lines before a byte; after a power cut there may be fewer than there were."""
        if not self._writes:
            return
        with write_errors(self._path):
            end = self._path.read_bytes()[:position].rfind(b"\n") + 1
            self._file.truncate(end)
            self._file.seek(end)

    def close(self) -> None:
        with suppress(OSError):  # a failed write was reported when it happened
            self._file.close()


def read_events(path: Path, start: int = 0) -> tuple[list[Event], int]:
    """The events in a file from byte `start` on, and the byte where the next one will begin: an
    unfinished line is left for later. A line that is no event is a `UserError`."""
    with path.open("rb") as file:
        file.seek(start)
        lines = [line for line in file if line.endswith(b"\n")]
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            event = parse_event(parse_json(line))
            events += [] if event is None else [event]
        except ValueError as error:
            where = f"line {number}" if start == 0 else f"line {number} after byte {start}"
            raise UserError(f"{path}, {where}, is no event of a run: {reason(error)}") from None
    return events, start + sum(map(len, lines))


def parse_event(record: Any) -> Event | None:
    """The inverse of `Event.record`; a `ValueError` if this is no event. Fields of later versions are ignored; a
    kind of a later version gives None."""
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        raise ValueError("it names no kind of event")
    if record["event"] not in KINDS:
        return None
    kind, given = KINDS[record["event"]], {name: value for name, value in record.items() if name != "event"}
    if kind is Notice:
        given = {name: given.pop(name) for name in ("name", "task") if name in given} | {"values": given}
    return _adapter(kind.kind).validate_python(given)


@cache
def _adapter(kind: str) -> TypeAdapter[Event]:
    return TypeAdapter(KINDS[kind])


def reason(error: ValueError) -> str:
    """Why something could not be read, in half a sentence: the first of pydantic's errors."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    field, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    if not field:
        return message
    return f"its '{field}' is missing" if first["type"] == "missing" else f"its '{field}': {message}"
