"""Every batched operation against Pillow on photographs: colour and grey, square and odd sizes.

Tolerances: operations in integers and nearest sampling equal Pillow's bits; blends may differ by one level where a
C compiler fuses the multiply and add; bilinear sampling by one level, where Pillow truncates a double and we a float.
Of both, fewer than 1 % of the values differ. All of AutoAugment equals Pillow's bits where compilers do not fuse.
"""

import platform
from functools import lru_cache

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_image
from torch import Tensor

from gatf.data.image_ops import Op, apply_operations, resize_windows
from gatf.data.policies import (
    AUTOAUGMENT_CIFAR10,
    SIGNED,
    AutoAugment,
    autoaugment_magnitudes,
    draw_autoaugment,
    draw_trivial,
)

FILL = 93
SHAPES = [(32, 32), (33, 33), (17, 40), (2, 5)]
VALUES = {
    Op.IDENTITY: [0.0],
    Op.SHEAR_X: [-0.99, -0.33, 0.0, 0.1, 0.99],
    Op.SHEAR_Y: [-0.99, -0.33, 0.0, 0.1, 0.99],
    Op.TRANSLATE_X: [-32.0, -7.0, 0.0, 14.0],
    Op.TRANSLATE_Y: [-32.0, -7.0, 0.0, 14.0],
    Op.ROTATE: [-135.0, -90.0, -45.0, -4.5, 0.0, 30.0, 90.0, 117.0],
    Op.BRIGHTNESS: [0.01, 0.505, 1.0, 1.33, 1.99],
    Op.CONTRAST: [0.01, 0.505, 1.0, 1.33, 1.99],
    Op.COLOR: [0.01, 0.505, 1.0, 1.33, 1.99],
    Op.SHARPNESS: [0.01, 0.505, 1.0, 1.33, 1.99],
    Op.POSTERIZE: [2.0, 3.0, 5.0, 8.0],
    Op.SOLARIZE: [0.0, 8.5, 127.5, 255.0],
    Op.INVERT: [0.0],
    Op.AUTOCONTRAST: [0.0],
    Op.EQUALIZE: [0.0],
}
GEOMETRIC = (Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y, Op.ROTATE)
ENHANCERS = {
    Op.BRIGHTNESS: ImageEnhance.Brightness,
    Op.CONTRAST: ImageEnhance.Contrast,
    Op.COLOR: ImageEnhance.Color,
    Op.SHARPNESS: ImageEnhance.Sharpness,
}
MODES = ["RGB", "L"]


@lru_cache
def photographs(mode: str, shape: tuple[int, int]) -> list[Image.Image]:
    """Pieces of scikit-learn's photograph of a temple, one of constant colour and one of two levels."""
    temple = Image.fromarray(load_sample_image("china.jpg"))
    height, width = shape
    corners = [(10 + 45 * k, 20 + 28 * k) for k in range(8)]
    pieces = [
        temple.resize((width, height), Image.Resampling.BILINEAR, (left, top, left + 96, top + 96))
        for left, top in corners
    ]
    pieces.append(Image.new("RGB", (width, height), (77, 0, 255)))
    two_levels = Image.new("RGB", (width, height), (40, 41, 42))
    two_levels.putpixel((0, 0), (250, 3, 42))
    return [piece.convert(mode) for piece in [*pieces, two_levels]]


def as_batch(images: list[Image.Image]) -> Tensor:
    arrays = [np.asarray(image).reshape(image.height, image.width, -1) for image in images]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()


def pillow_operation(image: Image.Image, op: Op, value: float, *, bilinear: bool, fill: int) -> Image.Image:
    """The operation's definition: what Pillow does to one image."""
    resample = Image.Resampling.BILINEAR if bilinear else Image.Resampling.NEAREST
    colour = (fill,) * 3 if image.mode == "RGB" else fill
    matrices = {
        Op.SHEAR_X: (1, value, 0, 0, 1, 0),
        Op.SHEAR_Y: (1, 0, 0, value, 1, 0),
        Op.TRANSLATE_X: (1, 0, -value, 0, 1, 0),
        Op.TRANSLATE_Y: (1, 0, 0, 0, 1, -value),
    }
    if op in matrices:
        return image.transform(image.size, Image.Transform.AFFINE, matrices[op], resample, fillcolor=colour)
    if op in ENHANCERS:
        return ENHANCERS[op](image).enhance(value)
    return {
        Op.IDENTITY: lambda: image,
        Op.ROTATE: lambda: image.rotate(value, resample, fillcolor=colour),
        Op.POSTERIZE: lambda: ImageOps.posterize(image, int(value)),
        Op.SOLARIZE: lambda: ImageOps.solarize(image, value),
        Op.INVERT: lambda: ImageOps.invert(image),
        Op.AUTOCONTRAST: lambda: ImageOps.autocontrast(image),
        Op.EQUALIZE: lambda: ImageOps.equalize(image),
    }[op]()


