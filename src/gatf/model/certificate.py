"""Certificates: which predictions the error of the transport cannot have changed (GATF, Theorem 2)."""

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
"""Shrinkage of the common covariance that certificates use."""
CLASS_SHRINK = BAYES_SHRINK
"""Shrinkage of the class covariances that certificates use, the same as in the usual readout."""


@dataclass(frozen=True)
class Metric:
    """One covariance for all classes: the mean of theirs, shrunk. Distances in it are between whitened vectors.

    Theorem 2 as printed, with each class's own covariance, needs ‖Σ̂ − Σ‖ < λ_min/2, which trained features do not come
    near. A fixed metric has no such error: with Σ = M for every class, η_Σ is 0 and only means can be wrong.
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
    """Largest distance between transported and true mean over classes with both: η_μ of Theorem 2."""
    return float((metric(predicted.means) - metric(true.means)).norm(dim=1).max())


def class_transport_errors(predicted: Gaussians, true: Gaussians) -> tuple[float, float]:
    """η_μ and η_Σ of Theorem 2 where each class's covariance, shrunk, is the identity: the largest over
    classes with both transported and true statistics."""
    mean, cov = whitened_errors(
        *(Gaussians(each.means, spd.shrink(each.covs, CLASS_SHRINK)) for each in (predicted, true))
    )
    return float(mean.max()), float(cov.max())


class Certifier:
    """Certifies predictions from the stored Gaussians and the measured error of their transport."""

    def __init__(self, stored: Gaussians, errors: Tensor, class_errors: tuple[float, float] | None = None) -> None:
        self.stored = stored
        self.errors = errors
        """Error of each class's stored mean in the common metric, float64 [C]; empty where it was not measured."""
        self.class_errors = class_errors
        """`class_transport_errors` of the transported classes (those with an error); None where not measured."""

    @cached_property
    def metric(self) -> Metric:
        return Metric.of(self.stored)

    @cached_property
    def _class_readout(self) -> QuadraticReadout:
        return mahalanobis_readout(self.stored, CLASS_SHRINK)

    def certificates(self, features: Tensor, predicted: Tensor) -> Tensor:
        """Which predictions [N] the transport's error cannot have changed (GATF, Theorem 2), bool [N].

        A prediction is certified if one of two rules certifies it. By either rule the predicted class is the nearest
        one, and it stays the nearest wherever the true Gaussians lie within the measured errors of the stored ones.
        The first rule measures in the common metric, where only means can be wrong. The second rule uses each class's
        own covariance and the range of its distance (`distance_range`, which contains Theorem 2's bound). The theorem
        is about Mahalanobis distances, while the readout may use another rule ("bayes" normalises by class); hence the
        condition that both agree.
        """
        if len(self.errors) == 0:
            raise UserError(
                "certificates need the error of the transport, which gatf run does not measure; update the model with "
                "gatf learn first"
            )
        distances = torch.cdist(self.metric(features), self.metric(self.stored.means))  # [N, C]
        bounds = score_bound(distances, self.errors, eta_cov=0.0, lambda_min=torch.ones((), dtype=torch.float64))
        squares = distances.square()
        return (certified(squares, bounds) & (squares.argmin(1) == predicted)) | self.certified_by_class(
            features, predicted
        )

    def certified_by_class(self, features: Tensor, predicted: Tensor) -> Tensor:
        """By each class's own covariance, bool [N]; none where its error was not measured."""
        if self.class_errors is None:
            return torch.zeros(len(features), dtype=torch.bool)
        transported = (self.errors > 0).double()
        distances = self._class_readout.distances(features)
        low, high = distance_range(distances, *(eta * transported for eta in self.class_errors))
        nearest = distances.argmin(1)
        return certified_range(low, high, nearest) & (nearest == predicted)
