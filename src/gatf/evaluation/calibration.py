"""Calibration of probabilities: of predictions with probability 80 %, four in five should be correct."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ReliabilityBin:
    """Predictions whose probability is in one interval."""

    low: float
    high: float
    images: int
    confidence: float
    """Mean probability of these predictions."""
    accuracy: float
    """Share of them that is correct."""


def reliability(confidence: Tensor, right: Tensor, bins: int = 15) -> list[ReliabilityBin]:
    """Predictions [N] by probability, in bins of equal width; empty bins are omitted."""
    confidence, right = confidence.double(), right.double()
    number = (confidence * bins).floor().clamp(0, bins - 1).long()
    found = []
    for index in number.unique().tolist():
        inside = number == index
        found.append(
            ReliabilityBin(
                index / bins,
                (index + 1) / bins,
                int(inside.sum()),
                float(confidence[inside].mean()),
                float(right[inside].mean()),
            )
        )
    return found


def expected_calibration_error(bins: list[ReliabilityBin]) -> float:
    """Mean over predictions of |probability − accuracy| in their bin (Naeini et al., AAAI 2015)."""
    images = sum(each.images for each in bins)
    return sum(each.images * abs(each.confidence - each.accuracy) for each in bins) / images


def confusion(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Number of images of class i predicted as class j, int64 [classes, classes]."""
    return torch.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
