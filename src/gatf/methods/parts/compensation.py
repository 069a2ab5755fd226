"""Class prototypes, the nearest-mean rule, and what the methods that move prototypes (SDC, ADC, LDC) have in common.

A compensator sees the images of the current task through the old and the new feature network and moves prototypes of
the old space into the new one: `transport(prototypes, old, new, data) -> (prototypes, report)`. It knows nothing of how
the networks were trained, so each can be paired with every base learner of `distillation` and `embedding`.
"""

from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from gatf.methods.base import Method, TaskData
from gatf.methods.parts.distillation import BaseLearner, FeatureDistillationBase, LwfBase
from gatf.methods.parts.embedding import EmbeddingInit, Regulariser, TripletBase
from gatf.methods.parts.prototypes import Metric
from gatf.methods.parts.triplets import LwfLoss, Triplets, check_class_batches
from gatf.settings import MethodConfig, NotNegative, Positive

Report = dict[str, float]
TRIPLET_DEFAULTS: dict[str, Any] = {"metric": "euclidean", "floor": 0.0, "fix_bn": True}
"""Where the triplet base has other defaults: prototypes of unit vectors are means as they are, the kernel has no floor,
and batch statistics of a few classes would bias batch-norm."""


class PrototypeConfig(MethodConfig):
    """What the drift-compensated nearest-mean methods have in common: how the backbone is trained, how classes are told
    apart."""

    base: Literal["lwf", "feature", "triplet"] = "lwf"
    """How the backbone is trained: distilling old logits (LwF), distilling features, or as an embedding with a triplet
    loss (SDC's paper, whose optimiser and rates `sdc`'s preset `paper` brings)."""
    distill: NotNegative = 10.0
    """Weight λ of the distillation of logits or features."""
    temperature: Positive = 2.0
    """T of LwF's softened logits."""
    cosine_head: bool = True
    """LwF: one cosine head with a learned scale (off: linear heads with bias)."""
    fix_bn: bool = False
    """Keep batch-norm statistics after task 0. Triplet: on, as published for CIFAR-100 and ImageNet-Subset (off for
    CUB, Flowers, Cars)."""
    metric: Metric = "cosine"
    """Nearest mean between unit vectors, or between the vectors themselves. Triplet: euclidean, where only the
    embeddings have length 1."""
    compensate: bool = True
    """Move old prototypes after each task (off: they stay where they were learnt)."""
    embedding: PositiveInt | None = 512
    """Triplet: dimension of the linear layer after the backbone's features, where prototypes live; null for none."""
    embedding_init: EmbeddingInit = "small"
    """Triplet: the layer's first weights, normal with deviation 0.001 (published for CIFAR-100, networks trained from
    nothing) or √(2/embedding) ("fan_out", for ResNet-18: pretrained, and on ImageNet-Subset); no bias to begin with."""
    margin: NotNegative = 0.0
    """Triplet: by how much another class must be farther than the own one (1 in AdaGauss's SDC)."""
    images_per_class: Annotated[int, Field(ge=2)] = 8
    """Triplet: images of a class in a batch, and in an epoch."""
    triplets: Triplets = "random"
    """Triplet: each pair of a class with a random negative; the release's choice by place in the batch ("official",
    CIFAR-100 and ImageNet-Subset); or the farthest positive and nearest negative ("hard", the release elsewhere)."""
    regulariser: Regulariser = "lwf"
    """Triplet: what holds the network after task 0: nothing (E-FT), old embeddings (E-LwF), or each weight's importance
    to the last task (E-EWC, E-MAS)."""
    regulariser_weight: NotNegative | None = None
    """Triplet: weight γ of the regulariser. Default: 1 for lwf, 1e7 for ewc, 1e6 for mas."""
    lwf_loss: LwfLoss = "squared"
    """Triplet: E-LwF as half the squared distance summed over the batch (the release, to which γ = 1 belongs), or as
    the mean distance (the paper)."""
    softmax_epochs: NonNegativeInt = 0
    """Triplet: epochs of softmax classification before task 0's triplet loss (200 for CIFAR-100 and ImageNet-Subset,
    without which the published rate of 1e-6 learns nothing)."""
    softmax_lr: Positive = 0.1
    """Triplet: learning rate of those epochs (SGD, batch 128, ×0.1 after 30, 60 and 80 %)."""

    @model_validator(mode="before")
    @classmethod
    def _fill_by_base(cls, values: Any) -> Any:
        """The triplet base, also a preset's, replaces defaults; what the user wrote stays."""
        if not isinstance(values, dict):
            return values
        chosen = {**cls.preset_layer(values.get("preset")).get("method", {}), **values}
        own = TRIPLET_DEFAULTS if chosen.get("base") == "triplet" else {}
        return {**{name: value for name, value in own.items() if name in cls.model_fields}, **chosen}

    @property
    def in_backbone_space(self) -> bool:
        """Whether features and prototypes are the backbone's own."""
        return self.base != "triplet"

    def dim(self, backbone: int) -> int:
        """Dimension of features and prototypes on a backbone of this one."""
        return backbone if self.in_backbone_space or self.embedding is None else self.embedding

    def build_base(self, method: Method) -> BaseLearner:
        dim = method.feature_dim
        if self.base == "triplet":
            check_class_batches(method.optimisation, self.images_per_class)
            return TripletBase(
                dim, seed=method.seed, embedding=self.embedding, embedding_init=self.embedding_init,
                margin=self.margin, per_class=self.images_per_class, triplets=self.triplets,
                regulariser=self.regulariser, weight=self.regulariser_weight, lwf_loss=self.lwf_loss,
                softmax_epochs=self.softmax_epochs, softmax_lr=self.softmax_lr, fix_bn=self.fix_bn,
            )  # fmt: skip
        if self.base == "feature":
            return FeatureDistillationBase(dim, distill=self.distill, fix_bn=self.fix_bn)
        return LwfBase(
            dim, distill=self.distill, temperature=self.temperature, cosine=self.cosine_head, fix_bn=self.fix_bn
        )


class Compensator(Protocol):
    """Moves prototypes [K, D] from the old feature space into the new one, and reports how it went."""

    def transport(
        self, prototypes: Tensor, old: nn.Module, new: nn.Module, data: TaskData
    ) -> tuple[Tensor, Report]: ...
