"""Augmentation policies: which operation, how strong, for every image of a batch.

TrivialAugment (Müller and Hutter, ICCV 2021) with its wide ranges is
torchvision's. The CIFAR-10 policy of AutoAugment (Cubuk et al., CVPR 2019, appendix) is that of PyCIL and the releases
built on it, among them ADC, LDC, FeCAM and DPCR.
"""

from functools import lru_cache
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from gatf.data import draws
from gatf.data.image_ops import Op, apply_operations

Fill = Annotated[int, Field(ge=0, le=255)]
"""A grey level."""
SIGNED = {  # the sign of these magnitudes is a coin toss
    Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y, Op.ROTATE,
    Op.BRIGHTNESS, Op.COLOR, Op.CONTRAST, Op.SHARPNESS,
}  # fmt: skip
ENHANCEMENTS = {Op.BRIGHTNESS, Op.COLOR, Op.CONTRAST, Op.SHARPNESS}  # magnitude m means the factor 1 ± m

TRIVIAL_OPERATIONS = (
    Op.IDENTITY, Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y, Op.ROTATE, Op.BRIGHTNESS, Op.COLOR,
    Op.CONTRAST, Op.SHARPNESS, Op.POSTERIZE, Op.SOLARIZE, Op.AUTOCONTRAST, Op.EQUALIZE,
)  # fmt: skip
TRIVIAL_BINS = 31
AUTOAUGMENT_BINS = 10

# (operation, probability, magnitude bin) twice; the bin of an operation without magnitude is 0
AUTOAUGMENT_CIFAR10 = (
    ((Op.INVERT, 0.1, 0), (Op.CONTRAST, 0.2, 6)),
    ((Op.ROTATE, 0.7, 2), (Op.TRANSLATE_X, 0.3, 9)),
    ((Op.SHARPNESS, 0.8, 1), (Op.SHARPNESS, 0.9, 3)),
    ((Op.SHEAR_Y, 0.5, 8), (Op.TRANSLATE_Y, 0.7, 9)),
    ((Op.AUTOCONTRAST, 0.5, 0), (Op.EQUALIZE, 0.9, 0)),
    ((Op.SHEAR_Y, 0.2, 7), (Op.POSTERIZE, 0.3, 7)),
    ((Op.COLOR, 0.4, 3), (Op.BRIGHTNESS, 0.6, 7)),
    ((Op.SHARPNESS, 0.3, 9), (Op.BRIGHTNESS, 0.7, 9)),
    ((Op.EQUALIZE, 0.6, 0), (Op.EQUALIZE, 0.5, 0)),
    ((Op.CONTRAST, 0.6, 7), (Op.SHARPNESS, 0.6, 5)),
    ((Op.COLOR, 0.7, 7), (Op.TRANSLATE_X, 0.5, 8)),
    ((Op.EQUALIZE, 0.3, 0), (Op.AUTOCONTRAST, 0.4, 0)),
    ((Op.TRANSLATE_Y, 0.4, 3), (Op.SHARPNESS, 0.2, 6)),
    ((Op.BRIGHTNESS, 0.9, 6), (Op.COLOR, 0.2, 8)),
    ((Op.SOLARIZE, 0.5, 2), (Op.INVERT, 0.0, 0)),
    ((Op.EQUALIZE, 0.2, 0), (Op.AUTOCONTRAST, 0.6, 0)),
    ((Op.EQUALIZE, 0.2, 0), (Op.EQUALIZE, 0.6, 0)),
    ((Op.COLOR, 0.9, 9), (Op.EQUALIZE, 0.6, 0)),
    ((Op.AUTOCONTRAST, 0.8, 0), (Op.SOLARIZE, 0.2, 8)),
    ((Op.BRIGHTNESS, 0.1, 3), (Op.COLOR, 0.7, 0)),
    ((Op.SOLARIZE, 0.4, 5), (Op.AUTOCONTRAST, 0.9, 0)),
    ((Op.TRANSLATE_Y, 0.9, 9), (Op.TRANSLATE_Y, 0.7, 9)),
    ((Op.AUTOCONTRAST, 0.9, 0), (Op.SOLARIZE, 0.8, 3)),
    ((Op.EQUALIZE, 0.8, 0), (Op.INVERT, 0.1, 0)),
    ((Op.TRANSLATE_Y, 0.7, 9), (Op.AUTOCONTRAST, 0.9, 0)),
)


def _magnitudes(op: Op, bins: int, *, wide: bool) -> list[float]:
    """torchvision's magnitude of every bin before the sign, without translations, which each policy has its own of."""
    fractions = [index / (bins - 1) for index in range(bins)]
    ranges = {
        Op.SHEAR_X: 0.99 if wide else 0.3,
        Op.SHEAR_Y: 0.99 if wide else 0.3,
        Op.ROTATE: 135.0 if wide else 30.0,
        **dict.fromkeys(ENHANCEMENTS, 0.99 if wide else 0.9),
    }
    if op in ranges:
        return np.linspace(0.0, ranges[op], bins).tolist()
    if op is Op.POSTERIZE:
        return [8.0 - round((6 if wide else 4) * fraction) for fraction in fractions]
    if op is Op.SOLARIZE:
        return [255 * (1 - fraction) for fraction in fractions]
    return [0.0] * bins


def _signed_values(ops: Tensor, sizes: Tensor, negative: Tensor) -> Tensor:
    """Magnitudes to the values `apply_operations` takes: a sign where one applies, factors around 1."""
    signed, enhancement = _traits(ops.device)
    return torch.where(signed[ops] & negative, -sizes, sizes) + enhancement[ops]


