"""Classifiers solved from sums over images, on a network that is frozen after the first task, or from the start.

Sums do not care in which order they are added: classes and tasks may come in any order, a known class may come back,
and the answer is that of all images at once. An image is looked at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gatf.geometry import gaussians
from gatf.geometry.moments import PooledMoments
from gatf.geometry.readout import LinearReadout
from gatf.methods.base import Batch, ForTask, Phase, TaskData, TaskInfo
from gatf.methods.parts.extraction import Growing, extract
from gatf.methods.parts.features import FeatureMethod
from gatf.methods.parts.stages import FIRST_TASK_OPTIMISATION
from gatf.settings import MethodConfig

ROWS = 2048
"""Features that are made into sums at once, in float64."""


class ClosedFormConfig(MethodConfig):
    """What every closed-form method is asked: whether the network is trained at all."""

    train_first: bool | None = None
    """Train the network with cross-entropy in the first task, after which it is frozen. Default: where its weights are
    not pretrained."""


ClosedFormConfigT = TypeVar("ClosedFormConfigT", bound=ClosedFormConfig, covariant=True)


class ClosedForm(FeatureMethod[ClosedFormConfigT], ABC):
    """A method whose classifier is solved from sums over the features of all images so far."""

    revisits = True
    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}, "optimisation": FIRST_TASK_OPTIMISATION}
    head = ForTask[nn.Linear]()

    @property
    def network_is_fixed(self) -> bool:
        asked = self.config.train_first
        return bool(getattr(self.backbone, "pretrained", False)) if asked is None else not asked

    def begin_task(self, task: TaskInfo) -> None:
        if self._trains(task):
            self.head = self.make(lambda: nn.Linear(self.feature_dim, task.new), "head", 0)

    def phases(self, task: TaskInfo) -> list[Phase]:
        if not self._trains(task):
            return []
        stage = self.optimisation.first

        def loss(batch: Batch) -> dict[str, Tensor]:
            return {"ce": cross_entropy(self.head(self.features(batch)), batch.labels)}

        modules = {"backbone": self.backbone, "head": self.head}
        return [Phase("train", modules, loss, stage, groups=self.train_groups(stage, self.head))]

    def _trains(self, task: TaskInfo) -> bool:
        return task.index == 0 and not self.network_is_fixed

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        features, labels = extract(self.backbone, data)
        if not bool(features.isfinite().all()):
            raise RuntimeError("some features are not finite: training the network diverged")
        self.learn(features, labels, data.info)
        self.head = None

    @abstractmethod
    def learn(self, features: Tensor, labels: Tensor, task: TaskInfo) -> None:
        """Add the task's images, features [N, S] and class numbers [N] below `task.seen`, and solve the classifier."""


class MomentMemory(Growing):
    """`PooledMoments` of all images so far, float64: in float32 what many small updates add would be rounded away.

    The scatter that all classes share is kept as a packed triangle.
    """

    counts: Tensor
    means: Tensor
    triangle: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("counts", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("means", torch.zeros(0, dim, dtype=torch.float64))
        self.register_buffer("triangle", torch.zeros(dim * (dim + 1) // 2, dtype=torch.float64))

    def get(self) -> PooledMoments:
        return PooledMoments(self.counts, self.means, gaussians.unpack(self.triangle, self.dim))

    def add(
        self, features: Tensor, labels: Tensor, *, classes: int,
        transform: Callable[[Tensor], Tensor] = lambda features: features,
    ) -> PooledMoments:  # fmt: skip
        """Moments of what `transform` makes of features [N, S], a block of rows at a time, and of all before."""
        total = self.get()
        for rows, numbers in zip(features.split(ROWS), labels.split(ROWS), strict=True):
            total = total.merge(PooledMoments.of(transform(rows), numbers, classes=classes))
        self.counts, self.means, self.triangle = total.counts, total.means, gaussians.pack(total.scatter)
        return total

    def bytes_per_class(self) -> int:
        """What one more class takes: its mean and its count; the scatter is all classes'."""
        return self.means.element_size() * (self.dim + 1)


class LinearRule(Growing):
    """The linear classifier solved last, float64, made anew after each task."""

    weight: Tensor
    bias: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(0, dim, dtype=torch.float64))
        self.register_buffer("bias", torch.zeros(0, dtype=torch.float64))

    def set(self, solved: LinearReadout) -> None:
        self.weight, self.bias = solved.weight, solved.bias

    def forward(self, features: Tensor) -> Tensor:
        """[B, D] → [B, C]."""
        return features.double() @ self.weight.T + self.bias
