"""Class statistics and vectors of one encoder in the space of another: GATF's transport between two encoders.

The pairs are vectors of the same items, old [N, S_old] and new [N, S_new]; labels are not needed. A map
z_new = P z_old + b + ε is fitted to them (GATF, Eq. 5), class means become P μ + b, and covariances P Σ Pᵀ + R, where R
is the covariance of ε. Fewer pairs than dimensions is the usual case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gatf.geometry.anchor import Affine
from gatf.geometry.spd import symmetrise

MapKind = Literal["ridge", "identity", "lowrank", "procrustes"]
RIDGES: tuple[float, ...] = tuple(10.0 ** (half / 2) for half in range(-8, 7))
"""Ridges, in units of the mean variance of the old vectors: 10⁻⁴ to 10³."""
SMALLER = (1.0, 0.25, 0.0625)
"""Fractions of the ridge with the least squared error that `candidates` offers: classes need less shrinkage."""
RANK = 64
"""Of `lowrank` maps."""
FLOOR = 1e-10
"""Singular values below this fraction of the largest are dropped."""


@dataclass(frozen=True)
class EncoderMap:
    """A map between encoders, z ↦ P z + b (GATF, Eq. 5), and its errors on the pairs."""

    affine: Affine
    errors: Tensor
    """z_new − P z_old − b of every pair, as if the pair had been left out of the fit, [N, S_new]."""
    kind: MapKind = "ridge"
    ridge: float = 0.0

    @property
    def residual(self) -> Tensor:
        """R, the covariance of the errors, [S_new, S_new]."""
        return symmetrise(self.errors.mT @ self.errors / len(self.errors))


class PairedVectors:
    """Pairs, with the decomposition that all maps of them share."""

    def __init__(self, old: Tensor, new: Tensor) -> None:
        if len(old) != len(new) or len(old) < 2:
            raise ValueError(f"maps need at least two pairs, and as many old as new vectors: {len(old)}, {len(new)}")
        self.old, self.new = old.to(torch.float64), new.to(torch.float64)
        self.mean_old, self.mean_new = self.old.mean(0), self.new.mean(0)
        left, values, right = _economy_svd(self.old - self.mean_old)
        kept = values > FLOOR * values[:1]
        self.left, self.values, self.right = left[:, kept], values[kept], right[kept]  # [N, r], [r], [r, S_old]
        self.level = float((self.old - self.mean_old).square().sum()) / self.old.shape[1]
        """N times the mean variance: the unit of ridges."""

    def __len__(self) -> int:
        return len(self.old)

    def map(self, kind: MapKind, ridge: float) -> EncoderMap:
        """The map of one kind (GATF, Eq. 5, with Σ_n = I).

        `ridge` shrinks P towards zero, `identity` towards the identity (equal dimensions only), `lowrank` keeps the
        `RANK` strongest directions of the ridge's predictions, and `procrustes` rotates whitened vectors (Schönemann,
        1966)."""
        target = self.new - self.mean_new
        if kind == "identity":
            if self.old.shape[1] != self.new.shape[1]:
                raise ValueError("a map towards the identity needs as many new as old dimensions")
            target = target - (self.old - self.mean_old)
        elif kind == "procrustes":
            return self._rotation(ridge)
        shrunk, leverage = self._shrinkage(ridge)
        core = self.left.mT @ target  # [r, S_new]
        if kind == "lowrank":
            rows = shrunk[:, None] * core
            directions = torch.linalg.svd(rows, full_matrices=False)[2][:RANK]  # of the fitted values
            core = core @ directions.mT @ directions
        weight = (self.right.mT @ ((shrunk / self.values)[:, None] * core)).mT  # [S_new, S_old]
        errors = target - self.left @ (shrunk[:, None] * core)
        if kind == "identity":
            weight = weight + torch.eye(len(weight), dtype=weight.dtype)
        return self._finished(weight, errors / (1 - leverage)[:, None], kind, ridge)

    def least_error(self) -> float:
        """The ridge of `RIDGES` with the least squared error of left-out pairs (closed form, one pass per ridge)."""
        target = self.new - self.mean_new
        core = self.left.mT @ target

        def error(ridge: float) -> float:
            shrunk, leverage = self._shrinkage(ridge)
            left_out = (target - self.left @ (shrunk[:, None] * core)) / (1 - leverage)[:, None]
            return float(left_out.square().sum())

        best: float = min(RIDGES, key=error)
        return best

    def _shrinkage(self, ridge: float) -> tuple[Tensor, Tensor]:
        """s²/(s² + λ) of the singular values, [r], and each pair's leverage, [N], below 1."""
        shrunk = self.values.square() / (self.values.square() + ridge * self.level)
        leverage = self.left.square() @ shrunk + 1 / len(self)
        return shrunk, leverage.clamp_max(1 - 1e-6)

    def _rotation(self, ridge: float) -> EncoderMap:
        """P = A_n^{1/2} Q A_o^{-1/2}, A = covariance + ridge · mean variance · I, Q the nearest rotation."""
        target = self.new - self.mean_new
        left, values, right = _economy_svd(target)
        level = float(target.square().sum()) / target.shape[1]
        old_scales = (self.values.square() + ridge * self.level).rsqrt()
        new_scales = (values.square() + ridge * level).sqrt()
        inner = (values / new_scales)[:, None] * (left.mT @ self.left) * (self.values * old_scales)  # [q, r]
        one, _, two = torch.linalg.svd(inner, full_matrices=False)
        weight = (right.mT * new_scales) @ (one @ two) @ (old_scales[:, None] * self.right)
        return self._finished(weight, target - (self.old - self.mean_old) @ weight.mT, "procrustes", ridge)

    def _finished(self, weight: Tensor, errors: Tensor, kind: MapKind, ridge: float) -> EncoderMap:
        return EncoderMap(Affine(weight, self.mean_new - weight @ self.mean_old), errors, kind, ridge)


