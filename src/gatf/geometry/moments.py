"""Mergeable first and second moments, so that streams, processes and chunks give the same answer as one pass.

Centred sums are kept instead of E[zzᵀ] − μμᵀ, which loses every digit when ‖μ‖ ≫ std. Merging follows Chan, Golub &
LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gatf.geometry.spd import pack, symmetrise, unpack

CHUNK_ELEMENTS = 2**20
"""Float64 elements in one padded block of `class_moments`, or in its products (8 MB)."""


@dataclass(frozen=True)
class Moments:
    """Count, mean and centred scatter of feature vectors; float64; any leading batch shape."""

    count: Tensor
    """Number of vectors, [...]."""
    mean: Tensor
    """[..., S]; zero where the count is zero."""
    scatter: Tensor
    """Σ_n (z_n − mean)(z_n − mean)ᵀ, [..., S, S]."""

    @classmethod
    def of(cls, features: Tensor) -> Moments:
        """Moments over the next-to-last dimension: [N, S] → no batch shape, [..., N, S] → batch shape [...]."""
        features = features.to(torch.float64)
        *batch, samples, dim = features.shape
        if samples == 0:
            return cls.zeros(dim, tuple(batch), device=features.device)
        return _masked_moments(features, features.new_full(tuple(batch), samples), mask=None)

    @classmethod
    def zeros(cls, dim: int, batch: tuple[int, ...] = (), *, device: torch.device | str | None = None) -> Moments:
        """Moments of no vectors: the neutral element of `merge`."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        return cls(zeros(*batch), zeros(*batch, dim), zeros(*batch, dim, dim))

    def merge(self, other: Moments) -> Moments:
        """Moments of both sets of vectors together; batch shapes must agree. Either count may be zero."""
        total = self.count + other.count
        weight = other.count / torch.where(total > 0, total, 1.0)  # [...]
        delta = other.mean - self.mean  # [..., S]
        between = delta[..., :, None] * delta[..., None, :] * (self.count * weight)[..., None, None]
        return Moments(total, self.mean + delta * weight[..., None], self.scatter + other.scatter + between)

    def over(self, total: Callable[[Tensor], Tensor]) -> Moments:
        """Moments of the vectors of several holders together, each of whom calls this with its own moments; `total`
        sums a tensor over them. The merge of all at once: Σ scatter + Σ n·δδᵀ, δ from the common mean."""
        count = total(self.count)
        mean = total(self.count[..., None] * self.mean) / count.clamp_min(1)[..., None]
        delta = self.mean - mean
        between = delta[..., :, None] * delta[..., None, :] * self.count[..., None, None]
        return Moments(count, mean, total(self.scatter + between))

    def covariance(self, unbiased: bool = True) -> Tensor:
        """Scatter over count − 1 (or count), [..., S, S], symmetric; zeros where there are fewer than two vectors."""
        divisor = (self.count - 1 if unbiased else self.count).clamp_min(1)[..., None, None]
        return symmetrise(self.scatter / divisor)


def _masked_moments(features: Tensor, count: Tensor, *, mask: Tensor | None) -> Moments:
    """Moments of features [..., N, S] of which `count` [...] rows are valid and the rest are zero; `mask` [..., N, 1]
    marks the valid ones, None means all."""
    mean = features.sum(-2, keepdim=True) / count.clamp_min(1)[..., None, None]  # [..., 1, S]
    centred = features - mean
    if mask is not None:
        centred *= mask
    return Moments(count, mean.squeeze(-2), centred.mT @ centred)


