"""Calibrated probabilities: a temperature for softmax, fitted to held-out images."""

import torch
from torch import Tensor

STEP = 0.5
TEMPERATURES = 2 ** torch.arange(-12.0, 24.0, STEP, dtype=torch.float64)
"""The grid of temperatures. It is wide because scores of Gaussians can be in the thousands."""
NO_CALIBRATION = torch.zeros(1 + 2 * len(TEMPERATURES), dtype=torch.float64)
"""`calibration_sums` of no images."""


def softmax_with_temperature(scores: Tensor, temperature: float) -> Tensor:
    """Probabilities [N, C] that sum to 1, float64."""
    return torch.softmax(scores.double() / temperature, dim=1)


def calibration_sums(scores: Tensor, labels: Tensor) -> Tensor:
    """Losses of held-out images (scores [N, C], labels [N]) at each of `TEMPERATURES`, as sums to add over updates.

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


def fitted_temperature(sums: Tensor) -> float:
    """The temperature T that minimises the cross-entropy of softmax(scores/T), from `calibration_sums`.

    Guo et al., "On calibration of modern neural networks" (ICML 2017). The targets are smoothed as Platt does,
    (n + 1)/(n + 2) on the true class, so that a few correct predictions do not make the classifier certain. Between
    two temperatures of the grid the loss is interpolated by a parabola in log T.
    """
    count = float(sums[0])
    share = (count + 1) / (count + 2)
    losses = share * sums[1 : 1 + len(TEMPERATURES)] + (1 - share) * sums[1 + len(TEMPERATURES) :]
    best = int(losses.argmin())
    place = float(best)
    if 0 < best < len(losses) - 1:
        left, middle, right = losses[best - 1 : best + 2].tolist()
        bend = left - 2 * middle + right
        place += 0.5 * (left - right) / bend if bend > 0 else 0.0
    return float(TEMPERATURES[0]) * 2 ** (place * STEP)


def temperature_at_even_odds(scores: Tensor, labels: Tensor) -> float:
    """The temperature where no image was held out, from training images (scores [N, C], labels [N]).

    Correct predictions on training images prove nothing. `fitted_temperature` therefore gets a count of 0, and its
    smoothing gives them a probability of 1/2.
    """
    sums = calibration_sums(scores, labels)
    return fitted_temperature(torch.cat([torch.zeros(1, dtype=sums.dtype), sums[1:]]))
