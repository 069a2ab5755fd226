"""Class covariances in few numbers, and distances that never build the matrices.

A full matrix takes S(S+1)/2 numbers per class; Σ_c ≈ U_c·U_cᵀ + diag(d_c) with U_c of r columns takes (r + 1)·S.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gatf.errors import NotFinite
from gatf.geometry import spd
from gatf.geometry.graphs import ScoreGraph
from gatf.geometry.vectors import CHUNK_ELEMENTS, CHUNK_ROWS, as_vectors

FIT_STEPS = 10
"""Alternating steps of `fit_low_rank`. The first is principal components, of which a covariance that is re-fitted
after every task loses more each time; after ten a fit of the fit is nearly itself."""


@dataclass(frozen=True)
class LowRank:
    """U_c·U_cᵀ + diag(d_c) for C classes, in float64."""

    factors: Tensor
    """U, [C, S, r]."""
    diagonals: Tensor
    """d ≥ 0, [C, S]."""

    def __post_init__(self) -> None:
        if self.factors.ndim != 3 or self.factors.shape[:2] != self.diagonals.shape:
            raise ValueError(
                f"factors must be [C, S, r] and diagonals [C, S], got {list(self.factors.shape)} and "
                f"{list(self.diagonals.shape)}"
            )
        object.__setattr__(self, "factors", self.factors.to(torch.float64))
        object.__setattr__(self, "diagonals", self.diagonals.to(torch.float64))

    def variances(self) -> Tensor:
        """The diagonals of the matrices, [C, S]."""
        return self.diagonals + self.factors.square().sum(-1)

    def dense(self) -> Tensor:
        """The matrices, [C, S, S]."""
        return self.factors @ self.factors.mT + torch.diag_embed(self.diagonals)


def fit_low_rank(covs: Tensor, rank: int, *, steps: int = FIT_STEPS) -> LowRank:
    """The nearest U·Uᵀ + diag(d) with the diagonal of Σ, [C, S, S] → U [C, S, rank] and d ≥ 0 [C, S].

    Principal-axis factoring, which minimises what is left off the diagonal (Harman & Jones, "Factor analysis by
    minimizing residuals", Psychometrika 1966): U from the leading eigenpairs of Σ − diag(d), then d = diag(Σ − U·Uᵀ)
    clamped at 0, from d = 0 on. Each half is the exact minimiser of ‖Σ − U·Uᵀ − diag(d)‖, so no step makes it worse.
    Where the clamp still binds at the end, the row of U is shortened: every variance is kept.
    """
    covs = spd.symmetrise(covs)
    dim = covs.shape[-1]
    if not 1 <= rank <= dim:
        raise ValueError(f"the rank must be between 1 and {dim}, got {rank}")
    variances = covs.diagonal(dim1=-2, dim2=-1).clamp_min(0)  # [C, S]
    factors, rest = covs.new_zeros(*variances.shape, rank), torch.zeros_like(variances)
    for _ in range(steps):
        values, vectors = torch.linalg.eigh(covs - torch.diag_embed(rest))  # ascending
        factors = vectors[..., dim - rank :] * values[..., None, dim - rank :].clamp_min(0).sqrt()
        rest = (variances - factors.square().sum(-1)).clamp_min(0)
    explained = factors.square().sum(-1)  # [C, S]
    shorter = torch.where(explained > variances, variances / explained, 1.0).sqrt()
    return LowRank(factors * shorter[..., None], rest)


@dataclass(frozen=True)
class LowRankReadout:
    """Squared Mahalanobis distances for M_c = U_c·U_cᵀ + D_c, by Woodbury's identity:

        xᵀ M⁻¹ x = Σ_i x_i²/D_ii − ‖L⁻¹ Uᵀ D⁻¹ x‖²,   L·Lᵀ = I + Uᵀ D⁻¹ U,   x = u − v_c.

    The first sum is expanded around the centre of all v_c, which spares the digits a common offset would cost.
    """

    origin: Tensor
    """Where features are measured from, [S]."""
    normalise: bool
    """Whether features are divided by their norm first."""
    weights: Tensor
    """1/D_c, [C, S]."""
    slopes: Tensor
    """2·v_c/D_c, v_c from the origin, [C, S]."""
    constants: Tensor
    """v_cᵀ D_c⁻¹ v_c, [C]."""
    directions: Tensor
    """L⁻¹ Uᵀ D⁻¹, [C, r, S]."""
    offsets: Tensor
    """The directions' values at v_c, [C, r]."""

    def scores(self, features: Tensor) -> Tensor:
        """Minus the distances."""
        return -self.distances(features)

    def distances(self, features: Tensor) -> Tensor:
        """[B, S] → [B, C]; intermediate tensors are not larger than a few [B, C]."""
        features = as_vectors(features.to(self.origin), self.normalise) - self.origin
        out = features.square() @ self.weights.mT - features @ self.slopes.mT + self.constants
        classes, rank, dim = self.directions.shape
        classes_at_once = max(1, CHUNK_ELEMENTS // (min(len(features), CHUNK_ROWS) * rank))
        for start in range(0, classes, classes_at_once):
            chunk = slice(start, start + classes_at_once)
            directions = self.directions[chunk].reshape(-1, dim).mT  # [S, c·r]
            for row in range(0, len(features), CHUNK_ROWS):
                rows = slice(row, row + CHUNK_ROWS)
                along = (features[rows] @ directions).reshape(len(features[rows]), -1, rank)  # [b, c, r]
                out[rows, chunk] -= (along - self.offsets[chunk]).square().sum(-1)
        return out.clamp_min(0)

    def graph(self) -> nn.Module:
        """The scores for all classes at once."""
        classes, rank, dim = self.directions.shape
        normalise = self.normalise

        def scores(
            features: Tensor, origin: Tensor, weights: Tensor, slopes: Tensor, constants: Tensor, directions: Tensor,
            offsets: Tensor,
        ) -> Tensor:  # fmt: skip
            vectors = as_vectors(features, normalise) - origin
            along = vectors @ directions.T - offsets
            distances = vectors.square() @ weights.T - vectors @ slopes.T + constants
            return along.square().reshape(-1, classes, rank).sum(-1) - distances

        return ScoreGraph(
            scores, origin=self.origin, weights=self.weights, slopes=self.slopes, constants=self.constants,
            directions=self.directions.reshape(-1, dim), offsets=self.offsets.flatten(),
        )  # fmt: skip


def low_rank_readout(means: Tensor, covs: LowRank, shrink: float, *, normalise: bool) -> LowRankReadout:
    """`readout.bayes_readout` of means [C, S] and these covariances, from their structure alone.

    A class without variance in some direction, which only happens without shrinkage, is repaired as spd.cholesky does.
    """
    if not (bool(covs.factors.isfinite().all()) and bool(covs.diagonals.isfinite().all())):
        raise NotFinite("some covariances have entries that are not finite")
    own = covs.diagonals + shrink * covs.variances().mean(-1, keepdim=True)  # D of the shrunk matrix, [C, S]
    factors = covs.factors
    if normalise:
        std = (own + factors.square().sum(-1)).sqrt()
        dead = std < spd.STD_GUARD  # correlates with nothing
        own = torch.where(dead, 1.0, own / std.square())
        factors = factors.masked_fill(dead[..., None], 0.0) / std.masked_fill(dead, 1.0)[..., None]
    own = _repaired(own, own + factors.square().sum(-1))
    centres = as_vectors(means, normalise)
    origin = centres.mean(0)
    centres, weights = centres - origin, 1 / own
    scaled = weights[..., None] * factors  # D⁻¹ U, [C, S, r]
    inner = torch.eye(factors.shape[-1], dtype=own.dtype, device=own.device) + factors.mT @ scaled
    lower = torch.linalg.cholesky(inner)  # cannot fail: its eigenvalues are at least 1
    directions = torch.linalg.solve_triangular(lower, scaled.mT, upper=False)  # [C, r, S]
    return LowRankReadout(
        origin, normalise, weights, 2 * weights * centres, (weights * centres.square()).sum(-1), directions,
        (directions @ centres[..., None])[..., 0],
    )  # fmt: skip


def _repaired(own: Tensor, variances: Tensor) -> Tensor:
    """D with the first rung of spd.cholesky's ladder added where Woodbury's identity could not divide by it."""
    level = variances.mean(-1, keepdim=True)  # [C, 1]
    low = own.amin(-1, keepdim=True) <= spd.CLIP_GUARD * level
    return torch.where(level > 0, own + low * spd.FIRST_RUNG * level, spd.FLOOR)
