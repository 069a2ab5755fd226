"""Accuracies of classes after updates, and what they forecast for classes without images."""

import pytest
import torch

from gatf.geometry.gaussians import Gaussians
from gatf.geometry.readout import mahalanobis_readout
from gatf.incremental.statistics import OldSamples, accuracy_of, decline, measured_after, taken_for
from gatf.model.calibration import calibration_sums, fitted_temperature


def worlds(classes: int, *, seed: int, each: int = 30, dim: int = 6):
    """Images of classes on random places, and the nearest place's scores."""
    draws = torch.Generator().manual_seed(seed)
    means = 1.3 * torch.randn(classes, dim, generator=draws, dtype=torch.float64)
    numbers = torch.arange(classes).repeat_interleave(each)
    points = means[numbers] + torch.randn(len(numbers), dim, generator=draws, dtype=torch.float64)
    return -torch.cdist(points, means), numbers


def test_the_decline_by_hand():
    """Three old classes and one new: of four new images one is correct, one loses to one old class, one to two old
    ones and one to a class of its own update."""
    scores = torch.tensor(
        [[0.0, 0, 0, 1, 0], [2.0, 0, 0, 1, 0], [2.0, 2, 0, 1, 0], [0, 0, 0, 1, 2]], dtype=torch.float64
    )
    ratio, variance = decline(scores, torch.tensor([3, 3, 3, 3]), 3)
    before = 1 + 2 / 3 + 1 / 3  # without two random ones of three old classes
    assert ratio == pytest.approx(1 / before)
    assert variance > 0
    nothing, _ = decline(scores[:1], torch.tensor([3]), 3)
    assert nothing == 1


def test_the_forecast_has_no_bias_and_its_range_holds():
    """Updates of four classes: old images are never seen again, and yet their accuracy is known."""
    differences, inside = [], 0
    for seed in range(12):
        scores, numbers = worlds(24, seed=seed)
        measured = torch.zeros(0, 3, dtype=torch.float64)
        for seen in range(4, 25, 4):
            mine = (numbers >= seen - 4) & (numbers < seen)
            measured = measured_after(measured, scores[mine, :seen], numbers[mine])
        old = numbers < 20
        true = 100 * float((scores[old].argmax(1) == numbers[old]).double().mean())
        found = accuracy_of(measured[:20])
        assert found is not None
        assert found.images == 600
        differences.append(found.percent - true)
        inside += found.range[0] <= true <= found.range[1]
    differences = torch.tensor(differences)
    assert abs(float(differences.mean())) < 2 * float(differences.std()) / 12**0.5 + 0.5
    assert inside >= 10


@pytest.mark.parametrize("widths", [(0.7, 1.5), (1.5, 0.7)])
def test_the_forecast_has_no_bias_where_one_side_takes_more(widths):
    """Old classes narrower than new ones, or wider: the wider class takes images of the narrower, and rarely back."""
    shares = []
    for seed in range(6):
        draws = torch.Generator().manual_seed(seed)
        means = 1.6 * torch.randn(12, 6, generator=draws, dtype=torch.float64)
        width = torch.tensor(widths, dtype=torch.float64).repeat_interleave(6)
        scores = mahalanobis_readout(Gaussians(means, width.square()[:, None, None] * torch.eye(6))).scores
        stored = Gaussians(means, (width / 1.3).square()[:, None, None] * torch.eye(6))  # images scatter more
        numbers = torch.arange(12).repeat_interleave(200)
        points = means[numbers] + width[numbers, None] * torch.randn(2400, 6, generator=draws, dtype=torch.float64)
        found, old = scores(points), numbers < 6
        among_old, among_all = (
            float((found[old][:, :most].argmax(1) == numbers[old]).double().mean()) for most in (6, 12)
        )
        before = torch.tensor([[among_old, 200.0, 0.0]] * 6, dtype=torch.float64)
        samples = OldSamples(stored, scores, found[~old], numbers[~old], 6, seed=seed)
        own, fair = (
            fitted_temperature(sums) for sums in (samples.calibration(900), calibration_sums(found[old], numbers[old]))
        )
        assert own == pytest.approx(fair, rel=0.25)
        even, uneven = (
            measured_after(before, found[~old], numbers[~old], how)[:6, 0].mean() for how in (decline, samples.decline)
        )
        shares.append((among_all, float(even), float(uneven)))
    truth, even, uneven = torch.tensor(shares).T
    assert abs(float((uneven - truth).mean())) < 0.02
    assert abs(float((even - truth).mean())) > 0.06, "this test can fail"


def test_few_images_give_no_percentage():
    scores, numbers = worlds(2, seed=0, each=9)
    assert accuracy_of(measured_after(torch.zeros(0, 3, dtype=torch.float64), scores, numbers)) is None
    unknown = torch.zeros(3, 3, dtype=torch.float64)
    unknown[0] = torch.tensor([0.9, 500.0, 0.0])
    assert accuracy_of(unknown) is None, "most classes were never measured"


def test_new_images_of_a_known_class_count_with_the_old_ones():
    before = torch.tensor([[0.5, 10.0, 0.01], [0.8, 10.0, 0.01]], dtype=torch.float64)
    scores = torch.tensor([[1.0, 0.0]] * 30, dtype=torch.float64)
    after = measured_after(before, scores, torch.zeros(30, dtype=torch.int64))
    assert after[0].tolist() == pytest.approx([35 / 40, 40, 0.01 / 4])
    assert after[1].tolist() == before[1].tolist()


def test_classes_that_are_taken_for_another():
    numbers = torch.tensor([0] * 30 + [1] * 30 + [2] * 10)
    found = torch.tensor([0] * 30 + [0] * 20 + [1] * 10 + [0] * 10)
    assert taken_for(found, numbers, range(3)) == [(1, 0, pytest.approx(200 / 3), 30)], "ten images prove nothing"
