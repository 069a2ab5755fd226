"""The surroundings of a run: listeners, stop requests, checkpoints, networks to reuse."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gatf.io.events import Event, Listener
from gatf.training.task import SaveAt


def silent(event: Event) -> None:
    """A listener that ignores every event."""


@dataclass(frozen=True)
class RunContext:
    """What training reports to, what may stop it, and where it saves its state. The defaults train in silence."""

    listener: Listener = silent
    stop: Callable[[], bool] = lambda: False
    checkpoints: Path | None = None
    """Folder for an update's checkpoints; None: the update writes none."""
    save: SaveAt = lambda phase, position, optimiser: None
    save_every: int | None = None
    """Epochs between two saves within a phase; None: save only when `stop` returns True."""
    networks: Callable[[int], dict[str, Tensor]] | None = None
    """Returns the networks of a task that another run has trained, so that they are not trained again."""
    trained: Callable[[dict[str, Tensor]], None] | None = None
    """Receives the networks of a phase before a later phase changes them or the method drops them."""
