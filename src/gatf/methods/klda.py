"""KLDA (Momeni, Mazumder, Liu: "Continual Learning Using a Kernel-Based Method Over Foundation Models", AAAI 2025)."""

import math
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import normalize

from gatf.methods.parts.closed_form import Discriminant, LinearRule, MomentMemory, SeparableConfig
from gatf.settings import Positive

NORM_GUARD = 1e-12


class KLDAConfig(SeparableConfig):
    name: str = "klda"
    projections: PositiveInt = 2000
    """D: number of random Fourier features (paper: 5 000)."""
    gamma: Positive = 0.5
    """γ of the kernel exp(−γ‖x − y‖²)."""
    unit_features: bool = True
    """Divide the backbone's features by their norm first, so that one γ suits all networks; the paper does not."""


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


class KLDA(Discriminant[KLDAConfig]):
    """Linear discriminant analysis of random Fourier features, which bends the borders between classes."""

    name = "klda"
    Config = KLDAConfig

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        width, gamma = self.config.projections, self.config.gamma
        self.kernel = self.make(lambda: FourierFeatures(self.feature_dim, width, gamma), "kernel")
        self.memory = MomentMemory(width, parts=self.config.keep_scatter)
        self.rule = LinearRule(width)

    def embedded(self, features: Tensor) -> Tensor:
        features = normalize(features, dim=1, eps=NORM_GUARD) if self.config.unit_features else features
        kernel: Tensor = self.kernel(features)
        return kernel
