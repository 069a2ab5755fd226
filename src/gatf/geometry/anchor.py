"""The Analytic Geometric Anchor of GATF (Xu & Krawczyk, ECCV 2026, Eq. 5 and Theorem 1): z_new ≈ P z_old + b.

Column convention: P is [S_new, S_old], covariances are of centred features, K = Cov(new, old) is [S_new, S_old].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from gatf.geometry.moments import PairedMoments

AnchorKind = Literal["sylvester", "ridge", "identity"]
CLIP = 1e-10
"""Smallest eigenvalue, as a fraction of the largest."""
TINY = torch.finfo(torch.float64).tiny
"""Smallest eigenvalue of Σ_o divided by."""


def _clipped_spectrum(cov: Tensor, lowest: float = 0.0) -> tuple[Tensor, Tensor]:
    """Eigenvalues raised to `CLIP` times the largest and to `lowest`, [S], and eigenvectors, [S, S].

    Of Σ only the lower triangle is read.
    """
    values, vectors = torch.linalg.eigh(cov.to(torch.float64))
    return values.clamp(min=(CLIP * values[-1]).clamp_min(lowest)), vectors


def _check_ridge(ridge: float) -> None:
    if ridge < 0:
        raise ValueError(f"ridge must not be negative, got {ridge}")


def solve_sylvester(cov_old: Tensor, cov_new: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """P with P Σ_o + ρ Σ_n P = K (GATF, Theorem 1), [S_new, S_old].

    With Σ_n = U diag(λ) Uᵀ and Σ_o = V diag(γ) Vᵀ: P = U X Vᵀ, X_ij = (Uᵀ K V)_ij / (γ_j + ρ λ_i). Eigenvalues are
    clipped at `CLIP` times the largest, so that a rank-deficient Σ_o (few samples, dead features) gives a finite P;
    a direction without any variance on either side is mapped to zero.
    """
    _check_ridge(ridge)
    values_old, basis_old = _clipped_spectrum(cov_old, TINY)
    values_new, basis_new = _clipped_spectrum(cov_new)
    denominator = torch.add(values_old, values_new[:, None], alpha=ridge)  # [S_new, S_old]
    rotated = basis_new.mT @ cross.to(torch.float64) @ basis_old
    return basis_new @ (rotated / denominator) @ basis_old.mT


def solve_ridge(cov_old: Tensor, cross: Tensor, *, ridge: float) -> Tensor:
    """P = K (Σ_o + ρI)⁻¹, ordinary ridge regression, [S_new, S_old]: what the GATF release computes.

    Whitening the targets by Σ_n and un-whitening the solution cancels, so only `solve_sylvester` couples Σ_n. The two
    coincide for isotropic Σ_n = σ²I, with this ridge equal to ρσ².
    """
    _check_ridge(ridge)
    values, basis = _clipped_spectrum(cov_old, TINY)
    return (cross.to(torch.float64) @ basis / (values + ridge)) @ basis.mT


def load_diagonal(moments: PairedMoments, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Σ_o + δI, Σ_n + δI and K + δI with δ = share · mean(diag Σ_o): as if a few more pairs had been seen, scattered
    alike in all directions and not moved by training. Directions that no image shows then stay where they are."""
    cov_old, cov_new, cross = moments.cov_old, moments.cov_new, moments.cross
    added = share * cov_old.diagonal().mean() * torch.eye(len(cov_old), dtype=cov_old.dtype, device=cov_old.device)
    return cov_old + added, cov_new + added, cross + added


def solve_towards_identity(cov_old: Tensor, cov_new: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """P that minimises E‖P x − y‖²_{Σ_n⁻¹} + ρ‖P − I‖²_F, [S, S]: GATF's Eq. 5, but P is the identity, not zero,
    where the images say nothing.

    Stationarity gives P Σ_o + ρ Σ_n P = K + ρ Σ_n, Theorem 1's equation with another right-hand side. Without drift
    (Σ_o = Σ_n = K) the solution is P = I, where Eq. 5 itself gives I/(1 + ρ) and so deflates every old covariance.
    """
    return solve_sylvester(
        cov_old, cov_new, cross=cross.to(torch.float64) + ridge * cov_new.to(torch.float64), ridge=ridge
    )


@dataclass(frozen=True)
class Affine:
    """z ↦ P z + b."""

    weight: Tensor
    """P, [S_new, S_old]."""
    bias: Tensor
    """b, [S_new]."""

    def __call__(self, z: Tensor) -> Tensor:
        """[..., S_old] → [..., S_new], in the dtype and on the device of z."""
        return z @ self.weight.to(z).mT + self.bias.to(z)


IDENTITY_LOAD = 1e-2
"""Share of the mean variance that the `identity` anchor adds to every direction."""


def fit_anchor(moments: PairedMoments, ridge: float, *, kind: AnchorKind = "sylvester") -> Affine:
    """The anchor of these pairs: P by `kind`, b = μ_n − P μ_o (GATF, Eq. 5).

    `sylvester` is Theorem 1, `ridge` is what the release computes, and `identity` shrinks towards I instead of zero,
    which needs fewer images.
    """
    if kind == "sylvester":
        weight = solve_sylvester(moments.cov_old, moments.cov_new, moments.cross, ridge)
    elif kind == "ridge":
        weight = solve_ridge(moments.cov_old, moments.cross, ridge=ridge)
    elif kind == "identity":
        weight = solve_towards_identity(*load_diagonal(moments, IDENTITY_LOAD), ridge=ridge)
    else:
        raise ValueError(f"kind of anchor must be one of {', '.join(get_args(AnchorKind))}, got {kind!r}")
    return Affine(weight, moments.mean_new - weight @ moments.mean_old)
