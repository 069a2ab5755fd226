"""Classifiers solved from sums over images, on a network that is frozen after the first task, or from the start.

Sums do not care in which order they are added: classes and tasks may come in any order, a known class may come back,
and the answer is that of all images at once. Each image needs one forward pass.
"""

from abc import ABC
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from gatf.geometry import spd
from gatf.geometry.moments import PooledMoments
from gatf.geometry.readout import LinearReadout, linear_discriminant
from gatf.methods.base import ForTask, Phase, TaskData, TaskInfo
from gatf.methods.parts.extraction import Growing, extract
from gatf.methods.parts.features import FeatureMethod
from gatf.methods.parts.stages import FIRST_TASK_OPTIMISATION
from gatf.settings import Fraction, MethodConfig, Positive

ROWS = 2048
"""Features that are made into sums at once, in float64."""


class ClosedFormConfig(MethodConfig):
    """Closed-form classifiers: whether the network is trained in the first task."""

    train_first: bool | None = None
    """Train the network with cross-entropy in the first task; later it is frozen. Default: unless it is pretrained."""

    def training(self) -> dict[str, Any]:
        """All train the first task's network alike."""
        return {"train_first": self.train_first}

    def first_training(self) -> dict[str, Any]:
        return self.training()


ClosedFormConfigT = TypeVar("ClosedFormConfigT", bound=ClosedFormConfig, covariant=True)


class DiscriminantConfig(ClosedFormConfig):
    """Settings of linear discriminant analysis."""

    shrinkage: Fraction | None = None
    """Shrinkage of the covariance towards the scaled identity (1: nearest mean). Default: √D/(√D + √n), for D
    dimensions and n images minus one per class."""
    few_images: bool = True
    """Correct for the noise in the mean of a class with few images; off: as published."""


class SeparableConfig(DiscriminantConfig):
    """Exact removal of classes."""

    keep_scatter: bool = False
    """Store the scatter of each class: S(S+1)/2 numbers for S features. `gatf forget` then removes classes exactly."""


DiscriminantConfigT = TypeVar("DiscriminantConfigT", bound=DiscriminantConfig, covariant=True)


class AnalyticConfig(ClosedFormConfig):
    """Ridge regression on random features: the settings of ACIL and DS-AL."""

    preset: Literal["light", "paper"] = "light"
    """A number of random features for a CPU, or the paper's for CIFAR-100."""
    projections: PositiveInt = 2000
    """Number of random features."""
    ridge: Positive = 0.1
    """γ of the regression."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"method": {"projections": 8192}}}


AnalyticConfigT = TypeVar("AnalyticConfigT", bound=AnalyticConfig, covariant=True)


class ClosedForm(FeatureMethod[ClosedFormConfigT], ABC):
    """A method whose classifier is solved from sums over the features of all images seen."""

    revisits = True
    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}, "optimisation": FIRST_TASK_OPTIMISATION}
    head = ForTask[nn.Linear]()
    memory: "MomentMemory"
    rule: "LinearRule"
    """The classifier, in methods that solve a single linear one."""

    @property
    def network_is_fixed(self) -> bool:
        asked = self.config.train_first
        return bool(getattr(self.backbone, "pretrained", False)) if asked is None else not asked

    def begin_task(self, task: TaskInfo) -> None:
        if self.trains(task):
            self.head = self.make(lambda: nn.Linear(self.feature_dim, task.new), "head", task.index)

    def phases(self, task: TaskInfo) -> list[Phase]:
        return self.first_task(self.head, task) if self.trains(task) else []

    def trains(self, task: TaskInfo) -> bool:
        """Whether the task trains the backbone."""
        return task.index == 0 and not self.network_is_fixed

    def end_task(self, data: TaskData) -> None:
        self.learn_task(data)

    @torch.no_grad()
    def learn_task(self, data: TaskData) -> tuple[Tensor, Tensor]:
        """Learn a task's images; their features [N, S] and class numbers [N]."""
        features, labels = extract(self.backbone, data)
        if not bool(features.isfinite().all()):
            raise RuntimeError("some features are not finite: training the network diverged")
        self.learn(features, labels, data.info)
        self.head = None
        return features, labels

    def learn(self, features: Tensor, labels: Tensor, task: TaskInfo) -> None:
        """Add the task's images, features [N, S] and class numbers [N] below `task.seen`, and solve the classifier."""
        total = self.memory.add(features, labels, classes=task.seen, transform=self.embedded)
        self.tune(features, labels, task.index)
        self.solve(total)

    def absorb(self, moments: PooledMoments) -> None:
        """Add the moments of `embedded` features, class k as class number k, and solve the classifier."""
        self.solve(self.memory.merge(moments))

    def embedded(self, features: Tensor) -> Tensor:
        """What the sums are over, [N, S] → [N, width of the memory]."""
        return features

    def tune(self, features: Tensor, labels: Tensor, task: int) -> None:
        """Measure on a task's features, or a sample of them, what the classifier's own settings are chosen by."""

    def solve(self, total: PooledMoments) -> None:
        """Solve the classifier from the moments of all features; a method that needs more overrides `learn`."""
        raise NotImplementedError

    def feature_scores(self, features: Tensor) -> Tensor:
        scores: Tensor = self.rule(self.embedded(features))
        return scores

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()


