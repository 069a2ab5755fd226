"""From Gaussians to predictions: the readouts shared by every Gaussian method (AdaGauss, FeCAM, GATF).

A `Readout` has scores, and a graph of them for export (`graphs`). Readouts of compact covariances are in `compact`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from gatf.geometry import spd
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.graphs import ScoreGraph
from gatf.geometry.packed import PackedForms
from gatf.geometry.vectors import CHUNK_ELEMENTS, CHUNK_ROWS, as_vectors

BAYES_SHRINK, MAHALANOBIS_SHRINK = 3.0, 1e-3
"""Shrinkage of class covariances in the two rules, where nothing else is asked for."""
PACKED_CLASSES = 32
"""Classes from which on scores are taken from packed forms: with fewer, packing the features takes as long as it saves.
"""
PACKED_DIM = 256
"""Dimensions up to which they are: with 512, packing the forms takes as long as scoring thousands of images, and with
1 280 scoring is no faster either, because each block of packed rows reads forms that fit no cache."""


class Readout(Protocol):
    """A classifier of features."""

    def scores(self, features: Tensor) -> Tensor:
        """[B, S] → [B, C] in float64, higher is better."""

    def graph(self) -> nn.Module:
        """The same scores in float64 without chunks, as a module whose operations can be traced (ONNX)."""


@dataclass(frozen=True)
class QuadraticReadout:
    """Squared Mahalanobis distances (u − v_c)ᵀ M_c⁻¹ (u − v_c), M_c = L_c L_cᵀ; scores are their negatives."""

    centres: Tensor
    """v_c, already of unit norm when `normalise`, [C, S]."""
    whiteners: Tensor
    """L_c⁻¹, [C, S, S]."""
    normalise: bool
    """Whether features are divided by their norm first."""
    repaired: Tensor | None = None
    """Classes whose matrix needed the ladder of spd.cholesky, bool [C]."""
    constants: Tensor | None = None
    """What the scores of each class are lowered by beside its distance, [C]."""

    @classmethod
    def of(
        cls, centres: Tensor, matrices: Tensor, *, normalise: bool, prepare: Callable[[Tensor], Tensor] | None = None
    ) -> QuadraticReadout:
        """Factorise M_c once: centres [C, S], matrices [C, S, S].

        `prepare` makes M_c of what is given instead for each class (unpacks or shrinks it, say), a chunk of classes at
        a time, so that only the whiteners are as large as all matrices.
        """
        centres = centres.to(torch.float64)
        classes, dim = centres.shape
        whiteners = centres.new_empty(classes, dim, dim)
        repaired = torch.zeros(classes, dtype=torch.bool, device=centres.device)
        eye = torch.eye(dim, dtype=torch.float64, device=centres.device)
        classes_at_once = max(1, CHUNK_ELEMENTS // dim**2)
        for start in range(0, classes, classes_at_once):
            chunk = slice(start, start + classes_at_once)
            factor = spd.cholesky(matrices[chunk] if prepare is None else prepare(matrices[chunk]))
            whiteners[chunk] = torch.linalg.solve_triangular(factor.lower, eye.expand_as(factor.lower), upper=False)
            repaired[chunk] = factor.repaired
        return cls(as_vectors(centres, normalise), whiteners, normalise, repaired)

    @cached_property
    def _origin(self) -> Tensor:
        return self.centres.mean(0) if len(self.centres) else self.centres.new_zeros(self.centres.shape[1])  # [S]

    @cached_property
    def _offsets(self) -> Tensor:
        return (self.whiteners @ (self.centres - self._origin)[:, :, None])[:, :, 0]  # L_c⁻¹(v_c − o), [C, S]

    def distances(self, features: Tensor) -> Tensor:
        """‖L_c⁻¹(u − o) − L_c⁻¹(v_c − o)‖², [B, S] → [B, C], o being the mean of the centres.

        One product [rows, S]·[S, classes·S] a chunk whitens the features for all its classes; chunks keep the
        intermediate in the cache. Measured from o, vectors keep their digits however far they are from the origin;
        what is lost against whitening u − v_c is the spread of the centres over the width of a class (a factor 100
        there, with a condition of 10⁶, leaves 11 digits).
        """
        classes, dim = self.centres.shape
        out = self.centres.new_empty(len(features), classes)
        rows_at_once = min(CHUNK_ROWS, max(1, CHUNK_ELEMENTS // dim))
        for row in range(0, len(features), rows_at_once):
            rows = slice(row, row + rows_at_once)
            block = features[rows].to(self.centres)
            block = as_vectors(block, self.normalise) - self._origin
            classes_at_once = max(1, CHUNK_ELEMENTS // block.numel())
            for start in range(0, classes, classes_at_once):
                chunk = slice(start, start + classes_at_once)
                stacked = self.whiteners[chunk].reshape(-1, dim)  # [c·S, S]
                whitened = torch.addmm(self._offsets[chunk].flatten(), block, stacked.mT, beta=-1)  # [b, c·S]
                out[rows, chunk] = whitened.view(len(block), -1, dim).square_().sum(-1)
        return out

    def scores(self, features: Tensor) -> Tensor:
        """As exact as float32, but the best class is float64's: where two are too near for float32, the row is done
        again in float64."""
        classes, dim = self.centres.shape
        if classes < PACKED_CLASSES or dim > PACKED_DIM:
            return self._exact_scores(features)
        scores, unsure = self._packed.scores(features)
        if bool(unsure.any()):
            scores[unsure] = self._exact_scores(features[unsure])
        return scores

    def _exact_scores(self, features: Tensor) -> Tensor:
        distances = self.distances(features)
        return -(distances if self.constants is None else distances + self.constants)

    @cached_property
    def _packed(self) -> PackedForms:
        return PackedForms.of(self)

    def log_determinants(self) -> Tensor:
        """log det M_c, [C]."""
        return -2 * self.whiteners.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def graph(self) -> nn.Module:
        """‖W_c u − W_c v_c‖² for all classes in one matrix product."""
        (classes, dim), normalise = self.centres.shape, self.normalise
        none = self.centres.new_zeros(classes)

        def scores(features: Tensor, weight: Tensor, offset: Tensor, constants: Tensor) -> Tensor:
            offsets = as_vectors(features, normalise) @ weight.T - offset
            return -offsets.square().reshape(-1, classes, dim).sum(-1) - constants

        return ScoreGraph(
            scores, weight=self.whiteners.reshape(classes * dim, dim),
            offset=(self.whiteners @ self.centres[:, :, None]).reshape(classes * dim),
            constants=none if self.constants is None else self.constants,
        )  # fmt: skip


def bayes_readout(gaussians: Gaussians, shrink: float = BAYES_SHRINK, *, normalise: bool = True) -> QuadraticReadout:
    """The "bayes" rule of AdaGauss: M_c = sh(Σ_c, shrink), without log-determinant or prior.

    With `normalise`, M_c is the correlation matrix of that, and features and means are divided by their norms, although
    Σ_c is of features that were not: so in the release, and deliberate.
    """

    def prepare(covs: Tensor) -> Tensor:
        matrices = spd.shrink(covs, shrink)
        return spd.correlation(matrices) if normalise else matrices

    return QuadraticReadout.of(gaussians.means, gaussians.covs, normalise=normalise, prepare=prepare)


def mahalanobis_readout(gaussians: Gaussians, shrink: float = MAHALANOBIS_SHRINK) -> QuadraticReadout:
    """GATF, Eq. 3 taken literally: (z − μ_c)ᵀ sh(Σ_c, shrink)⁻¹ (z − μ_c) on raw features."""
    return bayes_readout(gaussians, shrink, normalise=False)


def rda_readout(gaussians: Gaussians, mixture: float, shrinkage: float) -> QuadraticReadout:
    """Regularised discriminant analysis (Friedman, "Regularized discriminant analysis", JASA 1989) on raw features:
    scores −(z − μ_c)ᵀ M_c⁻¹ (z − μ_c) − log det M_c with M_c = (1 − γ)·S_c + γ·mean(diag S_c)·I and
    S_c = (1 − λ)·Σ_c + λ·Σ, where Σ is the mean of all Σ_c.

    `mixture` λ and `shrinkage` γ are from 0 to 1: (0, 0) is quadratic discriminant analysis, (1, 0) linear, (1, 1) the
    nearest mean. All classes are taken to be equally likely.
    """
    pooled = gaussians.covs.mean(0)

    def prepare(covs: Tensor) -> Tensor:
        mixed = torch.lerp(covs, pooled, mixture)
        level = mixed.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
        return torch.lerp(mixed, level * torch.eye(pooled.shape[-1]).to(mixed), shrinkage)

    plain = QuadraticReadout.of(gaussians.means, gaussians.covs, normalise=False, prepare=prepare)
    return replace(plain, constants=plain.log_determinants())


def nearest_mean_distances(features: Tensor, means: Tensor, *, normalise: bool = False) -> Tensor:
    """‖z − μ_c‖², [B, S] and [C, S] → [B, C]; with `normalise` between unit vectors, that is 2 − 2·cosine.

    Expanded as ‖z‖² − 2zᵀμ + ‖μ‖² around the centre of the means, which spares the digits a common offset would cost.
    """
    features, means = as_vectors(features, normalise), as_vectors(means, normalise)
    origin = means.mean(0)
    features, means = features - origin, means - origin
    squares = features.square().sum(-1)[:, None] + means.square().sum(-1)  # [B, C]
    return (squares - 2 * features @ means.mT).clamp_min(0)


@dataclass(frozen=True)
class NearestMeanReadout:
    """Minus the squared distance to every class mean."""

    means: Tensor
    """[C, S]."""

    def scores(self, features: Tensor) -> Tensor:
        return -nearest_mean_distances(features, self.means)

    def graph(self) -> nn.Module:
        """Linear up to −‖z‖², which all classes share."""

        def scores(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return features.double() @ weight.T + bias - features.double().square().sum(-1, keepdim=True)

        means = self.means.to(torch.float64)
        return ScoreGraph(scores, weight=2 * means, bias=-means.square().sum(-1))


@dataclass(frozen=True)
class LinearReadout:
    """w_c·z + b_c on raw features."""

    weight: Tensor
    """[C, S], float64."""
    bias: Tensor
    """[C], float64."""

    def scores(self, features: Tensor) -> Tensor:
        return features.double() @ self.weight.T + self.bias

    def graph(self) -> nn.Module:
        def scores(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return features.double() @ weight.T + bias

        return ScoreGraph(scores, weight=self.weight, bias=self.bias)


def linear_discriminant(means: Tensor, cov: Tensor, share: float, counts: Tensor | None = None) -> LinearReadout:
    """Fisher's linear discriminant with equal priors: w_c = M⁻¹(μ_c − o), b_c = −½ w_c·(μ_c + o), M = blend(Σ, share).

    Means [C, S], Σ [S, S]. Up to a number that all classes share these are the log-densities of Gaussians N(μ_c, M). o
    is the mean of the means, which spares the digits a common offset would cost.

    With the number of images of each class, [C], the noise in their means is allowed for. Measured by M, it makes
    ‖μ_c − o‖² too long by v_c = tr(M⁻¹Σ)/n_c, so that a class of few images seems far from every image, its own
    included. What is left of ‖μ_c − o‖² on average, τ, is the real distance of the means. So μ_c − o is multiplied
    by k_c = τ/(τ + v_c), which brings it nearest to the true mean (James & Stein, 1961), and ‖k_c(μ_c − o)‖² is taken
    without the k_c²·v_c that is noise.
    """
    means = means.to(torch.float64)
    origin = means.mean(0) if len(means) else means.new_zeros(means.shape[1])
    lower = spd.cholesky(spd.blend(cov, share)).lower
    weight = torch.cholesky_solve((means - origin).mT, lower).mT.contiguous()  # [C, S]
    if counts is None:
        return LinearReadout(weight, -(weight * (means + origin)).sum(-1) / 2)
    lengths = (weight * (means - origin)).sum(-1)  # [C]
    noise = torch.cholesky_solve(cov.to(lower), lower).diagonal().sum() / counts.clamp_min(1)
    apart = (lengths - noise).mean().clamp_min(0) if len(means) else noise.new_zeros(())
    kept = torch.where(noise > 0, apart / (apart + noise), 1.0) if apart > 0 else torch.ones_like(noise)
    weight = kept[:, None] * weight
    return LinearReadout(weight, -(kept**2) * (lengths - noise) / 2 - weight @ origin)


def ridge_readout(gram: Tensor, sums: Tensor, ridge: float) -> LinearReadout:
    """Ridge regression on one-hot labels without intercept: (G + ridge·I)⁻¹ Σ z of every class.

    G = Σ z zᵀ, [S, S], sums [C, S].
    """
    identity = torch.eye(len(gram), dtype=torch.float64, device=gram.device)
    lower = spd.cholesky(gram + ridge * identity).lower
    weight = torch.cholesky_solve(sums.to(torch.float64).mT, lower).mT.contiguous()
    return LinearReadout(weight, weight.new_zeros(len(weight)))


def margins(distances: Tensor, labels: Tensor) -> Tensor:
    """min_{c≠y} d_c − d_y, [B, C] and [B] → [B]: positive where the label is the nearest class, +inf if alone."""
    distances = distances.to(torch.float64)
    labels = labels.to(distances.device)[:, None]
    others = distances.scatter(1, labels, torch.inf).amin(1)
    return others - distances.gather(1, labels)[:, 0]
