"""Calibrated probabilities: a temperature for softmax, fitted to held-out images."""

from collections.abc import Callable

import torch
from torch import Tensor

STEP = 0.5
TEMPERATURES = 2 ** torch.arange(-12.0, 24.0, STEP, dtype=torch.float64)
"""The grid of temperatures. It is wide because scores of Gaussians can be in the thousands."""
ENOUGH = 150
"""Images that calibrate probabilities, where an update has them."""
SCORES_AT_ONCE = 2**18
NO_CALIBRATION = torch.zeros(1 + 2 * len(TEMPERATURES), dtype=torch.float64)
"""`calibration_sums` of no images."""


def softmax_with_temperature(scores: Tensor, temperature: float) -> Tensor:
    """Probabilities [N, C] that sum to 1, float64."""
    return torch.softmax(scores.double() / temperature, dim=1)


def calibration_sums(scores: Tensor, labels: Tensor) -> Tensor:
    """Losses of held-out images (scores [N, C], labels [N]) at each of `TEMPERATURES`, as sums to add over updates.

    The number of images, then the cross-entropy of their true classes, then that of the most likely other class;
    [1 + 2T].
    """

    def of(some: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        mine = labels[rows, None]
        return some.gather(1, mine)[:, 0], some.scatter(1, mine, -torch.inf).amax(1)

    return _sums(scores, of)


def newest(sums: Tensor, older: Tensor) -> Tensor:
    """Sums of an update and, where it has fewer than `ENOUGH` images, of older updates, which had fewer classes and a
    less well known covariance."""
    missing = max(0.0, ENOUGH - float(sums[0]))
    return sums if missing == 0 or older[0] <= 0 else sums + older * min(1.0, missing / float(older[0]))


def expected_calibration_sums(scores: Tensor, probabilities: Tensor) -> Tensor:
    """`calibration_sums` expected where another classifier gives the probabilities of the true classes, [N, C]."""

    def of(some: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        best = some.topk(2, dim=1)  # the most likely other class is the second, if the true class is the first
        first = probabilities[rows].gather(1, best.indices[:, :1])
        return (probabilities[rows] * some).sum(1), (torch.cat([1 - first, first], 1) * best.values).sum(1)

    return _sums(scores, of)


def _sums(scores: Tensor, of: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """`of` gives the scores of the true and of the most likely other classes, [B] each, from scores [B, C] and their
    row numbers [B]."""
    count, classes = scores.shape
    if count == 0 or classes < 2:
        return NO_CALIBRATION
    true, other = torch.zeros(2, len(TEMPERATURES), dtype=torch.float64)
    for rows in torch.arange(count).split(max(1, SCORES_AT_ONCE // classes)):
        some = scores[rows].double()
        some -= some.amax(1, keepdim=True)
        right, wrong = of(some, rows)
        for place, temperature in enumerate(TEMPERATURES.tolist()):
            level = torch.logsumexp(some / temperature, dim=1)
            true[place] += (level - right / temperature).sum()
            other[place] += (level - wrong / temperature).sum()
    return torch.cat([true.new_tensor([count]), true, other])


def fitted_temperature(sums: Tensor) -> float:
    """The temperature T that minimises the cross-entropy of softmax(scores/T), from `calibration_sums`.

    Guo et al., "On calibration of modern neural networks" (ICML 2017). The targets are smoothed as Platt does,
    (n + 1)/(n + 2) on the true class and the rest on the most likely other one, so that a few correct predictions do
    not make the classifier certain. Between two temperatures of the grid the loss is interpolated by a parabola in
    log T.
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