def assert_close_to_pillow(ours: Tensor, pillow: Tensor, op: Op, *, bilinear: bool) -> None:
    assert ours.dtype == torch.uint8
    assert ours.shape == pillow.shape
    difference = (ours.int() - pillow.int()).abs()
    if op in ENHANCERS or (op in GEOMETRIC and bilinear):
        assert difference.max() <= 1
        tiny = ours.shape[-1] * ours.shape[-2] < 100  # too few pixels for a fraction to mean much
        assert (difference > 0).float().mean() <= (0.1 if tiny else 0.01)
    else:
        assert difference.max() == 0


CASES = [(op, bilinear) for op in Op for bilinear in ((False, True) if op in GEOMETRIC else (False,))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("op", "bilinear"), CASES)
def test_operation_is_pillows(op: Op, bilinear: bool, shape: tuple[int, int], mode: str) -> None:
    images = photographs(mode, shape)
    batch = as_batch(images)
    for value in VALUES[op]:
        ours = apply_operations(
            batch, torch.full((len(batch),), op), torch.full((len(batch),), value), bilinear=bilinear, fill=FILL
        )
        expected = as_batch([pillow_operation(image, op, value, bilinear=bilinear, fill=FILL) for image in images])
        assert_close_to_pillow(ours, expected, op, bilinear=bilinear)


IDENTITIES = [
    (Op.SHEAR_X, 0.0), (Op.SHEAR_Y, 0.0), (Op.TRANSLATE_X, 0.0), (Op.TRANSLATE_Y, 0.0), (Op.ROTATE, 0.0),
    (Op.BRIGHTNESS, 1.0), (Op.CONTRAST, 1.0), (Op.COLOR, 1.0), (Op.SHARPNESS, 1.0), (Op.POSTERIZE, 8.0),
    (Op.SOLARIZE, 256.0),
]  # fmt: skip


