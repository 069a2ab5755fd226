"""Pillow's image operations on whole uint8 batches `[B, C, H, W]`, a different operation for every image.

Augmentation policies are defined by what Pillow does to one image. Here the images of a batch are sorted by
operation and each of three families runs once: geometric operations share one sampling call (bicubic shears have their
own), operations on single channel values share one table lookup, colour and sharpness share one blend. Nearest and
bicubic sampling and photometric operations give Pillow's values, bilinear sampling within one grey level
(tests/data/test_augment_ops.py).
"""

from enum import IntEnum
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from gatf.devices import upload


class Op(IntEnum):
    """The operations, ordered so that each family is a run; the comment is the unit of the operation's value."""

    IDENTITY = 0
    SHEAR_X = 1  # slope: input x = x + slope * y
    SHEAR_Y = 2
    TRANSLATE_X = 3  # pixels, positive to the right
    TRANSLATE_Y = 4  # pixels, positive downwards
    ROTATE = 5  # degrees, counter-clockwise
    BRIGHTNESS = 6  # enhancement factor, 1 is the identity
    CONTRAST = 7
    POSTERIZE = 8  # bits kept
    SOLARIZE = 9  # values at or above this threshold are inverted
    INVERT = 10
    AUTOCONTRAST = 11
    EQUALIZE = 12
    COLOR = 13  # enhancement factor; the identity on grey images
    SHARPNESS = 14


GEOMETRIC = slice(Op.SHEAR_X, Op.ROTATE + 1)
SHEARS = slice(Op.SHEAR_X, Op.SHEAR_Y + 1)
MOTIONS = slice(Op.TRANSLATE_X, Op.ROTATE + 1)
CURVES = slice(Op.BRIGHTNESS, Op.EQUALIZE + 1)
BLENDS = slice(Op.COLOR, Op.SHARPNESS + 1)

# Bilinear sampling truncates like Pillow, but in float32: a sum that should be the integer k may come out just below.
TRUNCATION_SLACK = 2.0**-9


def apply_operations(
    images: Tensor,
    operations: Tensor,
    values: Tensor,
    *,
    bilinear: bool = False,
    bicubic_shear: bool = False,
    fill: int = 0,
) -> Tensor:
    """Apply `operations[i]` (an `Op`) at strength `values[i]` to image i.

    Geometric operations sample bilinearly or take the nearest pixel, and paint what comes from outside with `fill`;
    shears can sample bicubically instead, as AutoAugment's do.
    With operations and values on the CPU nothing waits for the images' device, and what depends on them alone
    (matrices, tables) is computed on the CPU instead of by many small launches.
    """
    order = operations.argsort()
    counts = operations.bincount(minlength=len(Op)).tolist()
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    sorted_values, sorted_operations = values.index_select(0, order), operations.index_select(0, order)
    order, back = upload(torch.stack([order, order.argsort()]), images.device).unbind()
    sorted_images = images.index_select(0, order)

    def family(ops: slice) -> slice:
        return slice(bounds[ops.start], bounds[ops.stop])

    shears, curves, blends = family(SHEARS), family(CURVES), family(BLENDS)
    geometric = family(MOTIONS if bicubic_shear else GEOMETRIC)
    parts = [sorted_images[: shears.start]]
    if bicubic_shear and shears.start < shears.stop:
        parts.append(shear_bicubic(sorted_images[shears], sorted_operations[shears], sorted_values[shears], fill=fill))
    if geometric.start < geometric.stop:
        height, width = images.shape[-2:]
        matrices = affine_matrices(sorted_operations[geometric], sorted_values[geometric], height, width)
        sample = sample_bilinear if bilinear else sample_nearest
        parts.append(sample(sorted_images[geometric], upload(matrices, images.device), fill=fill))
    if curves.start < curves.stop:
        parts.append(apply_curves(sorted_images[curves], sorted_values[curves].float(), counts[CURVES]))
    if blends.start < blends.stop:
        parts.append(apply_blends(sorted_images[blends], sorted_values[blends].float(), counts[BLENDS]))
    return torch.cat(parts).index_select(0, back)


# --- geometry ---------------------------------------------------------------------------------------------------------


