"""A phase: what a method asks the loop to train."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from gatf.data.loader import Batch, Order, TaskData
from gatf.settings import StageConfig


@dataclass
class Phase:
    """What is trained, and how: one stretch of epochs over the task's training images."""

    name: str
    modules: dict[str, nn.Module]
    """Everything with parameters that this phase trains."""
    loss: Callable[[Batch], dict[str, Tensor]]
    """Named terms; the loop sums, steps, clips and logs them."""
    stage: StageConfig
    """Optimiser, schedule, epochs, batch, clip."""
    groups: list[dict[str, Any]] = field(default_factory=list)
    """Parameter groups with their own `lr` or `weight_decay`; empty: all parameters of `modules` alike."""
    batch_size: int | None = None
    """Images loaded a step, where it differs from what the network sees (rotations)."""
    order: Order | None = None
    """Which images an epoch visits and in which order (class-balanced batches); default: all, shuffled."""
    on_epoch_start: Callable[[int, TaskData], None] | None = None
    on_resume: Callable[[Batch, TaskData], None] | None = None
    """Receives the batch before the one that a resumed run continues with, and the task's data, so that checkpoints
    need no pixels for methods that use them."""
    rate: str | None = None
    """The setting of its learning rate, if it is not the `lr` of the task's stage."""
    set_mode: Callable[[], None] | None = None
    """Puts networks into train or eval mode; default: all of `modules` into train mode."""
    follows: dict[str, nn.Module] = field(default_factory=dict)
    """What it changes without training it, such as an anchor that is refreshed between epochs."""

    @property
    def loaded(self) -> int:
        return self.batch_size or self.stage.batch_size

    def parameter_groups(self) -> list[dict[str, Any]]:
        if self.groups:
            return self.groups
        return [{"params": [p for module in self.modules.values() for p in module.parameters()]}]
