"""The Gaussian mechanism for class moments: noise that hides whether any one image was among those they were taken of.

Dwork & Roth, "The algorithmic foundations of differential privacy" (2014); the noise is calibrated exactly, as in
Balle & Wang, "Improving the Gaussian mechanism for differential privacy" (ICML 2018). docs/privacy.md says what it
promises and what it does not.
"""

from __future__ import annotations

import math
import secrets

import torch
from torch import Tensor

from gatf.geometry.gaussians import Gaussians
from gatf.geometry.moments import Moments
from gatf.geometry.spd import clip_eigenvalues, symmetrise

FLOOR = 1e-4
"""Smallest variance that is left of a noisy covariance, as a fraction of the squared clipping norm."""


def noise_multiplier(epsilon: float, delta: float) -> float:
    """σ/Δ of the least noise that gives (ε, δ): the root of Φ(1/2s − εs) − e^ε·Φ(−1/2s − εs) = δ, which falls in s."""

    def excess(s: float) -> float:
        return _phi(1 / (2 * s) - epsilon * s) - math.exp(epsilon) * _phi(-1 / (2 * s) - epsilon * s) - delta

    low, high = 1e-6, 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def _phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def clipped(features: Tensor, norm: float) -> Tensor:
    """Features [N, S] no longer than `norm`: longer ones are scaled to it."""
    lengths: Tensor = features.norm(dim=1, keepdim=True)
    return features * (norm / lengths.clamp_min(norm))


def sensitivity(norm: float, rows: int = 1) -> float:
    """How far (Σz, Σzzᵀ/C) can move, in the Euclidean norm, when one image is replaced whose `rows` features (itself
    and its mirror image) are no longer than C: Σz by 2·rows·C, and Σzzᵀ by √2·rows·C²."""
    return rows * norm * math.sqrt(4 + 2)


def noisy(moments: Moments, epsilon: float, delta: float, norm: float, *, rows: int = 1) -> Gaussians:
    """Gaussians [C, S] of clipped features, released once with (ε, δ) for each image; how many there are is not hidden.

    The noise comes from the system's entropy, not from a seed: who knows the seed could take it off again. What comes
    after it (a positive definite covariance) costs no privacy.
    """
    sigma = noise_multiplier(epsilon, delta) * sensitivity(norm, rows)
    generator = torch.Generator().manual_seed(secrets.randbits(63))

    def draw(like: Tensor) -> Tensor:
        return sigma * torch.randn(like.shape, dtype=torch.float64, generator=generator).to(like.device)

    count = moments.count.clamp_min(1)[:, None]
    sums = moments.mean * moments.count[:, None]
    second = moments.scatter + sums[:, :, None] * moments.mean[:, None, :]  # Σzzᵀ
    mean = (sums + draw(sums)) / count
    # (G + Gᵀ)/2 is white noise among the symmetric matrices: variance σ² on the diagonal, σ²/2 beside it
    spread = (symmetrise(second) + norm * symmetrise(draw(second))) / count[..., None]
    cov = spread - mean[:, :, None] * mean[:, None, :]
    return Gaussians(mean, clip_eigenvalues(cov, FLOOR * norm**2))
