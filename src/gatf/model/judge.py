"""How far an answer can be trusted: calibrated probabilities, Theorem 2's certificate, rejection of unknown images."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gatf.errors import UserError
from gatf.geometry import spd
from gatf.geometry.certificate import certified, certified_range, distance_range, score_bound, whitened_errors
from gatf.geometry.compact import SharedReadout, shared_readout
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.readout import BAYES_SHRINK, QuadraticReadout, mahalanobis_readout

METRIC_SHRINK = 1.0
"""Shrinkage of the one covariance that certificates measure by."""
CLASS_SHRINK = BAYES_SHRINK
"""Shrinkage of the class covariances that certificates measure by, as much as in the usual readout."""
UNKNOWN_SHRINK = 0.1
"""Shrinkage of the class covariances that unknown images are told by: little, for they lie off the classes' planes."""
GOLDEN = (5**0.5 - 1) / 2


def softmax_with_temperature(scores: Tensor, temperature: float) -> Tensor:
    """Probabilities [N, C] that sum to 1, float64."""
    return torch.softmax(scores.double() / temperature, dim=1)


def fit_temperature(scores: Tensor, labels: Tensor, *, steps: int = 60) -> float:
    """The temperature T that minimises the cross-entropy of softmax(scores/T) on held-out images [N, C], [N].

    Guo et al., "On calibration of modern neural networks" (ICML 2017). The targets are smoothed as Platt does,
    (n + 1)/(n + 2) on the true class, so that few and all right images do not make the classifier certain. The loss is
    convex in 1/T, so golden-section search over log T finds it.
    """
    scores = scores.double()
    count, classes = scores.shape
    if count == 0 or classes < 2:
        return 1.0
    true = (count + 1) / (count + 2)
    targets = torch.full_like(scores, (1 - true) / (classes - 1)).scatter_(1, labels[:, None], true)
    spread = float((scores - scores.mean(1, keepdim=True)).square().mean().sqrt()) or 1.0

    def loss(log_temperature: float) -> float:
        logs = torch.log_softmax(scores / (spread * torch.e**log_temperature), dim=1)
        return float(-(targets * logs).sum(1).mean())

    low, high = -8.0, 8.0
    for _ in range(steps):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, right) if loss(left) < loss(right) else (left, high)
    return float(spread * torch.e ** ((low + high) / 2))


def rejection_threshold(distances: Tensor, rate: float) -> float:
    """The distance beyond which an image is called unknown, from distances of held-out known ones, [M].

    Conformal: the ⌈(M + 1)(1 − rate)⌉-th smallest, so that a new image of the same kind is rejected with probability
    at most `rate`; +inf where M is too small to say so.
    """
    rank = int(torch.ceil(torch.tensor((len(distances) + 1) * (1 - rate), dtype=torch.float64) - 1e-9))
    if rank > len(distances):
        return float("inf")
    return float(distances.double().sort().values[max(rank, 1) - 1])


@dataclass(frozen=True)
class Metric:
    """One covariance for all classes: the mean of theirs, shrunk. Distances in it are between whitened vectors.

    Theorem 2 as printed, with each class's own covariance, needs ‖Σ̂ − Σ‖ < λ_min/2, which trained features do not come
    near. A metric that is fixed has no such error: with Σ = M for every class, η_Σ is 0 and only means can be wrong.
    """

    whitener: Tensor
    """L⁻¹ of M = L·Lᵀ, [S, S]."""

    @classmethod
    def of(cls, stored: Gaussians) -> "Metric":
        lower = spd.cholesky(spd.shrink(stored.mean_cov(), METRIC_SHRINK)).lower
        eye = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
        return cls(torch.linalg.solve_triangular(lower, eye, upper=False))

    def __call__(self, vectors: Tensor) -> Tensor:
        return vectors.to(self.whitener) @ self.whitener.mT


def transport_error(predicted: Gaussians, true: Gaussians, metric: Metric) -> float:
    """Largest distance between carried and true mean, over classes of which both are known: η_μ of Theorem 2."""
    return float((metric(predicted.means) - metric(true.means)).norm(dim=1).max())


def class_transport_errors(predicted: Gaussians, true: Gaussians) -> tuple[float, float]:
    """η_μ and η_Σ of Theorem 2 where each class's covariance, shrunk, is the identity: the largest over classes of
    which what was carried and what is true are both known."""
    mean, cov = whitened_errors(
        *(Gaussians(each.means, spd.shrink(each.covs, CLASS_SHRINK)) for each in (predicted, true))
    )
    return float(mean.max()), float(cov.max())


class Judge:
    """Distances to what is stored, and what follows from them."""

    def __init__(self, stored: Gaussians, errors: Tensor, class_errors: tuple[float, float] | None = None) -> None:
        self.stored = stored
        self.errors = errors
        """How far the stored mean of each class may be off in the metric, float64 [C]; empty where not measured."""
        self.class_errors = class_errors
        """`class_transport_errors` of the classes that were carried, which are those with an error; None where not
        measured."""

    @cached_property
    def metric(self) -> Metric:
        return Metric.of(self.stored)

    @cached_property
    def _certifying(self) -> QuadraticReadout:
        return mahalanobis_readout(self.stored, CLASS_SHRINK)

    @cached_property
    def _rejecting(self) -> QuadraticReadout | SharedReadout:
        common = self.stored.common
        if common is not None:  # one whitener for all classes
            return shared_readout(self.stored.means, common, UNKNOWN_SHRINK, normalise=False)
        return mahalanobis_readout(self.stored, UNKNOWN_SHRINK)

    def certificates(self, features: Tensor, answers: Tensor) -> Tensor:
        """Which answers [N] are safe from the transport's error (GATF, Theorem 2), bool [N].

        Certified: by one of two rules, the nearest class is the answer, and it stays so wherever the true Gaussians lie
        within the measured errors of the stored ones. One rule measures in the common metric, where only means can be
        wrong; the other by each class's own covariance, with the range that its distance has where that covariance is
        the identity (`distance_range`, which contains Theorem 2's bound there). Neither rule's statement says anything
        of the other's. The theorem is about Mahalanobis distances, while the answer's own rule may be another ("bayes"
        normalises by class), hence the demand that the two agree.
        """
        if len(self.errors) == 0:
            raise UserError(
                "this model was made by gatf run, which does not measure the error of the transport that certificates "
                "need; an update with gatf learn does"
            )
        distances = torch.cdist(self.metric(features), self.metric(self.stored.means))  # [N, C]
        bounds = score_bound(distances, self.errors, eta_cov=0.0, lambda_min=torch.ones((), dtype=torch.float64))
        squares = distances.square()
        return (certified(squares, bounds) & (squares.argmin(1) == answers)) | self._certified_by_class(
            features, answers
        )

    def _certified_by_class(self, features: Tensor, answers: Tensor) -> Tensor:
        """By each class's own covariance; none where its error was not measured."""
        if self.class_errors is None:
            return torch.zeros(len(features), dtype=torch.bool)
        carried = (self.errors > 0).double()
        distances = self._certifying.distances(features)
        low, high = distance_range(distances, *(eta * carried for eta in self.class_errors))
        nearest = distances.argmin(1)
        return certified_range(low, high, nearest) & (nearest == answers)

    def distances(self, features: Tensor) -> Tensor:
        """Squared Mahalanobis distance (GATF, Eq. 3) to each class, divided by the dimension, [N, C]."""
        return self._rejecting.distances(features.to(self.stored.means)) / features.shape[1]

    def nearest(self, features: Tensor) -> Tensor:
        """The distance to the nearest class, [N]."""
        return self.distances(features).amin(1)
