"""Class prototypes, the nearest-mean rule, and what the methods that move prototypes (SDC, ADC, LDC) have in common.

A compensator sees the images of the current task through the old and the new feature network and moves prototypes of
the old space into the new one: `transport(prototypes, old, new, data) -> (prototypes, report)`. It knows nothing of how
the networks were trained, so each can be paired with every base learner of `distillation`.
"""

from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from gatf.geometry.readout import nearest_mean_distances
from gatf.methods.base import TaskData
from gatf.methods.components import Growing, extract
from gatf.methods.distillation import BaseLearner, FeatureDistillationBase, LwfBase
from gatf.settings import MethodConfig, NotNegative, Positive

Metric = Literal["cosine", "euclidean"]
Report = dict[str, float]


class PrototypeConfig(MethodConfig):
    """What the drift-compensated nearest-mean methods have in common: how the backbone is trained, how classes are told
    apart."""

    base: Literal["lwf", "feature"] = "lwf"
    """How the backbone is trained: distilling old logits (LwF), or features."""
    distill: NotNegative = 10.0
    """Weight λ of the distillation."""
    temperature: Positive = 2.0
    """T of LwF's softened logits."""
    cosine_head: bool = True
    """LwF: one cosine head with a learned scale (off: linear heads with bias)."""
    fix_bn: bool = False
    """Keep batch-norm statistics after task 0."""
    metric: Metric = "cosine"
    """Nearest mean between unit vectors, or between the vectors themselves."""
    compensate: bool = True
    """Move old prototypes after each task (off: they stay where they were learnt)."""

    def build_base(self, dim: int) -> BaseLearner:
        if self.base == "feature":
            return FeatureDistillationBase(dim, distill=self.distill, fix_bn=self.fix_bn)
        return LwfBase(
            dim, distill=self.distill, temperature=self.temperature, cosine=self.cosine_head, fix_bn=self.fix_bn
        )


LWF_OPTIMISATION: dict[str, Any] = {
    "first": {
        "optimiser": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "steps",
        "milestones": [0.3, 0.6, 0.8], "decay": 0.1, "clip": None, "warmup": 0.0, "drop_last": False,
    },
    "next": {
        "optimiser": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 2e-4, "schedule": "steps",
        "milestones": [0.45, 0.9], "decay": 0.1, "clip": None, "warmup": 0.0, "drop_last": False,
    },
}  # fmt: skip
"""How the ADC, LDC and DPCR releases train LwF on CIFAR-100 and ImageNet-100 (200 then 100 epochs, batch 128)."""


class Prototypes(Growing):
    """One raw mean a class, [C, D] float32, and the nearest-mean rule on it."""

    means: Tensor

    def __init__(self, dim: int, metric: Metric = "cosine") -> None:
        super().__init__()
        self.dim, self.metric = dim, metric
        self.register_buffer("means", torch.zeros(0, dim))

    def learn(self, net: nn.Module, data: TaskData) -> None:
        """Append the means of the task's classes: training images under the test transform, `net` in eval mode."""
        features, labels = extract(net, data)
        members = one_hot(labels - data.info.old, data.info.new).double()  # [N, new]
        means = (members.T @ features.double()) / members.sum(0)[:, None]
        self.means = torch.cat([self.means, finite(means.float())])

    def scores(self, features: Tensor) -> Tensor:
        """Minus the squared distance to every prototype, [B, C]."""
        return -nearest_mean_distances(features, self.means, normalise=self.metric == "cosine")

    def bytes_per_class(self) -> int:
        return self.means.element_size() * self.dim


class UnitLength(nn.Module):
    """Vectors divided by their length."""

    def forward(self, features: Tensor) -> Tensor:
        return normalize(features, dim=1)


class Compensator(Protocol):
    """Moves prototypes [K, D] from the old feature space into the new one, and reports how it went."""

    def transport(
        self, prototypes: Tensor, old: nn.Module, new: nn.Module, data: TaskData
    ) -> tuple[Tensor, Report]: ...


def finite(prototypes: Tensor) -> Tensor:
    """The prototypes, or an error: a single one that is not finite would spoil the nearest-mean test of all."""
    if not bool(prototypes.isfinite().all()):
        raise RuntimeError("a class prototype is not finite: training diverged, or a class has no images")
    return prototypes
