"""What the policies draw: hand-computed magnitudes, and frequencies by chi-square tests with fixed seeds."""

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from gatf.data.image_ops import Op
from gatf.data.policies import (
    AUTOAUGMENT_CIFAR10,
    SIGNED,
    TRIVIAL_OPERATIONS,
    AutoAugment,
    TrivialAugment,
    autoaugment_magnitudes,
    draw_autoaugment,
    draw_trivial,
    trivial_magnitudes,
)

DRAWS = 14 * 31 * 100


def uniform(indices: Tensor, categories: int) -> float:
    """p-value of the hypothesis that indices are uniform on 0 … categories − 1."""
    return chisquare(torch.bincount(indices, minlength=categories).numpy()).pvalue


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_trivial_draws_operations_and_magnitudes_uniformly_and_independently() -> None:
    draw = draw_trivial(DRAWS, generator())
    place = torch.full((len(Op),), -1)
    place[list(TRIVIAL_OPERATIONS)] = torch.arange(14)
    choice = place[draw.operations]
    assert choice.min() == 0  # nothing outside the 14
    assert uniform(choice, 14) > 1e-3
    assert uniform(draw.bins, 31) > 1e-3
    assert uniform(choice * 31 + draw.bins, 14 * 31) > 1e-3


def test_trivial_signs_are_fair_where_they_apply_and_absent_elsewhere() -> None:
    draw = draw_trivial(DRAWS, generator(1))
    for op in TRIVIAL_OPERATIONS:
        values = draw.values[(draw.operations == op) & (draw.bins > 1)]
        neutral = 1.0 if op in (Op.BRIGHTNESS, Op.COLOR, Op.CONTRAST, Op.SHARPNESS) else 0.0
        if op in SIGNED:
            assert uniform((values < neutral).long(), 2) > 1e-3
        else:
            assert (values >= 0).all()


def test_trivial_strengths_of_neighbours_are_independent() -> None:
    draw = draw_trivial(DRAWS, generator(2))
    pairs = draw.bins[:-1:2] * 31 + draw.bins[1::2]
    assert uniform(pairs, 31 * 31) > 1e-3


@pytest.mark.parametrize(
    ("op", "bin_", "value"),
    [
        (Op.SHEAR_X, 30, 0.99),
        (Op.SHEAR_Y, 10, 0.33),
        (Op.TRANSLATE_X, 30, 32.0),
        (Op.TRANSLATE_Y, 14, 14.0),  # 14.93 pixels, truncated
        (Op.TRANSLATE_X, 15, 15.0),  # 15.999999 pixels in float32, truncated
        (Op.ROTATE, 20, 90.0),
        (Op.SHARPNESS, 15, 0.495),
        (Op.POSTERIZE, 0, 8.0),
        (Op.POSTERIZE, 12, 6.0),  # 8 − round(2.4)
        (Op.POSTERIZE, 30, 2.0),
        (Op.SOLARIZE, 0, 255.0),
        (Op.SOLARIZE, 30, 0.0),
        (Op.EQUALIZE, 7, 0.0),
    ],
)
def test_trivial_magnitudes(op: Op, bin_: int, value: float) -> None:
    assert trivial_magnitudes(op)[bin_] == pytest.approx(value)


@pytest.mark.parametrize(
    ("op", "bin_", "value"),
    [
        (Op.SHEAR_Y, 9, 0.3),
        (Op.TRANSLATE_X, 9, 29.003021),  # 150/331 of the width 64, not cut to whole pixels
        (Op.TRANSLATE_Y, 9, 14.501511),  # 150/331 of the height 32
        (Op.TRANSLATE_Y, 3, 4.833837),
        (Op.ROTATE, 3, 10.0),
        (Op.COLOR, 9, 0.9),
        (Op.POSTERIZE, 7, 5.0),  # 8 − round(3.11)
        (Op.SOLARIZE, 0, 256.0),
        (Op.SOLARIZE, 3, 170.666667),
    ],
)
def test_autoaugment_magnitudes(op: Op, bin_: int, value: float) -> None:
    assert autoaugment_magnitudes(op, height=32, width=64)[bin_] == pytest.approx(value)


def test_autoaugment_draws_sub_policies_uniformly_with_their_probabilities() -> None:
    draw = draw_autoaugment(50_000, 32, 32, generator())
    assert uniform(draw.policies, 25) > 1e-3
    for row, pair in enumerate(AUTOAUGMENT_CIFAR10):
        operations = draw.operations[draw.policies == row]
        applied = operations != Op.IDENTITY
        for slot, (op, probability, _) in enumerate(pair):
            assert set(operations[applied[:, slot], slot].tolist()) <= {op}
            spread = (probability * (1 - probability) / len(operations)) ** 0.5
            assert applied[:, slot].double().mean().item() == pytest.approx(probability, abs=4 * spread + 1e-9)
        both = applied.all(1).double().mean().item()  # the two tosses are independent
        assert both == pytest.approx(pair[0][1] * pair[1][1], abs=4 * 0.5 / len(operations) ** 0.5)


def test_autoaugment_values_carry_sign_and_unit() -> None:
    draw = draw_autoaugment(20_000, 32, 32, generator())
    rotations = draw.values[draw.operations == Op.ROTATE]
    assert rotations.unique().tolist() == pytest.approx([-20 / 3, 20 / 3])
    shears = draw.values[draw.operations == Op.SHEAR_Y].unique().tolist()
    assert shears == pytest.approx([-0.8 / 3, -0.7 / 3, 0.7 / 3, 0.8 / 3])
    shifts = draw.values[draw.operations == Op.TRANSLATE_X].unique().tolist()
    assert shifts == pytest.approx([-14.501511, -12.890232, 12.890232, 14.501511])
    assert set(draw.values[draw.operations == Op.POSTERIZE].tolist()) == {5.0}


@pytest.mark.parametrize("step", [TrivialAugment(), AutoAugment(fill=128)])
@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (7, 1, 8, 8), (5, 3, 33, 17), (64, 3, 64, 64)])
def test_policies_keep_shape_and_type(step: TrivialAugment | AutoAugment, shape: tuple[int, ...]) -> None:
    images = torch.randint(256, shape, dtype=torch.uint8, generator=generator())
    result = step(images, generator())
    assert result.shape == images.shape
    assert result.dtype == torch.uint8