class Discriminant(ClosedForm[DiscriminantConfigT], ABC):
    """Linear discriminant analysis of the embedded features."""

    def solve(self, total: PooledMoments) -> None:
        share = total.noise_share() if self.config.shrinkage is None else self.config.shrinkage
        counts = total.counts if self.config.few_images else None
        self.rule.set(linear_discriminant(total.means, total.covariance(), share, counts))
        self.note("discriminant", shrinkage=share)


class Analytic(ClosedForm[AnalyticConfigT], ABC):
    """Regression on the ReLU of a random expansion of the features."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        dim, width = self.feature_dim, self.config.projections
        # as PyTorch draws the weight of a linear layer
        self.buffer = self.make(
            lambda: RandomFeatures(torch.empty(dim, width).uniform_(-(dim**-0.5), dim**-0.5)), "buffer"
        )
        self.memory = MomentMemory(width)

    def embedded(self, features: Tensor) -> Tensor:
        return torch.relu(self.buffer(features))


class RandomFeatures(nn.Module):
    """zᵀW, float64. W [S, M] is drawn once and kept: another machine or version might draw another."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, features: Tensor) -> Tensor:
        return features.double() @ self.weight.double()  # rounded alike in batches of any size


class MomentMemory(Growing):
    """`PooledMoments` of all images seen, float64: in float32 what many small updates add would be rounded away.

    The scatter that all classes share is kept as a packed triangle.
    """

    counts: Tensor
    means: Tensor
    triangle: Tensor
    triangles: Tensor | None
    has_scatter: ClassVar[bool] = True

    def __init__(self, dim: int, *, parts: bool = False) -> None:
        """`parts`: keep what each class adds to the scatter."""
        super().__init__()
        self.dim = dim
        self.register_buffer("counts", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("means", torch.zeros(0, dim, dtype=torch.float64))
        self.register_buffer("triangle", torch.zeros(dim * (dim + 1) // 2, dtype=torch.float64))
        self.register_buffer("triangles", self.triangle.new_zeros(0, len(self.triangle)) if parts else None)

    @property
    def has_parts(self) -> bool:
        """Whether the scatter of each class is kept."""
        return self.triangles is not None

    def get(self) -> PooledMoments:
        return PooledMoments(self.counts, self.means, spd.unpack(self.triangle, self.dim), self.triangles)

    def set(self, total: PooledMoments) -> PooledMoments:
        self.counts, self.means, self.triangle = total.counts, total.means, spd.pack(total.scatter)
        self.triangles = total.parts
        return total

    def add(
        self, features: Tensor, labels: Tensor, *, classes: int, transform: Callable[[Tensor], Tensor]
    ) -> PooledMoments:
        """Moments of what `transform` makes of features [N, S], a block of rows at a time, and of all before."""
        total = self.get()
        for rows, numbers in zip(features.split(ROWS), labels.split(ROWS), strict=True):
            more = PooledMoments.of(transform(rows), numbers, classes=classes, parts=self.has_parts)
            total = total.merge(more)
        return self.set(total)

    def merge(self, moments: PooledMoments) -> PooledMoments:
        """Moments of all before and these."""
        return self.set(self.get().merge(moments))

    def bytes_per_class(self) -> int:
        """What one more class takes: its mean, its count and its own scatter, if kept; the other is all classes'."""
        return self.means.element_size() * (self.dim + 1 + (0 if self.triangles is None else self.triangles.shape[1]))


class LinearRule(Growing):
    """The linear classifier solved last, float64, solved again after each task."""

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
