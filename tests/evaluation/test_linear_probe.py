"""The linear probe scores raw features, for any number of classes."""

import pytest
import torch

from gatf.evaluation.linear_probe import held_out, linear_probe


def test_one_feature_two_classes_by_hand() -> None:
    """Points at ±1, one class each: by symmetry the rows are −w and w, and the boundary is at zero."""
    readout = linear_probe(torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]), classes=2)
    assert readout.weight[0].item() == -readout.weight[1].item() < 0
    assert readout.bias.tolist() == pytest.approx([0, 0], abs=1e-6)


def test_a_single_class_is_every_prediction() -> None:
    assert linear_probe(torch.randn(3, 2), torch.zeros(3).long(), classes=1).scores(torch.randn(5, 2)).shape == (5, 1)


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