@lru_cache(maxsize=32)
def _traits(device: torch.device) -> tuple[Tensor, Tensor]:
    """For every `Op`: is it signed (bool), and the value its magnitude is added to (1 for enhancements)."""
    signed = torch.tensor([op in SIGNED for op in Op], device=device)
    return signed, torch.tensor([float(op in ENHANCEMENTS) for op in Op], device=device)


# --- TrivialAugment ---------------------------------------------------------------------------------------------------


class TrivialDraw(NamedTuple):
    """What TrivialAugment does to each image; all `[n]`."""

    operations: Tensor  # Op
    bins: Tensor  # 0 … 30, drawn for every image, without effect where the operation has no magnitude
    values: Tensor  # in the operation's unit, signed


def trivial_magnitudes(op: Op) -> list[float]:
    """The magnitude of every bin before the sign: torchvision's wide ranges, translations by up to 32 pixels."""
    if op in (Op.TRANSLATE_X, Op.TRANSLATE_Y):
        # torchvision truncates float32 values: the middle one of 0 … 32 is 15.999999 there, that is 15 pixels
        return [float(int(size)) for size in torch.linspace(0.0, 32.0, TRIVIAL_BINS, dtype=torch.float32).tolist()]
    return _magnitudes(op, TRIVIAL_BINS, wide=True)


@lru_cache(maxsize=32)
def _trivial_tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """The operations `[14]` and their magnitudes `[14, 31]`."""
    sizes = [trivial_magnitudes(op) for op in TRIVIAL_OPERATIONS]
    return torch.tensor(TRIVIAL_OPERATIONS, device=device), torch.tensor(sizes, device=device)


def draw_trivial(count: int, generator: torch.Generator) -> TrivialDraw:
    """Draw for each image one operation and one magnitude, both uniformly (TrivialAugment, algorithm 1)."""
    device = generator.device
    operations, sizes = _trivial_tables(device)
    choice = draws.randint(len(TRIVIAL_OPERATIONS), (count,), generator)
    bins = draws.randint(TRIVIAL_BINS, (count,), generator)
    negative = draws.randint(2, (count,), generator) == 1
    chosen = operations[choice]
    return TrivialDraw(chosen, bins, _signed_values(chosen, sizes[choice, bins], negative))


@dataclass(frozen=True)
class TrivialAugment:
    """TrivialAugmentWide: one random operation at a random strength per image; bilinear as in AdaGauss' code."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        draw = draw_trivial(len(images), generator)
        return apply_operations(images, draw.operations, draw.values, bilinear=True)


# --- AutoAugment ------------------------------------------------------------------------------------------------------


class AutoAugmentDraw(NamedTuple):
    """What AutoAugment does to each image."""

    policies: Tensor  # [n] row of AUTOAUGMENT_CIFAR10
    operations: Tensor  # [n, 2] Op, IDENTITY where the probability said no
    values: Tensor  # [n, 2] float64 in the operation's unit, signed


def autoaugment_magnitudes(op: Op, *, height: int, width: int) -> list[float]:
    """The magnitude of every bin before the sign, as in PyCIL: translations are not cut to whole pixels, and
    solarising starts from 256, that is from no change; the rest is torchvision's."""
    if op in (Op.TRANSLATE_X, Op.TRANSLATE_Y):
        side = width if op is Op.TRANSLATE_X else height
        return (np.linspace(0.0, 150 / 331, AUTOAUGMENT_BINS) * side).tolist()
    if op is Op.SOLARIZE:
        return np.linspace(256.0, 0.0, AUTOAUGMENT_BINS).tolist()
    return _magnitudes(op, AUTOAUGMENT_BINS, wide=False)


@lru_cache(maxsize=32)
def _autoaugment_tables(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Operations, probabilities and magnitudes (float64) of the sub-policies, each `[25, 2]`."""
    sizes = [
        [autoaugment_magnitudes(op, height=height, width=width)[bin_] for op, _, bin_ in pair]
        for pair in AUTOAUGMENT_CIFAR10
    ]
    operations = torch.tensor([[op for op, _, _ in pair] for pair in AUTOAUGMENT_CIFAR10], device=device)
    probabilities = torch.tensor([[p for _, p, _ in pair] for pair in AUTOAUGMENT_CIFAR10], device=device)
    return operations, probabilities, torch.tensor(sizes, device=device, dtype=torch.float64)


def draw_autoaugment(count: int, height: int, width: int, generator: torch.Generator) -> AutoAugmentDraw:
    """Draw a sub-policy for each image and toss its two probabilities; translations scale with the image's size."""
    device = generator.device
    operations, probabilities, sizes = _autoaugment_tables(height, width, device)
    policies = draws.randint(len(AUTOAUGMENT_CIFAR10), (count,), generator)
    applied = draws.rand((count, 2), generator) < probabilities[policies]
    negative = draws.randint(2, (count, 2), generator) == 1
    chosen = torch.where(applied, operations[policies], int(Op.IDENTITY))
    return AutoAugmentDraw(policies, chosen, _signed_values(chosen, sizes[policies], negative))


@dataclass(frozen=True)
class AutoAugment:
    """AutoAugment's CIFAR-10 policy as PyCIL has it: bicubic shears, nearest translations and rotations.

    `fill` is what a geometric operation uncovers; the releases' is 128.
    """

    fill: Fill = 0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, _, height, width = images.shape
        draw = draw_autoaugment(count, height, width, generator)
        for operations, values in zip(draw.operations.unbind(1), draw.values.unbind(1), strict=True):
            images = apply_operations(images, operations, values, bicubic_shear=True, fill=self.fill)
        return images
