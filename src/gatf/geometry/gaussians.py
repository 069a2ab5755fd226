"""One Gaussian per class: what exemplar-free methods keep instead of images, and how a map of features moves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gatf.geometry.anchor import Affine
from gatf.geometry.moments import Moments
from gatf.geometry.spd import Factor, cholesky, symmetrise

CPU_ROWS = 512
"""Rows mapped at once on a CPU, so that the hidden layer of an adapter, 32 times as wide, stays in the cache."""
DEVICE_ROWS = 20_000
"""Rows mapped at once on an accelerator, which wants large batches."""


@dataclass(frozen=True)
class Gaussians:
    """Means and covariances of C classes, in float64."""

    means: Tensor
    """[C, S]."""
    covs: Tensor
    """[C, S, S]; where classes share one matrix, C views of it, see `sharing`."""

    def __post_init__(self) -> None:
        if self.means.ndim != 2 or self.covs.shape != (*self.means.shape, self.means.shape[-1]):
            raise ValueError(
                f"means must be [C, S] and covs [C, S, S], got {list(self.means.shape)} and {list(self.covs.shape)}"
            )
        object.__setattr__(self, "means", self.means.to(torch.float64))
        object.__setattr__(self, "covs", self.covs.to(torch.float64))

    @classmethod
    def sharing(cls, means: Tensor, cov: Tensor) -> Gaussians:
        """Means [C, S] around which one covariance [S, S] holds, which is not copied for each class."""
        return cls(means, cov.expand(len(means), -1, -1))

    @property
    def common(self) -> Tensor | None:
        """The covariance [S, S] that all classes share in memory; None where each has its own."""
        shared = len(self.covs) > 0 and self.covs.stride(0) == 0
        return self.covs[0] if shared else None

    def mean_cov(self) -> Tensor:
        """The mean of the classes' covariances, [S, S]."""
        return self.covs.mean(0) if self.common is None else self.common

    def __len__(self) -> int:
        return len(self.means)

    def __getitem__(self, classes: slice | Tensor) -> Gaussians:
        """Some of the classes: a slice, an index tensor or a bool mask."""
        if self.common is not None:  # an index would copy the shared matrix for each class
            return Gaussians.sharing(self.means[classes], self.common)
        return Gaussians(self.means[classes], self.covs[classes])

    def concat(self, other: Gaussians) -> Gaussians:
        """These classes, then the other's."""
        return Gaussians(torch.cat([self.means, other.means]), torch.cat([self.covs, other.covs]))

    def to(self, device: torch.device | str) -> Gaussians:
        """The same on a device."""
        if self.common is not None:
            return Gaussians.sharing(self.means.to(device), self.common.to(device))
        return Gaussians(self.means.to(device), self.covs.to(device))


def white_noise(
    samples: int,
    dim: int,
    *,
    generator: torch.Generator,
    matched: bool,
    mirrored: bool = False,
    device: torch.device | str | None = None,
) -> Tensor:
    """Standard normal draws, [samples, dim], made on the generator's device and moved to `device`.

    `matched` recentres and whitens them: the sample mean is then exactly 0 and the unbiased sample covariance exactly
    I (up to rounding), so that an affine map is transported exactly whatever the number of samples, and what
    Monte-Carlo error remains is that of the map's non-linear part. Needs samples > dim, for rank.
    `mirrored` draws one half, the other is −1 times it (antithetic variates): odd moments are exact too, so that a
    map's even part adds no error to its covariance with the affine one. Needs an even number, and for `matched` twice
    as many samples as dimensions.
    """
    if mirrored and samples % 2:
        raise ValueError(f"mirrored noise needs an even number of samples, got {samples}")
    drawn = samples // 2 if mirrored else samples
    least = 2 * dim if mirrored else dim + 1
    if matched and samples < least:
        raise ValueError(f"matched noise needs at least {least} samples, got {samples} samples of {dim} dimensions")
    noise = torch.randn(drawn, dim, generator=generator, dtype=torch.float64, device=generator.device)
    if matched:
        orthonormal, upper = torch.linalg.qr(noise if mirrored else noise - noise.mean(0))
        # the sign makes the draw independent of LAPACK's convention: uniform over all orthonormal frames (⟂ 1)
        noise = orthonormal * upper.diagonal().sign() * ((samples - 1) * drawn / samples) ** 0.5
    noise = torch.cat([noise, -noise]) if mirrored else noise
    return noise.to(device if device is not None else generator.device)


def sample(gaussians: Gaussians, noise: Tensor, *, factor: Factor | None = None) -> Tensor:
    """μ_c + L_c ε_n for every class c and every row ε_n of the noise [N, S] → [C, N, S].

    Every class sees the same noise (common random numbers). `factor` = spd.cholesky(gaussians.covs) unless given.
    """
    factor = cholesky(gaussians.covs) if factor is None else factor
    return gaussians.means[:, None, :] + noise.to(gaussians.covs) @ factor.lower.mT


def push_affine(gaussians: Gaussians, affine: Affine) -> Gaussians:
    """The exact image under z ↦ P z + b: P μ + b, P Σ Pᵀ."""
    weight = affine.weight.to(gaussians.covs)
    return Gaussians(affine(gaussians.means), symmetrise(weight @ gaussians.covs @ weight.mT))


def push_forward(
    gaussians: Gaussians,
    transport: Callable[[Tensor], Tensor],
    *,
    noise: Tensor,
    chunk_rows: int | None = None,
    dtype: torch.dtype = torch.float32,
    factor: Factor | None = None,
) -> Gaussians:
    """Mean and unbiased covariance of the image of every class under any map: the "full" transport of AdaGauss.

    Samples μ_c + L_c·noise are mapped `chunk_rows` rows [rows, S] at once at most: several whole classes, or a part of
    one. `transport` sees them in `dtype` and without gradients, row by row the same whatever their company; moments
    are taken in float64. All classes share the noise [N, S], see `white_noise`. Pass `factor` to report what the
    factorisation needed.
    """
    if len(gaussians) == 0:
        return gaussians
    factor = cholesky(gaussians.covs) if factor is None else factor
    samples = len(noise)
    if chunk_rows is None:
        chunk_rows = CPU_ROWS if gaussians.covs.device.type == "cpu" else DEVICE_ROWS
    classes_at_once = max(1, chunk_rows // samples)
    means, covs = [], []
    with torch.no_grad():
        for start in range(0, len(gaussians), classes_at_once):
            chunk = slice(start, start + classes_at_once)
            part = Factor(factor.lower[chunk], factor.jitter[chunk], factor.clipped[chunk])
            drawn = sample(gaussians[chunk], noise, factor=part)  # [k, N, S]
            rows = torch.split(drawn.flatten(0, 1).to(dtype), chunk_rows)
            mapped = torch.cat([transport(part) for part in rows])  # [k·N, S_new]
            moments = Moments.of(mapped.reshape(-1, samples, mapped.shape[-1]))
            means.append(moments.mean)
            covs.append(moments.covariance())
    return Gaussians(torch.cat(means), torch.cat(covs))
