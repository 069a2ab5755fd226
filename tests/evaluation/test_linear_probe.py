"""The linear probe finds the optimum, and what it reports is on the raw features."""

import math

import pytest
import torch

from gatf.evaluation.linear_probe import held_out, linear_probe, logistic_regression


def test_one_feature_two_classes_by_hand() -> None:
    """Points at ±1, a class each: by symmetry the rows are −w and w, there is no bias, and the mean of both points'
    gradients is −σ(−2w), σ the logistic function; so ridge·w = σ(−2w)."""
    inputs, labels = torch.tensor([[-1.0], [1.0]], dtype=torch.float64), torch.tensor([0, 1])
    solved = logistic_regression(inputs, labels, ridge=0.1, start=torch.zeros(2, 2, dtype=torch.float64))
    w = float(solved[1, 0])
    assert float(solved[0, 0]) == pytest.approx(-w, abs=1e-6)
    assert solved[:, 1].tolist() == pytest.approx([0, 0], abs=1e-6)
    assert 0.1 * w == pytest.approx(1 / (1 + math.exp(2 * w)), abs=1e-6)


def test_where_it_starts_does_not_matter() -> None:
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 5, generator=draws, dtype=torch.float64)
    labels = (inputs[:, 0] + 0.5 * torch.randn(200, generator=draws, dtype=torch.float64) > 0).long()
    zero = torch.zeros(2, 6, dtype=torch.float64)
    one = logistic_regression(inputs, labels, ridge=0.01, start=zero)
    other = logistic_regression(inputs, labels, ridge=0.01, start=zero + torch.randn(2, 6, generator=draws))
    assert torch.allclose(one[:, :-1], other[:, :-1], atol=1e-4)  # a bias common to all classes is free


def test_scores_are_of_raw_features_whatever_their_scale() -> None:
    """Classes that a line tells apart, far from the origin and with a constant feature."""
    draws = torch.Generator().manual_seed(1)
    place = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
    labels = torch.arange(300) % 3
    flat = place[labels] + 0.3 * torch.randn(300, 2, generator=draws)
    features = torch.cat([1000 + 50 * flat, torch.full((300, 1), 7.0)], dim=1)
    assert (linear_probe(features, labels, classes=3).scores(features).argmax(1) == labels).float().mean() > 0.99


def test_every_tenth_image_of_a_class_is_held_out() -> None:
    labels = torch.tensor([0] * 25 + [1] * 9)
    assert torch.nonzero(held_out(labels)).flatten().tolist() == [9, 19]


def test_few_images_are_all_learnt_from() -> None:
    features, labels = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 1, 1])
    assert (linear_probe(features, labels, classes=2).scores(features).argmax(1) == labels).all()