def _economy_svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    return left, values, right


def candidates(pairs: PairedVectors) -> list[tuple[MapKind, float]]:
    """Kinds and ridges worth comparing for these pairs, the safest first."""
    best = pairs.least_error()
    found: list[tuple[MapKind, float]] = [("ridge", best * share) for share in SMALLER]
    if len(pairs) > 2 * RANK:
        found.append(("lowrank", best * SMALLER[1]))
    if pairs.old.shape[1] == pairs.new.shape[1]:
        found.append(("identity", best))
        found.append(("procrustes", best))
    return found


def folds(count: int, parts: int, generator: torch.Generator) -> list[Tensor]:
    """`parts` disjoint sets of row numbers, drawn at random."""
    return list(torch.randperm(count, generator=generator).chunk(parts))


def transport(means: Tensor, cov: Tensor, found: EncoderMap) -> tuple[Tensor, Tensor]:
    """Class means P μ + b, [C, S_new], and the shared covariance P Σ Pᵀ + R, [S_new, S_new]: the transport of GATF
    (Eq. 5 and Sec. 3.3) between two encoders, with the error of the map as noise."""
    weight = found.affine.weight
    return found.affine(means), symmetrise(weight @ cov @ weight.mT + found.residual)


def class_corrections(errors: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """What labelled pairs add to transported means, [C, S], and the weight of each class's pairs, [C] from 0 to 1.

    The mean error of a class's n pairs estimates how far its transported mean is off, with variance σ²/n; across
    classes that offset varies by τ². By Bayes the correction is the mean error times τ²/(τ² + σ²/n). Both variances are
    those of a one-way analysis of variance of the errors. A label of −1 or a class without pairs changes nothing.
    """
    known = labels >= 0
    errors, labels = errors[known], labels[known]
    counts = torch.bincount(labels, minlength=classes).to(errors)
    sums = errors.new_zeros(classes, errors.shape[1]).index_add_(0, labels, errors)
    means = sums / counts.clamp_min(1)[:, None]
    present = counts > 0
    groups, total = int(present.sum()), float(counts.sum())
    if groups < 2 or total <= groups:
        return torch.zeros_like(means), torch.zeros_like(counts)
    grand = errors.mean(0)
    within = float((errors - means[labels]).square().sum()) / (total - groups)
    between = float((counts[:, None] * (means - grand).square())[present].sum()) / (groups - 1)
    typical = (total - float(counts.square().sum()) / total) / (groups - 1)
    spread = max(0.0, (between - within) / typical)
    if spread == 0:
        return torch.zeros_like(means), torch.zeros_like(counts)
    weight = counts / (counts + within / spread)
    return weight[:, None] * means, weight


def recall_at(queries: Tensor, true: Tensor, mapped: Tensor, k: int) -> float:
    """The share of each query's k nearest true vectors that are also among its k nearest mapped ones, by cosine.
    Queries are rows of `true`; a row is no neighbour of itself. All are [N, S]; `queries` has row numbers."""
    unit, moved = (torch.nn.functional.normalize(each.double(), dim=1) for each in (true, mapped))
    nearest = []
    for corpus in (unit, moved):
        similar = unit[queries] @ corpus.mT
        similar[torch.arange(len(queries)), queries] = -math.inf
        nearest.append(similar.topk(k).indices)
    return float((nearest[0][:, :, None] == nearest[1][:, None, :]).any(2).double().mean())


def pairs_needed(sizes: Sequence[int], losses: Sequence[float], allowed: float) -> int | None:
    """The number of pairs at which the loss falls to `allowed`, from losses measured at some sizes: a power law a·nᵇ
    through them. None where the losses do not fall, or not within a thousand times the most pairs."""
    if losses[-1] <= allowed:
        return next(size for size, loss in zip(sizes, losses, strict=True) if loss <= allowed)
    if min(losses) <= 0 or allowed <= 0:
        return None
    logs = torch.tensor([[math.log(size), math.log(loss)] for size, loss in zip(sizes, losses, strict=True)])
    centred = logs - logs.mean(0)
    slope = float((centred[:, 0] * centred[:, 1]).sum() / centred[:, 0].square().sum())
    if slope >= -0.05:
        return None
    found = math.exp(math.log(sizes[-1]) + (math.log(allowed) - math.log(losses[-1])) / slope)
    return math.ceil(found) if found <= 1000 * sizes[-1] else None


Scorer = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From transported means, covariance and the row numbers of pairs to scores of their new vectors, [B, C]."""


def simulated(
    pairs: PairedVectors, means: Tensor, cov: Tensor, *, kinds: Sequence[tuple[MapKind, float]], scorer: Scorer,
    parts: Sequence[Tensor], train: int | None = None,
) -> Tensor:  # fmt: skip
    """Scores of every pair's new vector by classes that were transported without it, [kinds, N, C].

    The pairs of each part are scored with maps of the other parts, of which at most `train` pairs are used; zeros where
    a pair is in no part.
    """
    found = means.new_zeros(len(kinds), len(pairs), len(means))
    for part in parts:
        others = torch.ones(len(pairs), dtype=torch.bool)
        others[part] = False
        rest = torch.nonzero(others)[:, 0][:train]
        fitted = PairedVectors(pairs.old[rest], pairs.new[rest])
        for number, (kind, ridge) in enumerate(kinds):
            found[number, part] = scorer(*transport(means, cov, fitted.map(kind, ridge)), part)
    return found