def affine_matrices(operations: Tensor, values: Tensor, height: int, width: int) -> Tensor:
    """Map output to input coordinates, `[n, 2, 3]` float64; pixel i covers [i, i + 1), so its centre is i + 0.5.

    Shear keeps the top left corner in place and rotation the centre of the image, as in AutoAugment.
    """
    values = values.double()
    zero = torch.zeros_like(values)

    def value_if(op: Op) -> Tensor:
        return torch.where(operations == op, values, zero)

    angle = torch.deg2rad(value_if(Op.ROTATE))
    cos, sin = angle.cos(), angle.sin()
    middle_x, middle_y = width / 2, height / 2
    shift_x = middle_x - cos * middle_x + sin * middle_y - value_if(Op.TRANSLATE_X)
    shift_y = middle_y - sin * middle_x - cos * middle_y - value_if(Op.TRANSLATE_Y)
    row_x = torch.stack([cos, value_if(Op.SHEAR_X) - sin, shift_x], dim=1)
    row_y = torch.stack([sin + value_if(Op.SHEAR_Y), cos, shift_y], dim=1)
    return torch.stack([row_x, row_y], dim=1)


def sample_bilinear(images: Tensor, matrices: Tensor, *, fill: int) -> Tensor:
    """Pillow's BILINEAR transform: clamp neighbours at the border, `fill` where the centre falls outside, truncate."""
    count, _, height, width = images.shape
    to_grid = torch.stack([matrices[:, 0] * (2 / width), matrices[:, 1] * (2 / height)], dim=1)
    to_grid[:, :, 2] -= 1
    coordinates = (to_grid @ _centres(height, width, images.device)).float()  # [n, 2, H*W], the image spans [-1, 1)
    inside = ((coordinates >= -1) & (coordinates < 1)).float()
    inside = (inside[:, 0] * inside[:, 1]).view(count, 1, height, width)
    grid = coordinates.transpose(1, 2).view(count, height, width, 2)
    sampled = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return sampled.sub_(fill).mul_(inside).add_(fill + TRUNCATION_SLACK).to(torch.uint8)


@lru_cache(maxsize=32)
def _centres(height: int, width: int, device: torch.device) -> Tensor:
    """Homogeneous coordinates of all pixel centres, row by row, `[3, H*W]` float64; made once per device."""
    xs, ys = (torch.arange(side, dtype=torch.float64) + 0.5 for side in (width, height))
    ones = torch.ones(height * width, dtype=torch.float64)
    return torch.stack([xs.repeat(height), ys.repeat_interleave(width), ones]).to(device)


def sample_nearest(images: Tensor, matrices: Tensor, *, fill: int) -> Tensor:
    """Pillow's NEAREST transform in its own 16.16 fixed point, so that ties fall the same way on every device."""
    count, channels, height, width = images.shape
    first_centre = matrices[:, :, 2] + 0.5 * (matrices[:, :, 0] + matrices[:, :, 1])
    per_x, per_y, start = (
        (65536 * part + 0.5).floor().long() for part in (*matrices[:, :, :2].unbind(2), first_centre)
    )
    xs, ys = torch.arange(width, device=images.device), torch.arange(height, device=images.device)
    coordinates = (per_x[..., None, None] * xs + (per_y[..., None] * ys + start[..., None])[..., None]) >> 16
    x, y = coordinates.unbind(1)  # [n, H, W]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    source = torch.where(inside, y * width + x, height * width)  # one pixel past the end holds the fill
    pixels = F.pad(images.flatten(2), (0, 1), value=fill)
    return pixels.gather(2, source.view(count, 1, -1).expand(-1, channels, -1)).view(images.shape)