@pytest.mark.parametrize("bilinear", [False, True])
@pytest.mark.parametrize(("op", "value"), IDENTITIES)
def test_the_identity_magnitude_changes_nothing(op: Op, value: float, bilinear: bool) -> None:
    noise = torch.randint(256, (5, 3, 31, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    result = apply_operations(noise, torch.full((5,), op), torch.full((5,), value), bilinear=bilinear)
    assert torch.equal(result, noise)


@pytest.mark.parametrize("bilinear", [False, True])
def test_whole_pixel_translations_and_quarter_turns_are_exact(bilinear: bool) -> None:
    noise = torch.randint(1, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    operations, values = torch.tensor([Op.TRANSLATE_X, Op.ROTATE]), torch.tensor([5.0, 90.0])
    moved, turned = apply_operations(noise, operations, values, bilinear=bilinear)
    assert torch.equal(moved[:, :, 5:], noise[0, :, :, :-5])
    assert (moved[:, :, :5] == 0).all()
    assert torch.equal(turned, torch.rot90(noise[1], 1, (-2, -1)))


def test_colour_is_the_identity_on_grey_images() -> None:
    grey = as_batch(photographs("L", (32, 32)))
    result = apply_operations(grey, torch.full((len(grey),), Op.COLOR), torch.full((len(grey),), 0.3))
    assert torch.equal(result, grey)


@pytest.mark.parametrize("mode", MODES)
def test_a_mixed_batch_does_to_each_image_what_it_gets_alone(mode: str) -> None:
    images = as_batch(photographs(mode, (32, 32)))
    generator = torch.Generator().manual_seed(3)
    draw = draw_trivial(200, generator)
    assert set(draw.operations.tolist()) == set(Op) - {Op.INVERT}
    batch = images[torch.randint(len(images), (200,), generator=generator)]
    together = apply_operations(batch, draw.operations, draw.values, bilinear=True)
    for i in range(len(batch)):
        one = slice(i, i + 1)
        alone = apply_operations(batch[one], draw.operations[one], draw.values[one], bilinear=True)
        assert torch.equal(together[one], alone)


def test_trivial_draws_look_the_same_through_pillow() -> None:
    images = photographs("RGB", (32, 32)) * 20
    draw = draw_trivial(len(images), torch.Generator().manual_seed(1))
    ours = apply_operations(as_batch(images), draw.operations, draw.values, bilinear=True)
    for i, (image, op, value) in enumerate(zip(images, draw.operations.tolist(), draw.values.tolist(), strict=True)):
        expected = as_batch([pillow_operation(image, Op(op), value, bilinear=True, fill=0)])
        assert_close_to_pillow(ours[i : i + 1], expected, Op(op), bilinear=True)


# --- AutoAugment as PyCIL and the releases built on it (ADC, LDC, FeCAM, DPCR) have it --------------------------------

UNFUSED = platform.machine() in ("x86_64", "AMD64")  # Pillow is built there without fused multiply and add

RELEASED = {  # the magnitude of each of the ten bins; a translation's is a fraction of the side
    Op.SHEAR_X: np.linspace(0, 0.3, 10),
    Op.SHEAR_Y: np.linspace(0, 0.3, 10),
    Op.TRANSLATE_X: np.linspace(0, 150 / 331, 10),
    Op.TRANSLATE_Y: np.linspace(0, 150 / 331, 10),
    Op.ROTATE: np.linspace(0, 30, 10),
    Op.BRIGHTNESS: np.linspace(0, 0.9, 10),
    Op.CONTRAST: np.linspace(0, 0.9, 10),
    Op.COLOR: np.linspace(0, 0.9, 10),
    Op.SHARPNESS: np.linspace(0, 0.9, 10),
    Op.POSTERIZE: np.linspace(8, 4, 10).round(),
    Op.SOLARIZE: np.linspace(256, 0, 10),
    Op.INVERT: np.zeros(10),
    Op.AUTOCONTRAST: np.zeros(10),
    Op.EQUALIZE: np.zeros(10),
}


def released_operation(image: Image.Image, op: Op, bin_: int, sign: int) -> Image.Image:
    """The releases' operation: bicubic shears, translations by the nearest pixel, rotations over a grey canvas."""
    size = float(RELEASED[op][bin_])
    signed = sign * size
    matrices = {
        Op.SHEAR_X: (1, signed, 0, 0, 1, 0),
        Op.SHEAR_Y: (1, 0, 0, signed, 1, 0),
        Op.TRANSLATE_X: (1, 0, signed * image.width, 0, 1, 0),
        Op.TRANSLATE_Y: (1, 0, 0, 0, 1, signed * image.height),
    }
    if op in matrices:
        sampling = Image.Resampling.BICUBIC if op in (Op.SHEAR_X, Op.SHEAR_Y) else Image.Resampling.NEAREST
        grey = (128, 128, 128) if image.mode == "RGB" else 128
        return image.transform(image.size, Image.Transform.AFFINE, matrices[op], sampling, fillcolor=grey)
    if op is Op.ROTATE:
        turned = image.convert("RGBA").rotate(signed)
        return Image.composite(turned, Image.new("RGBA", image.size, (128,) * 4), turned).convert(image.mode)
    if op in ENHANCERS:
        return ENHANCERS[op](image).enhance(1 + signed)
    return pillow_operation(image, op, size, bilinear=False, fill=128)


def our_value(op: Op, bin_: int, sign: int, shape: tuple[int, int]) -> float:
    """What `apply_operations` takes for a bin and the releases' sign; a positive one shifts to the left there."""
    size = autoaugment_magnitudes(op, height=shape[0], width=shape[1])[bin_]
    if op in (Op.TRANSLATE_X, Op.TRANSLATE_Y):
        return -sign * size
    return (sign * size if op in SIGNED else size) + (op in ENHANCERS)


def assert_released(ours: Tensor, released: Tensor) -> None:
    assert ours.dtype == torch.uint8
    assert ours.shape == released.shape
    assert (ours != released).float().mean() <= (0.0 if UNFUSED else 0.01)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", RELEASED)
def test_autoaugment_operations_are_the_releases(op: Op, shape: tuple[int, int], mode: str) -> None:
    images = photographs(mode, shape)
    batch = as_batch(images)
    for bin_ in range(10):
        for sign in (-1, 1):
            values = torch.full((len(batch),), our_value(op, bin_, sign, shape), dtype=torch.float64)
            ours = apply_operations(batch, torch.full((len(batch),), op), values, bicubic_shear=True, fill=128)
            expected = as_batch([released_operation(image, op, bin_, sign) for image in images])
            assert_released(ours, expected)


def test_autoaugment_images_are_the_releases() -> None:
    """The whole step, image by image, on the same draws."""
    images = photographs("RGB", (32, 40)) * 40
    ours = AutoAugment(fill=128)(as_batch(images), torch.Generator().manual_seed(1))
    draw = draw_autoaugment(len(images), 32, 40, torch.Generator().manual_seed(1))
    applied = set()
    for i, image in enumerate(images):
        for op, value, (_, _, bin_) in zip(
            map(Op, draw.operations[i].tolist()),
            draw.values[i].tolist(),
            AUTOAUGMENT_CIFAR10[draw.policies[i]],
            strict=True,
        ):
            if op is not Op.IDENTITY:
                sign = next(sign for sign in (1, -1) if our_value(op, bin_, sign, (32, 40)) == value)
                image = released_operation(image, op, bin_, sign)
                applied.add(op)
        assert_released(ours[i : i + 1], as_batch([image]))
    assert applied == set(RELEASED) - {Op.SHEAR_X}  # the policy has no horizontal shear


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [8, 32, 47])
def test_resized_windows_are_pillows(mode: str, size: int) -> None:
    images = photographs(mode, (32, 40))
    rng = np.random.default_rng(0)
    heights, widths = rng.integers(1, 33, len(images)), rng.integers(1, 41, len(images))
    tops, lefts = rng.integers(0, 33 - heights), rng.integers(0, 41 - widths)
    ours = resize_windows(as_batch(images), *map(torch.from_numpy, (tops, lefts, heights, widths)), size=size)
    expected = as_batch(
        [
            image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
            for image, top, left, height, width in zip(images, tops, lefts, heights, widths, strict=True)
        ]
    )
    assert (ours.int() - expected.int()).abs().max() <= 1
    assert (ours != expected).float().mean() < 0.02
