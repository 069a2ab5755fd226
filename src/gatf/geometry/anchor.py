"""The Analytic Geometric Anchor of GATF (Xu & Krawczyk, ECCV 2026, Eq. 5 and Theorem 1): z_new ≈ P z_old + b.

Column convention: P is [S_new, S_old], covariances are of centred features, K = Cov(new, old) is [S_new, S_old].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from gatf.geometry.moments import PairedMoments
from gatf.geometry.spd import cholesky

AnchorKind = Literal["sylvester", "ridge", "identity", "lowrank", "procrustes"]
RIDGES: tuple[float, ...] = tuple(10.0 ** (half / 2) for half in range(-12, 5))
"""Among which `choose_ridge` chooses: 10⁻⁶ to 100 in steps of half a decade."""
TINY = torch.finfo(torch.float64).tiny
"""Smallest eigenvalue of Σ_o divided by."""


def _clipped_spectrum(cov: Tensor, clip: float, lowest: float = 0.0) -> tuple[Tensor, Tensor]:
    """Eigenvalues raised to `clip` times the largest and to `lowest`, [S], and eigenvectors, [S, S].

    Of Σ only the lower triangle is read.
    """
    values, vectors = torch.linalg.eigh(cov.to(torch.float64))
    return values.clamp(min=(clip * values[-1]).clamp_min(lowest)), vectors


def _check_ridge(ridge: float) -> None:
    if ridge < 0:
        raise ValueError(f"ridge must not be negative, got {ridge}")


def solve_sylvester(cov_old: Tensor, cov_new: Tensor, cross: Tensor, ridge: float, *, clip: float = 1e-10) -> Tensor:
    """P with P Σ_o + ρ Σ_n P = K (GATF, Theorem 1), [S_new, S_old].

    With Σ_n = U diag(λ) Uᵀ and Σ_o = V diag(γ) Vᵀ: P = U X Vᵀ, X_ij = (Uᵀ K V)_ij / (γ_j + ρ λ_i). Eigenvalues are
    clipped at `clip` times the largest, so that a rank-deficient Σ_o (few samples, dead features) gives a finite P;
    a direction without any variance on either side is mapped to zero.
    """
    _check_ridge(ridge)
    values_old, basis_old = _clipped_spectrum(cov_old, clip, TINY)
    values_new, basis_new = _clipped_spectrum(cov_new, clip)
    denominator = torch.add(values_old, values_new[:, None], alpha=ridge)  # [S_new, S_old]
    rotated = basis_new.mT @ cross.to(torch.float64) @ basis_old
    return basis_new @ (rotated / denominator) @ basis_old.mT


def solve_ridge(cov_old: Tensor, cross: Tensor, *, ridge: float, clip: float = 1e-10) -> Tensor:
    """P = K (Σ_o + ρI)⁻¹, ordinary ridge regression, [S_new, S_old]: what the GATF release computes.

    Whitening the targets by Σ_n and un-whitening the solution cancels, so only `solve_sylvester` couples Σ_n. The two
    coincide for isotropic Σ_n = σ²I, with this ridge equal to ρσ².
    """
    _check_ridge(ridge)
    values, basis = _clipped_spectrum(cov_old, clip, TINY)
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


def choose_ridge(cov_old: Tensor, cov_new: Tensor, cross: Tensor, *, count: float, towards_identity: bool) -> float:
    """The ρ of `RIDGES` with the least error by generalised cross-validation (Golub, Heath & Wahba, Technometrics 1979)
    of Theorem 1's anchor, or of the one towards the identity; the moments are of `count` pairs.

    In the eigenvectors u_i of Σ_n, Eq. 5 is S ridge regressions with penalties ρλ_i: of the residual variances r_i,
    GCV(ρ) = Σ_i r_i/λ_i / (1 − ν/(n·S))², with ν = S + Σ_ij γ_j/(γ_j + ρλ_i) degrees of freedom. Towards the identity
    the regressions are of y − x.
    """
    cov_old, cov_new, cross = (each.to(torch.float64) for each in (cov_old, cov_new, cross))
    values_old, basis_old = _clipped_spectrum(cov_old, 1e-10, TINY)
    values_new, basis_new = _clipped_spectrum(cov_new, 1e-10, TINY)
    spread = cov_new
    if towards_identity:
        spread, cross = cov_new - cross - cross.mT + cov_old, cross - cov_old
    rotated = basis_new.mT @ cross @ basis_old  # [S_new, S_old]
    variances = ((basis_new.mT @ spread) * basis_new.mT).sum(1)  # of the targets, [S_new]

    def error(ridge: float) -> float:
        denominator = values_old + ridge * values_new[:, None]
        weight = rotated / denominator
        residual = variances - (weight * (2 * rotated - weight * values_old)).sum(1)
        free = 1 - (len(values_new) + (values_old / denominator).sum()) / (count * len(values_new))
        return float((residual / values_new).sum() / free.square()) if free > 0 else math.inf

    best: float = min(reversed(RIDGES), key=error)
    return best


def _roots(cov: Tensor) -> tuple[Tensor, Tensor]:
    """Σ^{1/2} and Σ^{-1/2}, symmetric."""
    values, vectors = _clipped_spectrum(cov, 1e-10, TINY)
    return (vectors * values.sqrt()) @ vectors.mT, (vectors / values.sqrt()) @ vectors.mT


def low_rank_step(weight: Tensor, cov_old: Tensor, cov_new: Tensor, rank: int) -> Tensor:
    """I + D for the D of this rank that is nearest to P − I as Eq. 5 measures: in ‖Σ_n^{-1/2} · Σ_o^{1/2}‖_F."""
    eye = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
    (root_old, whiten_old), (root_new, whiten_new) = _roots(cov_old), _roots(cov_new)
    left, values, right = torch.linalg.svd(whiten_new @ (weight - eye) @ root_old)
    nearest: Tensor = (left[:, :rank] * values[:rank]) @ right[:rank]
    return eye + root_new @ nearest @ whiten_old


def solve_procrustes(cov_old: Tensor, cov_new: Tensor, cross: Tensor) -> Tensor:
    """P = Σ_n^{1/2} Q Σ_o^{-1/2} with the orthogonal Q nearest to Σ_n^{-1/2} K Σ_o^{-1/2} (Schönemann, Psychometrika
    1966, between whitened features), [S, S].

    P Σ_o Pᵀ = Σ_n whatever the noise: where regression makes what it cannot predict smaller, this map keeps the spread.
    """
    (_, whiten_old), (root_new, whiten_new) = _roots(cov_old), _roots(cov_new)
    left, _, right = torch.linalg.svd(whiten_new @ cross.to(torch.float64) @ whiten_old)
    turn: Tensor = left @ right
    return root_new @ turn @ whiten_old


def anchor_objective(weight: Tensor, cov_old: Tensor, *, cov_new: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """E‖P x − y‖²_{Σ_n⁻¹} + ρ‖P‖²_F over centred pairs (x, y) (GATF, Eq. 5), [].

    From moments alone: tr Σ_n⁻¹(P Σ_o Pᵀ − P Kᵀ − K Pᵀ + Σ_n) + ρ‖P‖². Differentiable in P.
    """
    weight, cov_old, cross = (each.to(torch.float64) for each in (weight, cov_old, cross))
    mixed = cross @ weight.mT
    residual = weight @ cov_old @ weight.mT - mixed - mixed.mT + cov_new  # [S_new, S_new]
    whitened = torch.cholesky_solve(residual, cholesky(cov_new).lower)
    return whitened.diagonal().sum() + ridge * weight.square().sum()


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

    @classmethod
    def identity(cls, dim: int, *, device: torch.device | str | None = None) -> Affine:
        """The map that changes nothing, in float64."""
        return cls(
            torch.eye(dim, dtype=torch.float64, device=device), torch.zeros(dim, dtype=torch.float64, device=device)
        )


IDENTITY_LOAD = 1e-2
"""Share of the mean variance that `identity` and `lowrank` anchors add to every direction."""


def fit_anchor(
    moments: PairedMoments, ridge: float | Literal["auto"], *, kind: AnchorKind = "sylvester", rank: int = 8
) -> Affine:
    """The anchor of these pairs: P by `kind`, b = μ_n − P μ_o (GATF, Eq. 5).

    `sylvester` is Theorem 1, `ridge` what the release computes, `identity` shrinks towards I instead of zero, which few
    images need, `lowrank` keeps `rank` directions of how that differs from I, and `procrustes` turns whitened features,
    its `ridge` being the share of the mean variance added to every direction. For the other kinds but `ridge` it may be
    "auto", see `choose_ridge`.
    """
    if kind not in get_args(AnchorKind):
        raise ValueError(f"kind of anchor must be one of {', '.join(get_args(AnchorKind))}, got {kind!r}")
    towards_identity = kind in ("identity", "lowrank")
    plain = moments.cov_old, moments.cov_new, moments.cross
    matrices = load_diagonal(moments, IDENTITY_LOAD) if towards_identity else plain
    if ridge == "auto":
        if kind in ("ridge", "procrustes"):
            raise ValueError(f"the ridge of kind {kind!r} cannot be chosen by cross-validation")
        ridge = choose_ridge(*matrices, count=float(moments.count), towards_identity=towards_identity)
    _check_ridge(ridge)
    if kind == "sylvester":
        weight = solve_sylvester(*matrices, ridge=ridge)
    elif kind == "ridge":
        weight = solve_ridge(moments.cov_old, moments.cross, ridge=ridge)
    elif kind == "procrustes":
        weight = solve_procrustes(*load_diagonal(moments, ridge))
    else:
        weight = solve_towards_identity(*matrices, ridge=ridge)
    if kind == "lowrank":
        weight = low_rank_step(weight, *matrices[:2], rank=rank)
    return Affine(weight, moments.mean_new - weight @ moments.mean_old)


@dataclass(frozen=True)
class AnchorEMA:
    """Moving average of anchors over refreshes (GATF, Sec. 3.3): P̄ ← m P̄ + (1−m) P̂, b̄ likewise."""

    weight: Tensor
    """Accumulated P, [S, S]; not yet divided by 1 − mᵏ."""
    bias: Tensor
    """Accumulated b, [S]."""
    steps: int
    """k, the refreshes seen."""
    momentum: float
    """m."""
    bias_correct: bool
    """True: start from zero and divide by 1 − mᵏ, so that few refreshes are not held at the first one, which is ≈ I.
    False: the first refresh is the start, as in the release."""

    @classmethod
    def empty(
        cls, dim: int, momentum: float, *, bias_correct: bool, device: torch.device | str | None = None
    ) -> AnchorEMA:
        """An average of nothing yet."""
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        weight = torch.zeros(dim, dim, dtype=torch.float64, device=device)
        return cls(weight, weight.new_zeros(dim), 0, momentum, bias_correct)

    def update(self, anchor: Affine) -> AnchorEMA:
        """The average after one more refresh."""
        start = self.steps == 0 and not self.bias_correct
        keep, take = (0.0, 1.0) if start else (self.momentum, 1 - self.momentum)
        return AnchorEMA(
            keep * self.weight + take * anchor.weight.to(self.weight),
            keep * self.bias + take * anchor.bias.to(self.bias),
            self.steps + 1,
            self.momentum,
            self.bias_correct,
        )

    def value(self) -> Affine:
        """P̄ and b̄."""
        if self.steps == 0:
            raise ValueError("the moving average of the anchor has no value before its first update")
        weight_seen = 1 - self.momentum**self.steps if self.bias_correct else 1.0
        return Affine(self.weight / weight_seen, self.bias / weight_seen)
