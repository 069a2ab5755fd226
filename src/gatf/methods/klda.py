"""KLDA (Momeni, Mazumder, Liu: "Continual Learning Using a Kernel-Based Method Over Foundation Models", AAAI 2025)."""

import math
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import normalize

from gatf.geometry.readout import linear_discriminant
from gatf.methods.base import TaskInfo
from gatf.methods.card import MethodCard
from gatf.methods.parts.closed_form import ClosedForm, ClosedFormConfig, LinearRule, MomentMemory
from gatf.settings import Fraction, Positive

NORM_GUARD = 1e-12


class KLDAConfig(ClosedFormConfig):
    name: str = "klda"
    projections: PositiveInt = 2000
    """D: random Fourier features that stand for the kernel (the paper: 5 000)."""
    gamma: Positive = 0.5
    """γ of the kernel exp(−γ‖x − y‖²)."""
    unit_features: bool = True
    """Divide the backbone's features by their norm first, so that one γ suits all networks (the paper leaves them as
    they are, and chooses γ for each)."""
    shrinkage: Fraction | None = None
    """How far the covariance is pulled towards the identity times its mean variance, 0 to 1. Default: √D/(√D + √n), for
    n images less one of each class."""
    few_images: bool = True
    """Allow for the noise in the mean of a class of few images, which otherwise loses against classes of many (off: as
    published)."""


class FourierFeatures(nn.Module):
    """√(2/D)·cos(√(2γ)·zᵀΩ + b), whose products are near exp(−γ‖x − y‖²) (Rahimi & Recht, "Random features for
    large-scale kernel machines", NeurIPS 2007), float64. Ω and b are drawn once and kept."""

    weight: Tensor
    phase: Tensor

    def __init__(self, dim: int, features: int, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.register_buffer("weight", torch.randn(dim, features))
        self.register_buffer("phase", 2 * math.pi * torch.rand(features))

    def forward(self, features: Tensor) -> Tensor:
        angles = math.sqrt(2 * self.gamma) * features.double() @ self.weight.double() + self.phase
        return math.sqrt(2 / len(self.phase)) * angles.cos()


class KLDA(ClosedForm[KLDAConfig]):
    """Linear discriminant analysis of random Fourier features, which bends the borders between classes."""

    name = "klda"
    Config = KLDAConfig
    card = MethodCard(
        summary="frozen backbone; linear discriminant on random Fourier features (AAAI 2025)",
        when="when the backbone is frozen, features have few dimensions and there are many images",
        keeps="mean and count of each class in the random features; one covariance for all",
        trains="backbone at task 0, unless its weights are pretrained; later nothing",
        authors=("Saleh Momeni", "Sahisnu Mazumder", "Bing Liu"),
        title="Continual Learning Using a Kernel-Based Method Over Foundation Models",
        venue="AAAI",
        year=2025,
        url="https://arxiv.org/abs/2412.15571",
    )  # fmt: skip

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        width, gamma = self.config.projections, self.config.gamma
        self.kernel = self.make(lambda: FourierFeatures(self.feature_dim, width, gamma), "kernel")
        self.memory = MomentMemory(width)
        self.rule = LinearRule(width)

    def learn(self, features: Tensor, labels: Tensor, task: TaskInfo) -> None:
        total = self.memory.add(features, labels, classes=task.seen, transform=self._embedded)
        share = total.noise_share() if self.config.shrinkage is None else self.config.shrinkage
        counts = total.counts if self.config.few_images else None
        self.rule.set(linear_discriminant(total.means, total.covariance(), share, counts))
        self.note("discriminant", shrinkage=share)

    def _embedded(self, features: Tensor) -> Tensor:
        kernel: Tensor = self.kernel(
            normalize(features, dim=1, eps=NORM_GUARD) if self.config.unit_features else features
        )
        return kernel

    def feature_scores(self, features: Tensor) -> Tensor:
        scores: Tensor = self.rule(self._embedded(features))
        return scores

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()
