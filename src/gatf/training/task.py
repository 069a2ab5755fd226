"""The training of one task: what a run and an update of a model share."""

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
    """As much of a method as training needs to know."""

    def begin_task(self, task: TaskInfo) -> None: ...

    def phases(self, task: TaskInfo) -> list[Phase]: ...


@dataclass(frozen=True)
class Resumed:
    """Where a checkpoint left a task. The learner has begun the task and holds the checkpoint's state already."""

    phase: int
    position: Position
    tensors: dict[str, Tensor]
    """The checkpoint's, for the optimiser."""


SaveAt = Callable[[int, Position, torch.optim.Optimizer], None]
"""Writes a checkpoint: the phase, the position in it, the optimiser."""


def train_task(
    learner: Learner, data: TaskData, fabric: "Fabric", *, listener: Listener, resumed: Resumed | None, save: SaveAt,
    stop: Callable[[], bool], save_every: int | None, taken: Callable[[Phase], bool] = lambda phase: False,
    done: Callable[[Phase], None] = lambda phase: None,
) -> None:  # fmt: skip
    """Begin the task, unless resumed, and train its phases in order. `Interrupted` when `stop` says so; `Diverged` when
    training leaves the finite numbers. `taken` says whether a phase's networks were put in from elsewhere, so that it
    is not trained. `done` hears of each phase when it is over, before the next one goes on with what it left."""
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
                phase, data, fabric,
                listener=listener,
                position=position,
                save=partial(save, number),
                restore=partial(checkpoint.restore_optimiser, tensors=here.tensors) if here else None,
                stop=stop,
                save_every=save_every,
            )  # fmt: skip
        done(phase)


def _noticing(phase: Phase, position: Position, task: int) -> AbstractContextManager[None]:
    def tell(what: str) -> Diverged:
        return diverged(task, f"phase '{phase.name}', epoch {position.epoch + 1}", what, phase.stage, rate=phase.rate)

    return noticing(tell, lambda: [*position.sums.values(), *weights(phase)])
