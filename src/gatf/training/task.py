"""Training of one task, shared by runs and model updates."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from gatf.data.loader import TaskData, TaskInfo
from gatf.errors import Diverged
from gatf.io.events import Listener, TaskStart
from gatf.training import checkpoint
from gatf.training.divergence import diverged, noticing
from gatf.training.loop import Position, train_phase, weights
from gatf.training.phase import Phase

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Learner(Protocol):
    """The part of a method that training uses."""

    def begin_task(self, task: TaskInfo) -> None: ...

    def phases(self, task: TaskInfo) -> list[Phase]: ...


@dataclass(frozen=True)
class Resumed:
    """The position of a checkpoint within a task. The learner already has the checkpoint's state."""

    phase: int
    position: Position
    tensors: dict[str, Tensor]
    """The checkpoint's, for the optimiser."""


SaveAt = Callable[[int, Position, torch.optim.Optimizer], None]
"""Writes a checkpoint: the phase, the position in it, the optimiser."""


def train_task(
    learner: Learner, data: TaskData, fabric: Callable[[], "Fabric"], *, listener: Listener, resumed: Resumed | None,
    save: SaveAt, stop: Callable[[], bool], save_every: int | None,
    taken: Callable[[Phase], bool] = lambda phase: False, done: Callable[[Phase], None] = lambda phase: None,
) -> None:  # fmt: skip
    """Begin the task, unless resumed, and train its phases in order. Raises `Interrupted` after a requested `stop` and
    `Diverged` after non-finite numbers. `taken` loads the networks of a phase from elsewhere and returns whether it
    did; such a phase is not trained. `done` is called after each phase, before the next one begins."""
    if resumed is None:
        learner.begin_task(data.info)
    phases = learner.phases(data.info)
    first = 0
    while resumed is None and first < len(phases) and taken(phases[first]):
        done(phases[first])
        first += 1
    steps = sum(
        phase.stage.epochs * data.steps(phase.loaded, phase.stage.drop_last, phase.order) for phase in phases[first:]
    )
    listener(TaskStart(task=data.info.index, classes=data.info.new, images=len(data), steps=steps))
    for number, phase in enumerate(phases):
        if number < (first if resumed is None else resumed.phase):
            continue
        here = resumed if resumed is not None and number == resumed.phase else None
        position = here.position if here else Position()
        with _noticing(phase, position, data.info.index):
            train_phase(
                phase, data, fabric(),
                listener=listener,
                position=position,
                save=partial(save, number),
                restore=partial(checkpoint.restore_optimiser, tensors=here.tensors) if here else None,
                stop=stop,
                save_every=save_every,
            )  # fmt: skip
        done(phase)


def _noticing(phase: Phase, position: Position, task: int) -> AbstractContextManager[None]:
    def describe(what: str) -> Diverged:
        return diverged(task, f"phase '{phase.name}', epoch {position.epoch + 1}", what, phase.stage, rate=phase.rate)

    return noticing(describe, lambda: [*position.sums.values(), *weights(phase)])