def shear_bicubic(images: Tensor, operations: Tensor, slopes: Tensor, *, fill: int) -> Tensor:
    """Shears as Pillow's BICUBIC transform in its own double precision; neighbours, fill and truncation as bilinear's.

    A shear moves pixels along one axis, so four neighbours on that axis are enough. The cubic's slope at a pixel is
    the difference of that pixel's neighbours (a = −1, where `grid_sample` has a = −0.75).
    """
    count, channels, height, width = images.shape
    down = upload((operations == Op.SHEAR_Y)[:, None, None], images.device)
    slopes = upload(slopes.double()[:, None, None], images.device)
    rows, columns = torch.arange(height, device=images.device)[:, None], torch.arange(width, device=images.device)
    along, across = torch.where(down, rows, columns), torch.where(down, columns, rows)  # [n, H, W]
    length = torch.where(down, height, width)
    place = along + 0.5 + slopes * (across + 0.5)  # where a pixel's centre comes from
    inside = (place >= 0) & (place < length)
    place -= 0.5
    left = place.floor()
    past = (place - left).view(count, 1, -1)
    pixels = images.flatten(2)

    def neighbour(step: int) -> Tensor:  # [n, C, H*W]
        position = torch.minimum((left.long() + step).clamp_(min=0), length - 1)
        source = torch.where(down, position * width + columns, rows * width + position)
        return pixels.gather(2, source.view(count, 1, -1).expand(-1, channels, -1)).short()

    p0, p1, p2, p3 = (neighbour(step) for step in range(-1, 3))
    cubic = p1 + past * (p2 - p0 + past * (2 * (p0 - p1) + p2 - p3 + past * (p1 - p0 + p3 - p2)))
    return torch.where(inside[:, None], cubic.clamp_(0, 255).to(torch.uint8).view(images.shape), fill)


# --- curves: the new channel value depends on the old one and on the image's statistics -------------------------------


def apply_curves(images: Tensor, values: Tensor, counts: list[int]) -> Tensor:
    """Look every channel value up in its image's curve; images come sorted by operation, `counts` of each.

    Curves that depend on `values` alone are made where these are; the others need the images' statistics.
    """
    brightness, contrast, posterize, solarize, invert, autocontrast, equalize = zip(
        images.split(counts), values[:, None, None].split(counts), strict=True
    )
    ramp = torch.arange(256, device=values.device)
    plain = [
        blend(torch.zeros_like(brightness[1]), ramp, brightness[1]),
        ramp - ramp % 2 ** (8 - posterize[1].long()),
        torch.where(ramp < solarize[1], ramp, 255 - ramp),
        (255 - ramp).expand(len(invert[0]), 1, -1),
    ]
    brighter, *others = upload(torch.cat([curve.to(torch.uint8) for curve in plain]), images.device).split(
        [len(brightness[0]), len(posterize[0]) + len(solarize[0]) + len(invert[0])]
    )
    levels = torch.arange(256, device=images.device)
    curves = [
        brighter,
        blend(mean_grey(contrast[0]), levels, upload(contrast[1], images.device)),
        *others,
        autocontrast_curves(autocontrast[0]),
        equalize_curves(equalize[0]),
    ]
    channels = images.shape[1]
    tables = torch.cat([curve.to(torch.uint8).expand(-1, channels, -1) for curve in curves])  # [n, C, 256]
    return tables.gather(2, images.flatten(2).long()).view(images.shape)


def autocontrast_curves(images: Tensor) -> Tensor:
    """Stretch every channel of `[n, C, H, W]` to [0, 255]; a constant channel stays. Returns `[n, C, 256]`."""
    darkest, brightest = images.amin((2, 3)).double()[..., None], images.amax((2, 3)).double()[..., None]
    ramp = torch.arange(256, device=images.device)
    scale = torch.full_like(darkest, 255) / (brightest - darkest)  # a plain 255 would multiply by a rounded reciprocal
    stretched = (ramp * scale - darkest * scale).clamp(0, 255)
    return torch.where(brightest > darkest, stretched, ramp)


