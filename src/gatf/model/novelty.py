"""Novelty scores and the rejection of unknown classes."""

from functools import cached_property

import torch
from torch import Tensor

from gatf.geometry.gaussians import Gaussians
from gatf.model.certificate import Metric

UNKNOWN_SHRINK = 0.1
"""Shrinkage of the covariance for novelty scores: little, because unknown images lie off the classes' planes."""
TAIL = 0.9
"""The quantile of novelty that is compared: thresholds lie in the upper tail."""
NO_NOVELTY = torch.zeros(0, 1)
"""The novelty scores of no images."""


def energy(scores: Tensor, temperature: float) -> Tensor:
    """Energy of scores [N, C]: −log Σ exp(score/T) over classes, [N, 1]; high for unknown images.

    Liu et al., "Energy-based out-of-distribution detection" (NeurIPS 2020).
    """
    return -torch.logsumexp(scores.double() / temperature, dim=1, keepdim=True)


def combined_novelty(values: Tensor, known: Tensor) -> Tensor:
    """One score from several, [N, k] → [N]: the largest, each in units of its upper decile over known images [M, k]."""
    if values.shape[1] == 1:
        return values[:, 0]
    scale = known.double().quantile(TAIL, dim=0).clamp_min(1e-12)
    return (values.double() / scale).amax(1)


def rejection_threshold(novelty: Tensor, rate: float) -> float:
    """The novelty above which an image is called unknown, from the novelty of held-out known images, [M].

    Conformal: the ⌈(M + 1)(1 − rate)⌉-th smallest. A new image of a known class is rejected with probability at most
    `rate`. +inf where M is too small for that guarantee.
    """
    rank = int(torch.ceil(torch.tensor((len(novelty) + 1) * (1 - rate), dtype=torch.float64) - 1e-9))
    if rank > len(novelty):
        return float("inf")
    return float(novelty.double().sort().values[max(rank, 1) - 1])


def nearness(distances: Tensor) -> Tensor:
    """The squared distance to the nearest class over that to the centre of all, [N, C + 1] → [N, 1]."""
    return distances[:, :-1].amin(1, keepdim=True) / distances[:, -1:].clamp_min(1e-12)


class NoveltyScorer:
    """Distances to the stored classes, and novelty scores from them."""

    def __init__(self, stored: Gaussians) -> None:
        self.stored = stored

    @cached_property
    def _metric(self) -> Metric:
        return Metric.of(self.stored, UNKNOWN_SHRINK)

    def distances(self, features: Tensor) -> Tensor:
        """Squared Mahalanobis distance to each class by the mean covariance of all, over the dimension, [N, C]."""
        points, means = self._metric(features), self._metric(self.stored.means)
        return torch.cdist(points, means).square() / features.shape[1]

    def scores(self, features: Tensor) -> Tensor:
        """Two novelty scores, [N, 2]: the squared distance to the nearest class over the squared distance to the centre
        of all classes; and the squared distance itself.

        The distance alone accepts a blank image on a pretrained network, because its features lie near the centre,
        between the classes. The quotient alone accepts noise on a network trained from scratch, because its features
        lie far away in the direction of some class. docs/uncertainty.md compares these scores with others.
        """
        distances = self.distances(features).amin(1)
        centre = self._metric(self.stored.means.mean(0))
        from_centre = (self._metric(features) - centre).square().mean(1)
        return torch.stack([distances / from_centre.clamp_min(1e-12), distances], dim=1)
