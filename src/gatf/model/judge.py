"""How far an answer can be trusted: calibrated probabilities, Theorem 2's certificate, rejection of unknown images."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gatf.errors import UserError
from gatf.geometry import spd
from gatf.geometry.certificate import certified, certified_range, distance_range, score_bound, whitened_errors
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.readout import BAYES_SHRINK, QuadraticReadout, mahalanobis_readout

METRIC_SHRINK = 1.0
"""Shrinkage of the one covariance that certificates measure by."""
CLASS_SHRINK = BAYES_SHRINK
"""Shrinkage of the class covariances that certificates measure by, as much as in the usual readout."""
UNKNOWN_SHRINK = 0.1
"""Shrinkage of the covariance that unknown images are told by: little, for they lie off the classes' planes."""
TAIL = 0.9
"""The quantile of strangeness that is compared: thresholds lie in the upper tail."""
STEP = 0.5
TEMPERATURES = 2 ** torch.arange(-12.0, 24.0, STEP, dtype=torch.float64)
"""Temperatures that are compared. Scores of Gaussians can be in the thousands, so that they reach far."""

NO_CALIBRATION = torch.zeros(1 + 2 * len(TEMPERATURES), dtype=torch.float64)
"""`calibration` of no images."""
NO_NOVELTY = torch.zeros(0, 1)
"""The strangeness of no images."""


def softmax_with_temperature(scores: Tensor, temperature: float) -> Tensor:
    """Probabilities [N, C] that sum to 1, float64."""
    return torch.softmax(scores.double() / temperature, dim=1)


def calibration(scores: Tensor, labels: Tensor) -> Tensor:
    """What held-out images [N, C], [N] say of each of `TEMPERATURES`, as sums that can be added over updates.

    The number of images, then the cross-entropy of their true classes, then its mean over other classes; [1 + 2T].
    """
    scores = scores.double()
    count, classes = scores.shape
    if count == 0 or classes < 2:
        return NO_CALIBRATION
    true, other = [], []
    for temperature in TEMPERATURES.tolist():
        losses = -torch.log_softmax(scores / temperature, dim=1)
        of_true = losses.gather(1, labels[:, None]).sum()
        true.append(of_true)
        other.append((losses.sum() - of_true) / (classes - 1))
    return torch.stack([torch.tensor(float(count), dtype=torch.float64), *true, *other])


def temperature_of(calibrated: Tensor) -> float:
    """The temperature T that minimises the cross-entropy of softmax(scores/T), from what `calibration` sums up.

    Guo et al., "On calibration of modern neural networks" (ICML 2017). The targets are smoothed as Platt does,
    (n + 1)/(n + 2) on the true class, so that few and all right images do not make the classifier certain. Between
    temperatures the loss is taken for a parabola in log T.
    """
    count = float(calibrated[0])
    share = (count + 1) / (count + 2)
    losses = share * calibrated[1 : 1 + len(TEMPERATURES)] + (1 - share) * calibrated[1 + len(TEMPERATURES) :]
    best = int(losses.argmin())
    place = float(best)
    if 0 < best < len(losses) - 1:
        left, middle, right = losses[best - 1 : best + 2].tolist()
        bend = left - 2 * middle + right
        place += 0.5 * (left - right) / bend if bend > 0 else 0.0
    return float(TEMPERATURES[0]) * 2 ** (place * STEP)


def temperature_at_even_odds(scores: Tensor, labels: Tensor) -> float:
    """The temperature where no image was held out, from images [N, C], [N] that were learnt. Right answers to them
    prove nothing, so that `temperature_of` counts none, and its smoothing gives such answers a probability of 1/2."""
    learnt = calibration(scores, labels)
    return temperature_of(torch.cat([torch.zeros(1, dtype=learnt.dtype), learnt[1:]]))


def energy(scores: Tensor, temperature: float) -> Tensor:
    """How little any class speaks for an image: −log Σ exp(score/T) over classes, of scores [N, C], so [N, 1]. (Liu et
    al., "Energy-based out-of-distribution detection", NeurIPS 2020.)"""
    return -torch.logsumexp(scores.double() / temperature, dim=1, keepdim=True)


def combined_novelty(values: Tensor, known: Tensor) -> Tensor:
    """One number from several ways to be strange, [N, k] → [N]: the most there is of any, as a multiple of what a tenth
    of held-out known images, [M, k], exceeds."""
    if values.shape[1] == 1:
        return values[:, 0]
    much = known.double().quantile(TAIL, dim=0).clamp_min(1e-12)
    return (values.double() / much).amax(1)


def rejection_threshold(novelty: Tensor, rate: float) -> float:
    """The strangeness beyond which an image is called unknown, from that of held-out known ones, [M].

    Conformal: the ⌈(M + 1)(1 − rate)⌉-th smallest, so that a new image of the same kind is rejected with probability
    at most `rate`; +inf where M is too small to say so.
    """
    rank = int(torch.ceil(torch.tensor((len(novelty) + 1) * (1 - rate), dtype=torch.float64) - 1e-9))
    if rank > len(novelty):
        return float("inf")
    return float(novelty.double().sort().values[max(rank, 1) - 1])


@dataclass(frozen=True)
class Metric:
    """One covariance for all classes: the mean of theirs, shrunk. Distances in it are between whitened vectors.

    Theorem 2 as printed, with each class's own covariance, needs ‖Σ̂ − Σ‖ < λ_min/2, which trained features do not come
    near. A metric that is fixed has no such error: with Σ = M for every class, η_Σ is 0 and only means can be wrong.
    """

    whitener: Tensor
    """L⁻¹ of M = L·Lᵀ, [S, S]."""

    @classmethod
    def of(cls, stored: Gaussians, shrink: float = METRIC_SHRINK) -> "Metric":
        lower = spd.cholesky(spd.shrink(stored.mean_cov(), shrink)).lower
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
    def _rejecting(self) -> Metric:
        return Metric.of(self.stored, UNKNOWN_SHRINK)

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
        transported = (self.errors > 0).double()
        distances = self._certifying.distances(features)
        low, high = distance_range(distances, *(eta * transported for eta in self.class_errors))
        nearest = distances.argmin(1)
        return certified_range(low, high, nearest) & (nearest == answers)

    def distances(self, features: Tensor) -> Tensor:
        """Squared Mahalanobis distance to each class by the mean covariance of all, over the dimension, [N, C]."""
        points, means = self._rejecting(features), self._rejecting(self.stored.means)
        return torch.cdist(points, means).square() / features.shape[1]

    def novelty(self, features: Tensor) -> Tensor:
        """Two ways to be unlike every class, [N, 2]: the squared distance to the nearest class, divided by that to the
        centre of all classes; and the distance itself.

        The distance alone takes a blank image for a known one on a pretrained network, because the features of nothing
        in particular lie near the centre, between the classes. The quotient alone takes noise for a known one on a
        network that was trained from scratch, because its features are far from everything, along some class's
        direction. docs/uncertainty.md compares them with others.
        """
        distances = self.distances(features).amin(1)
        centre = self._rejecting(self.stored.means.mean(0))
        from_centre = (self._rejecting(features) - centre).square().mean(1)
        return torch.stack([distances / from_centre.clamp_min(1e-12), distances], dim=1)
