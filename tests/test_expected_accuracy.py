"""The forecast of an update: accuracy on points drawn from stored Gaussians."""

import math

import pytest
import torch
from torch import Tensor

from gatf.geometry import Gaussians, nearest_mean_distances
from gatf.incremental import statistics
from gatf.incremental.statistics import Draws, Forecast


class Line:
    """Classes of variance 1 in a row, so far apart; the nearest answers."""

    def __init__(self, classes: int, apart: float, *, shared: bool = False) -> None:
        means = apart * torch.arange(classes, dtype=torch.float64)[:, None]
        own = Gaussians(means, torch.ones(classes, 1, 1))
        self.gaussians = Gaussians.sharing(means, torch.ones(1, 1)) if shared else own
        self.scored = 0

    def forecast(self, classes: range, seed: int = 0) -> Forecast:
        return Draws(self.gaussians, self._scores, classes, seed=seed).accuracy()

    def _scores(self, features: Tensor) -> Tensor:
        self.scored += len(features)
        return -nearest_mean_distances(features, self.gaussians.means)


def normal_below(value: float) -> float:
    return (1 + math.erf(value / 2**0.5)) / 2


@pytest.mark.parametrize("shared", [False, True])
def test_two_classes_by_hand(shared: bool) -> None:
    found = Line(2, 2.0, shared=shared).forecast(range(2))
    exact = 100 * normal_below(1)  # 84.13 %
    assert found.error == pytest.approx(math.sqrt(exact * (100 - exact) / 400), rel=0.15)
    assert found.percent == pytest.approx(exact, abs=4 * found.error)
    assert found != Line(2, 2.0).forecast(range(2), seed=1)
    wider = Draws(Line(2, 4.0).gaussians, Line(2, 4.0)._scores, range(2), seed=0).accuracy(spread=2.0)
    assert wider.percent == pytest.approx(found.percent), "twice as far apart, and spread twice as far: the same"


@pytest.mark.parametrize("points", [50, 400, 2000])
def test_the_error_is_that_of_many_seeds(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With some of the classes, one point each, and several each."""
    monkeypatch.setattr(statistics, "POINTS", points)
    line = Line(400, 2.0)
    found = [line.forecast(range(300), seed) for seed in range(30)]
    exact = 100 * (2 * normal_below(1) - 1)  # all but the first have neighbours on both sides
    percents = torch.tensor([each.percent for each in found])
    assert float(percents.std()) == pytest.approx(sum(each.error for each in found) / 30, rel=0.4)
    assert float(percents.mean()) == pytest.approx(exact, abs=4 * float(percents.std()) / 30**0.5)


def test_many_classes_share_a_number_of_points() -> None:
    line = Line(2000, 3.0)
    line.forecast(range(1900))
    assert line.scored == 1900
    assert line.forecast(range(1900, 2000)).error < 1
    assert line.scored == 1900 + 2000
