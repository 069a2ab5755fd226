"""Classification by linear heads that are trained with the backbone: what fine-tuning, joint training and EWC share."""

from abc import ABC
from typing import Any, ClassVar

from torch import Tensor

from gatf.methods.base import ConfigT, Method, TaskData, TaskInfo
from gatf.nets.heads import Heads


class LinearHeads(Method[ConfigT], ABC):
    """One linear layer per task on pooled features; the class with the largest logit wins."""

    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heads = Heads(self.feature_dim)

    def begin_task(self, task: TaskInfo) -> None:
        self.make(lambda: self.heads.grow(task.new), "head", task.index)

    def end_task(self, data: TaskData) -> None:
        """Nothing but the heads is kept."""

    def scores(self, images: Tensor) -> Tensor:
        return self.heads(self.backbone(images))

    def bytes_per_class(self) -> int:
        """A row of a head, with its bias."""
        return 4 * (self.feature_dim + 1)