def class_moments(features: Tensor, labels: Tensor, *, classes: int) -> Moments:
    """Moments of every class at once: features [N, S], labels [N] in 0..classes−1 → Moments with batch shape [classes].

    Rows are gathered by class into padded blocks [k, n_max, S] of bounded size, largest classes first so that little
    is padded, and each block is one batched product. A class without samples gets count 0.
    """
    if len(features) != len(labels):
        raise ValueError(f"{len(features)} features but {len(labels)} labels")
    samples, dim = features.shape
    if samples == 0:
        return Moments.zeros(dim, (classes,), device=features.device)
    labels = labels.to(features.device)
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise ValueError(f"labels run from {lowest} to {highest}, expected 0 to {classes - 1}")

    by_class = labels.argsort(stable=True)  # [N], rows of class 0 first
    counts = torch.bincount(labels, minlength=classes)  # [classes]
    starts = counts.cumsum(0) - counts
    largest_first = counts.argsort(descending=True)
    sizes: list[int] = counts[largest_first].tolist()

    # filled block by block: at many classes, memory that is only passed through costs more than the products
    found = Moments(
        counts.to(torch.float64),
        torch.empty(classes, dim, dtype=torch.float64, device=features.device),
        torch.empty(classes, dim, dim, dtype=torch.float64, device=features.device),
    )
    done = 0
    while done < classes:
        longest = max(sizes[done], 1)
        members = largest_first[done : done + max(1, CHUNK_ELEMENTS // (max(longest, dim) * dim))]  # [k]
        slots = torch.arange(longest, device=features.device)
        mask = slots < counts[members, None]  # [k, longest]
        rows = by_class[(starts[members, None] + slots).clamp_max(samples - 1)]
        # rows past a class's end belong to other classes
        block = features[rows].to(torch.float64).masked_fill(~mask[..., None], 0.0)  # [k, longest, S]
        own = _masked_moments(block, found.count[members], mask=mask[..., None])
        found.mean[members], found.scatter[members] = own.mean, own.scatter
        done += len(members)
    return found


@dataclass(frozen=True)
class PooledMoments:
    """Count and mean of every class, and one scatter around the class means for all of them; float64.

    What nearest means, linear discriminants and ridge regression need, in C·S + S² numbers instead of C·S². Merging is
    exact, so that neither the order of classes nor how they are split into tasks matters beyond rounding.
    """

    counts: Tensor
    """Vectors of each class, [C]."""
    means: Tensor
    """[C, S]; zero where the count is zero."""
    scatter: Tensor
    """Σ_n (z_n − mean of its class)(z_n − mean of its class)ᵀ, [S, S]."""
    parts: Tensor | None = None
    """What each class adds to the scatter, packed, [C, S(S+1)/2]; None: not kept. Both sides of a merge have it."""

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, *, classes: int, parts: bool = False) -> PooledMoments:
        """Features [N, S], labels [N] in 0..classes−1. Sums are products with the one-hot labels, so that they are
        added in the same order on every run and device. `parts`: keep the scatter of each class."""
        features = features.to(torch.float64)
        members = (labels[:, None] == torch.arange(classes, device=labels.device)).to(features)  # [N, C]
        counts = members.sum(0)
        means = members.mT @ features / counts.clamp_min(1)[:, None]
        centred = features - means[labels]
        return cls(counts, means, centred.mT @ centred, _products(centred, labels, classes) if parts else None)

    def merge(self, other: PooledMoments) -> PooledMoments:
        """Moments of both sets of vectors together: class k of one is class k of the other, and where one has more
        classes they are appended."""
        classes = max(len(self.counts), len(other.counts))
        (counts, means), (more, more_means) = self._padded(classes), other._padded(classes)
        total = counts + more
        weight = more / total.clamp_min(1)  # [C]
        delta = more_means - means  # [C, S]
        apart = delta * (counts * weight).sqrt()[:, None]
        if not len(self.scatter):  # means alone
            return PooledMoments(total, means + delta * weight[:, None], self.scatter)
        between = apart.mT @ apart  # zero unless a class is in both
        parts = None
        if self.parts is not None and other.parts is not None:
            parts = _outer(apart)
            parts[: len(self.parts)] += self.parts
            parts[: len(other.parts)] += other.parts
        return PooledMoments(total, means + delta * weight[:, None], self.scatter + other.scatter + between, parts)

    def _padded(self, classes: int) -> tuple[Tensor, Tensor]:
        more = classes - len(self.counts)
        pad = torch.nn.functional.pad
        return pad(self.counts, (0, more)), pad(self.means, (0, 0, 0, more))

    def freedom(self) -> float:
        """Vectors less class means: what the scatter is divided by for an unbiased covariance, at least 1."""
        return max(1.0, float((self.counts - 1).clamp_min(0).sum()))

    def covariance(self) -> Tensor:
        """Unbiased covariance within classes, [S, S]; zero where no class has two vectors."""
        return symmetrise(self.scatter / self.freedom())

    def noise_share(self) -> float:
        """√S/(√S + √n), n the degrees of freedom of the scatter: near 0 where a covariance is well known, ½ where there
        are as many vectors as dimensions, near 1 where there are few. A share for `spd.blend` that suits photos from 2
        to 30 images per class and 32 to 1 280 dimensions (docs/methods.md)."""
        return 1 / (1 + math.sqrt(self.freedom() / self.means.shape[1]))

    def overall(self) -> Moments:
        """Moments of all vectors together, whatever their class, as one class."""
        total = self.counts.sum()
        mean = (self.counts @ self.means) / total.clamp_min(1)
        apart = (self.means - mean) * self.counts.sqrt()[:, None]
        return Moments(total, mean, symmetrise(self.scatter + apart.mT @ apart))

    def gram(self) -> Tensor:
        """Σ_n z_n z_nᵀ, [S, S]."""
        return symmetrise(self.scatter + (self.means.mT * self.counts) @ self.means)

    def sums(self) -> Tensor:
        """Σ z_n of every class, [C, S]."""
        return self.counts[:, None] * self.means

    def mapped(self, weight: Tensor, bias: Tensor) -> PooledMoments:
        """Moments of the vectors after z ↦ P z + b, for P [S, S] and b [S]."""
        return PooledMoments(self.counts, self.means @ weight.mT + bias, symmetrise(weight @ self.scatter @ weight.mT))

    def take(self, kept: Tensor) -> PooledMoments:
        """Some classes alone, as if there had been no others; needs `parts`."""
        assert self.parts is not None
        scatter = unpack(self.parts[kept].sum(0), self.means.shape[1])
        return PooledMoments(self.counts[kept], self.means[kept], scatter, self.parts[kept])

    def reordered(self, places: Tensor, classes: int) -> PooledMoments:
        """Class k becomes class `places[k]` of `classes`; classes with the same place are merged."""
        parts = None
        if self.parts is not None:
            parts = self.parts.new_zeros(classes, self.parts.shape[1]).index_add_(0, places, self.parts)
        counts, means = self.counts.new_zeros(classes), self.means.new_zeros(classes, self.means.shape[1])
        if len(torch.bincount(places).nonzero()) == len(places):
            counts[places], means[places] = self.counts, self.means
            return PooledMoments(counts, means, self.scatter, parts)
        counts.index_add_(0, places, self.counts)
        means.index_add_(0, places, self.sums()).div_(counts.clamp_min(1)[:, None])
        apart = (self.means - means[places]) * self.counts.sqrt()[:, None]
        if parts is not None:
            parts.index_add_(0, places, _outer(apart))
        scatter = self.scatter + apart.mT @ apart if len(self.scatter) else self.scatter
        return PooledMoments(counts, means, scatter, parts)


def _outer(vectors: Tensor) -> Tensor:
    """z zᵀ of each row, packed, [C, S] → [C, S(S+1)/2]."""
    rows, columns = torch.tril_indices(vectors.shape[1], vectors.shape[1], device=vectors.device)
    return vectors[:, rows] * vectors[:, columns]


def _products(vectors: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Σ z zᵀ of each class's rows, packed, [classes, S(S+1)/2]."""
    found = vectors.new_zeros(classes, vectors.shape[1] * (vectors.shape[1] + 1) // 2)
    for number in torch.unique(labels).tolist():
        own = vectors[labels == number]
        found[number] = pack(own.mT @ own)
    return found


class MomentStream:
    """`PooledMoments` of vectors that arrive in batches, in C·S + S² numbers and at S² operations per vector.

    Vectors are summed around a shift per class, the mean of the first batch that has the class. The scatter around the
    class means follows at the end: Σ (z − s)(z − s)ᵀ − Σ_c n_c (μ_c − s_c)(μ_c − s_c)ᵀ. The shift is a mean of the
    class's own vectors, so of n of them at most log₁₀ n digits cancel.
    """

    def __init__(self, dim: int, *, scatter: bool = True, parts: bool = False) -> None:
        """`scatter`: False for means alone. `parts`: keep the scatter of each class, too."""
        self.counts = torch.zeros(0, dtype=torch.float64)
        self._shift = torch.zeros(0, dim, dtype=torch.float64)
        self._sums = torch.zeros(0, dim, dtype=torch.float64)
        side = dim if scatter else 0
        self._products = np.zeros((side, side), order="F")  # the lower triangle
        self._parts = torch.zeros(0, dim * (dim + 1) // 2, dtype=torch.float64) if parts else None

    def add(self, vectors: Tensor, labels: Tensor, *, classes: int) -> None:
        """Vectors [N, S] and labels [N] in 0..classes−1; the number of classes may grow from call to call."""
        vectors, grown = vectors.to(torch.float64), classes - len(self.counts)
        if grown:
            pad = torch.nn.functional.pad
            self.counts = pad(self.counts, (0, grown))
            self._shift, self._sums = pad(self._shift, (0, 0, 0, grown)), pad(self._sums, (0, 0, 0, grown))
        more = torch.bincount(labels, minlength=classes)
        first = (self.counts == 0) & (more > 0)
        if bool(first.any()):
            sums = torch.zeros_like(self._sums).index_add_(0, labels, vectors)
            self._shift[first] = sums[first] / more[first, None]
        away = vectors - self._shift[labels]
        self.counts += more
        self._sums.index_add_(0, labels, away)
        if self._parts is not None:
            found, numbers = torch.unique(labels, return_inverse=True)
            self._parts = torch.nn.functional.pad(self._parts, (0, 0, 0, classes - len(self._parts)))
            self._parts.index_add_(0, found, _products(away, numbers, len(found)))
        if self._products.size:
            from scipy.linalg.blas import dsyrk  # half the work of a full product

            self._products = dsyrk(1.0, away.numpy().T, beta=1.0, c=self._products, lower=1, overwrite_c=1)

    def moments(self) -> PooledMoments:
        """The moments of all vectors; an empty scatter [0, 0] if only means were asked for."""
        apart = self._sums / self.counts.clamp_min(1)[:, None]
        lower = torch.from_numpy(np.ascontiguousarray(self._products))
        scatter = lower + lower.tril(-1).mT
        if len(scatter):
            spread = apart * self.counts.sqrt()[:, None]
            scatter = scatter - spread.mT @ spread
        parts = None if self._parts is None else self._parts - _outer(spread)
        return PooledMoments(self.counts, self._shift + apart, scatter, parts)


@dataclass(frozen=True)
class PairedMoments:
    """Joint moments of (old, new) features of the same images: what the anchor is solved from (GATF, Eq. 5)."""

    joint: Moments
    """Moments of the concatenated vector (old, new), S_old + S_new long."""
    dim_old: int

    @classmethod
    def of(cls, old: Tensor, new: Tensor) -> PairedMoments:
        """Moments of row-wise pairs, [N, S_old] and [N, S_new]."""
        if len(old) != len(new):
            raise ValueError(f"pairs need as many old as new features, got {len(old)} and {len(new)}")
        return cls(Moments.of(torch.cat([old.to(torch.float64), new.to(torch.float64)], dim=-1)), old.shape[-1])

    @classmethod
    def zeros(cls, dim_old: int, dim_new: int, *, device: torch.device | str | None = None) -> PairedMoments:
        """Moments of no pairs."""
        return cls(Moments.zeros(dim_old + dim_new, device=device), dim_old)

    def merge(self, other: PairedMoments) -> PairedMoments:
        """Moments of both sets of pairs together."""
        if self.dim_old != other.dim_old:
            raise ValueError(f"pairs of {self.dim_old} and of {other.dim_old} old dimensions do not merge")
        return PairedMoments(self.joint.merge(other.joint), self.dim_old)

    def over(self, total: Callable[[Tensor], Tensor]) -> PairedMoments:
        """Moments of the pairs of several holders together, see `Moments.over`."""
        return PairedMoments(self.joint.over(total), self.dim_old)

    @property
    def count(self) -> Tensor:
        """Number of pairs, []."""
        return self.joint.count

    @property
    def mean_old(self) -> Tensor:
        """μ_o, [S_old]."""
        return self.joint.mean[..., : self.dim_old]

    @property
    def mean_new(self) -> Tensor:
        """μ_n, [S_new]."""
        return self.joint.mean[..., self.dim_old :]

    @property
    def cov_old(self) -> Tensor:
        """Σ_o, unbiased, [S_old, S_old]."""
        return self.joint.covariance()[..., : self.dim_old, : self.dim_old]

    @property
    def cov_new(self) -> Tensor:
        """Σ_n, unbiased, [S_new, S_new]."""
        return self.joint.covariance()[..., self.dim_old :, self.dim_old :]

    @property
    def cross(self) -> Tensor:
        """K = Cov(new, old), unbiased, [S_new, S_old]; the paper's C_onᵀ."""
        return self.joint.covariance()[..., self.dim_old :, : self.dim_old]