def equalize_curves(images: Tensor) -> Tensor:
    """Flatten every channel's histogram as `ImageOps.equalize` does, in integers. Returns `[n, C, 256]`."""
    count, channels, height, width = images.shape
    pixels = images.flatten(2).long()
    one = torch.ones((), dtype=torch.long, device=images.device)
    histogram = torch.zeros(count, channels, 256, dtype=torch.long, device=images.device)
    histogram.scatter_add_(2, pixels, one.expand_as(pixels))
    in_brightest_bin = histogram.gather(2, pixels.amax(2, keepdim=True))
    step = (height * width - in_brightest_bin) // 255  # pixels per output level; 0: too few to spread
    below = histogram.cumsum(2) - histogram
    ramp = torch.arange(256, device=images.device)
    return torch.where(step > 0, ((step // 2 + below) // step.clamp(min=1)).clamp(max=255), ramp)


# --- blends: the image against a degenerate version of itself ---------------------------------------------------------


def blend(degenerate: Tensor, original: Tensor, factor: Tensor) -> Tensor:
    """`Image.blend`: factor 0 gives the degenerate image, 1 the original; beyond, it extrapolates. Truncated uint8."""
    return ((original - degenerate) * factor).add_(degenerate).clamp_(0, 255).to(torch.uint8)


def apply_blends(images: Tensor, values: Tensor, counts: list[int]) -> Tensor:
    """Blend for colour with the grey image and for sharpness with the smoothed one; images come in that order."""
    coloured, sharpened = images.split(counts)
    degenerate = torch.cat([grey(coloured).expand_as(coloured).float(), smooth(sharpened)])
    return blend(degenerate, images, upload(values[:, None, None, None], images.device))


def grey(images: Tensor) -> Tensor:
    """Pillow's "L" of `[n, C, H, W]`: ITU-R 601-2 luma in 16-bit fixed point, `[n, 1, H, W]` of integers."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.int().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16)[:, None]


def mean_grey(images: Tensor) -> Tensor:
    """The mean grey level of each image, rounded to an integer as `ImageEnhance.Contrast` does: `[n, 1, 1]`."""
    return (grey(images).flatten(1).double().mean(1) + 0.5).floor().float()[:, None, None]


def smooth(images: Tensor) -> Tensor:
    """Pillow's SMOOTH filter (3×3, centre weighs 5 of 13) rounded to levels; border pixels keep their value."""
    levels = images.short()
    rows = levels[..., :-2] + levels[..., 1:-1] + levels[..., 2:]
    total = rows[..., :-2, :] + rows[..., 1:-1, :] + rows[..., 2:, :] + 4 * levels[..., 1:-1, 1:-1]
    smoothed = images.float()
    smoothed[..., 1:-1, 1:-1] = (total.float() + 6.5).div_(13).floor_()
    return smoothed


# --- windows and mixtures ---------------------------------------------------------------------------------------------


def cut_windows(images: Tensor, top: Tensor, left: Tensor, *, size: int) -> Tensor:
    """The size × size window of image i whose first pixel is (top[i], left[i]); it must lie inside the image."""
    pixels = torch.arange(size, device=images.device)
    rows, columns = (top[:, None] + pixels)[:, :, None], (left[:, None] + pixels)[:, None, :]
    numbers = torch.arange(len(images), device=images.device)[:, None, None]
    return images[numbers, :, rows, columns].permute(0, 3, 1, 2)  # [B, size, size, C] → [B, C, size, size]


# --- resizing ---------------------------------------------------------------------------------------------------------


def resize_windows(images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, *, size: int) -> Tensor:
    """Cut image i's window (whole pixels, tensors `[B]`) and resize it to size × size as Pillow's BILINEAR resize.

    Pillow widens the triangle filter when it shrinks, so no pixel is skipped. The filter is separable: a weight matrix
    a side and image turns the whole batch into two batched products, whatever the windows.
    """
    count, channels, rows, columns = images.shape
    across = _triangle_weights(left, width, columns, size)  # [B, size, W]
    down = _triangle_weights(top, height, rows, size)  # [B, size, H]
    narrow = images.reshape(count, channels * rows, columns).float() @ across.mT
    narrow = narrow.add_(0.5).floor_()  # Pillow keeps uint8 between its two passes
    tall = narrow.view(count, channels, rows, size).transpose(1, 2).reshape(count, rows, channels * size)
    resized = (down @ tall).add_(0.5).clamp_(0, 255).to(torch.uint8)
    return resized.view(count, size, channels, size).transpose(1, 2).contiguous()


def _triangle_weights(start: Tensor, length: Tensor, available: int, size: int) -> Tensor:
    """Weights `[B, size, available]` of the input pixels for every output pixel; rows sum to one."""
    scale = (length / size)[:, None, None]  # input pixels per output pixel
    centres = start[:, None, None] + (torch.arange(size, device=start.device) + 0.5)[:, None] * scale
    pixels = torch.arange(available, device=start.device)
    weights = (1 - (pixels + 0.5 - centres).abs() / scale.clamp(min=1)).clamp_(min=0)
    inside = (pixels >= start[:, None]) & (pixels < (start + length)[:, None])
    weights = weights * inside[:, None]
    return weights / weights.sum(2, keepdim=True)
