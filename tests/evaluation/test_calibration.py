import pytest
import torch

from gatf.evaluation.calibration import confusion, expected_calibration_error, reliability


def test_reliability_by_hand() -> None:
    # two answers at 0.92 of which one is right, three at 0.55 of which all are, one at exactly 1
    confidence = torch.tensor([0.92, 0.92, 0.55, 0.55, 0.55, 1.0])
    right = torch.tensor([True, False, True, True, True, True])
    bins = reliability(confidence, right, bins=10)
    assert [(each.low, each.images, each.accuracy) for each in bins] == [
        (0.5, 3, 1.0), (0.9, 3, pytest.approx(2 / 3)),
    ]  # fmt: skip
    # 3·|0.55 − 1| + 3·|2.84/3 − 2/3| over 6
    assert expected_calibration_error(bins) == pytest.approx((3 * 0.45 + 0.84) / 6)


def test_calibrated_predictions_have_no_error() -> None:
    draws = torch.Generator().manual_seed(0)
    confidence = torch.rand(200_000, generator=draws, dtype=torch.float64)
    right = torch.rand(200_000, generator=draws, dtype=torch.float64) < confidence
    assert expected_calibration_error(reliability(confidence, right)) < 0.01
    assert expected_calibration_error(reliability(confidence, ~right)) > 0.3


def test_confusion_by_hand() -> None:
    table = confusion(torch.tensor([0, 2, 2, 1]), torch.tensor([0, 0, 2, 2]), 3)
    assert table.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 1]]
