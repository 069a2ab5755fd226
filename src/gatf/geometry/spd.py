"""Symmetric positive (semi-)definite matrices: shrinking, normalising and factorising class covariances.

All functions take a batch [..., S, S] and work in float64, whatever comes in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from gatf.errors import NotFinite

STD_GUARD = 1e-12
"""Smallest standard deviation `correlation` divides by."""
FIRST_RUNG = 1e-6
"""First jitter of the ladder, as a fraction of the mean variance."""
RUNGS = 3
"""Jitters tried, each ten times the last, before eigenvalues are clipped."""
FLOOR = 1e-4
"""Eigenvalues are clipped at this value."""
CLIP_GUARD = 1e-10
"""Eigenvalues are never clipped below this fraction of the largest: float64 could not distinguish them from zero."""


def symmetrise(m: Tensor) -> Tensor:
    """(M + Mᵀ)/2, [..., S, S] → [..., S, S]."""
    m = m.to(torch.float64)
    return (m + m.mT).div_(2)


def pack(covs: Tensor) -> Tensor:
    """Lower triangles, row by row: [C, S, S] → [C, S(S+1)/2], half the storage."""
    rows, columns = torch.tril_indices(covs.shape[-1], covs.shape[-1], device=covs.device)
    return covs.to(torch.float64)[..., rows, columns]


def unpack(packed: Tensor, dim: int) -> Tensor:
    """The symmetric matrices of `pack`: [C, S(S+1)/2] → [C, S, S]."""
    if packed.shape[-1] != dim * (dim + 1) // 2:
        raise ValueError(f"{packed.shape[-1]} numbers are not a triangle of a {dim}×{dim} matrix")
    rows, columns = torch.tril_indices(dim, dim, device=packed.device)
    covs = packed.new_zeros((*packed.shape[:-1], dim, dim), dtype=torch.float64)
    covs[..., rows, columns] = packed.to(torch.float64)
    covs[..., columns, rows] = covs[..., rows, columns]
    return covs


def _mean_variance(cov: Tensor) -> Tensor:
    return cov.diagonal(dim1=-2, dim2=-1).mean(-1)  # [...]


def _plus_diagonal(cov: Tensor, amount: Tensor | float) -> Tensor:
    """Σ + amount·I for one amount, or one per matrix ([...])."""
    eye = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
    return cov + (amount[..., None, None] * eye if isinstance(amount, Tensor) else amount * eye)


def shrink(cov: Tensor, amount: float, *, off_diagonal: float = 0.0) -> Tensor:
    """Σ + amount·V₁·I + off_diagonal·V₂·(J − I), V₁ and V₂ the mean diagonal and off-diagonal entry.

    AdaGauss's sh(Σ, a) has the first term only; FeCAM (Goswami et al., NeurIPS 2023) has both. V₂ averages over all
    S(S−1) entries, zeros included, which keeps the result positive definite when features are dead. A second pass
    with the same γ equals one pass with (1+γ)² − 1. [..., S, S] → [..., S, S].
    """
    cov = cov.to(torch.float64)
    dim = cov.shape[-1]
    mean_variance = _mean_variance(cov)
    shrunk = _plus_diagonal(cov, amount * mean_variance)
    if off_diagonal != 0.0 and dim > 1:
        mean_covariance = (cov.sum((-2, -1)) - dim * mean_variance) / (dim * (dim - 1))
        hollow = 1.0 - torch.eye(dim, dtype=cov.dtype, device=cov.device)  # J − I, [S, S]
        shrunk = shrunk + off_diagonal * mean_covariance[..., None, None] * hollow
    return shrunk


def blend(cov: Tensor, share: float) -> Tensor:
    """(1 − share)·Σ + share·V₁·I, V₁ the mean variance: shrinkage that keeps the trace (Ledoit & Wolf, "A
    well-conditioned estimator for large-dimensional covariance matrices", 2004). [..., S, S] → [..., S, S]."""
    cov = cov.to(torch.float64)
    return _plus_diagonal((1 - share) * cov, share * _mean_variance(cov))


def correlation(cov: Tensor) -> Tensor:
    """R_ij = Σ_ij / √(Σ_ii Σ_jj), with a diagonal of exactly one. [..., S, S] → [..., S, S].

    A dead feature (no variance) becomes one that correlates with nothing, instead of a zero row nobody can invert.
    """
    cov = cov.to(torch.float64)
    std = cov.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt().clamp_min(STD_GUARD)  # [..., S]
    normalised = cov / std[..., :, None] / std[..., None, :]
    eye = torch.eye(cov.shape[-1], dtype=torch.bool, device=cov.device)
    return normalised.masked_fill(eye, 1.0)


def clip_eigenvalues(cov: Tensor, lowest: float) -> Tensor:
    """Raise every eigenvalue to at least `lowest`.

    [..., S, S] → [..., S, S]: the nearest matrix in Frobenius norm with that lower bound.
    """
    values, vectors = torch.linalg.eigh(symmetrise(cov))  # [..., S] ascending, [..., S, S]
    return symmetrise((vectors * values.clamp_min(lowest)[..., None, :]) @ vectors.mT)


def condition_number(cov: Tensor) -> Tensor:
    """λ_max / λ_min, [..., S, S] → [...]; +inf for a matrix that is not positive definite."""
    values = torch.linalg.eigvalsh(symmetrise(cov))  # [..., S] ascending
    lowest, highest = values[..., 0], values[..., -1]
    return torch.where(lowest > 0, highest / lowest, torch.inf)


@dataclass(frozen=True)
class Factor:
    """Lower Cholesky factors and what it took to get them."""

    lower: Tensor
    """L with L·Lᵀ = the matrix (repaired where needed), [..., S, S]."""
    jitter: Tensor
    """What a rung of the ladder added to the diagonal, [...]; 0 where the matrix factorised as asked."""
    clipped: Tensor
    """Where eigenvalues had to be clipped, bool [...]."""

    @property
    def repaired(self) -> Tensor:
        """Which matrices needed the ladder, bool [...]."""
        return (self.jitter > 0) | self.clipped


@dataclass
class Ladder:
    """How often matrices needed the ladder of `cholesky`."""

    jittered: int = 0
    """Matrices that one of its jitters was enough for."""
    clipped: int = 0
    """Indices of matrices whose eigenvalues were clipped."""

    @property
    def used(self) -> int:
        return self.jittered + self.clipped


_counted: ContextVar[Ladder | None] = ContextVar("ladder", default=None)


@contextmanager
def counting() -> Iterator[Ladder]:
    """Inside, every matrix that needs the ladder is counted, unless an inner one of these counts it."""
    ladder = Ladder()
    before = _counted.set(ladder)
    try:
        yield ladder
    finally:
        _counted.reset(before)


def cholesky(cov: Tensor, jitter: float = 0.0) -> Factor:
    """Lower Cholesky factor of Σ + jitter·I, [..., S, S], by a ladder that finite input never falls off.

    1. Σ symmetrised, plus `jitter` on the diagonal.
    2. The matrices that failed, and only those: jitter j, 10j, 100j with j = max(10·jitter, 1e-6·mean(diag Σ)),
       instead of the one asked for.
    3. Those that still fail: eigenvalues of Σ raised to max(1e-4, 1e-10·λ_max) (the GATF release clamps at 1e-4);
       the factor is the R of a QR of √Λ·Vᵀ, which cannot fail again.

    A matrix that is singular only up to rounding may pass step 1 with a tiny pivot: shrink first if L is to be
    inverted. Raises `NotFinite`, a ValueError, for NaN or infinite entries.
    """
    batch = cov.shape[:-2]
    matrices = symmetrise(cov).flatten(0, -3) if batch else symmetrise(cov)[None]  # [M, S, S]
    finite = matrices.isfinite().all(-1).all(-1)  # [M]
    if not bool(finite.all()):
        bad = int((~finite).sum())
        raise NotFinite(f"{bad} of {len(matrices)} covariance matrices have entries that are not finite")

    lower, info = torch.linalg.cholesky_ex(_plus_diagonal(matrices, jitter))
    added = matrices.new_zeros(len(matrices))
    clipped = torch.zeros_like(added, dtype=torch.bool)
    failed = info.nonzero().flatten()  # indices of the matrices still without a factor
    needy = len(failed)
    for rung in range(RUNGS):
        if len(failed) == 0:
            break
        start = (FIRST_RUNG * _mean_variance(matrices[failed])).clamp_min(10 * jitter)
        added[failed] = start * 10.0**rung
        lower[failed], info = torch.linalg.cholesky_ex(_plus_diagonal(matrices[failed], added[failed]))
        failed = failed[info != 0]
    if len(failed) > 0:
        added[failed], clipped[failed] = 0.0, True
        lower[failed] = _clipped_factor(matrices[failed])
    if (ladder := _counted.get()) is not None:
        ladder.jittered += needy - len(failed)
        ladder.clipped += len(failed)
    return Factor(lower.reshape(cov.shape), added.reshape(batch), clipped.reshape(batch))


def _clipped_factor(matrices: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrices)  # [M, S] ascending, [M, S, S]
    lowest = (CLIP_GUARD * values[:, -1:]).clamp_min(FLOOR)
    root = torch.maximum(values, lowest).sqrt()[:, :, None] * vectors.mT  # rootᵀ·root = the clipped matrix
    upper: Tensor = torch.linalg.qr(root, mode="r").R
    return (upper * upper.diagonal(dim1=-2, dim2=-1).sign()[:, :, None]).mT  # positive diagonal, as Cholesky has
