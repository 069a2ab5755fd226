"""Batched augmentation on the device: steps on uint8 images, then normalisation to float32.

A step is a callable `step(images, generator) -> images` on uint8 `[B, C, H, W]` (C is 1 or 3) that draws every
random number from the given generator. That one lives on the CPU, wherever the images are: what is drawn is then the
same on every device, and how many images get which operation is known without waiting for it. A `Pipeline` runs steps
in order and normalises. There is no loop over images: what differs between images is an index, a matrix or a table.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Annotated, Any, Self

import torch
import torch.nn.functional as F
from pydantic import Field, FiniteFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from gatf import plugins
from gatf.data import draws
from gatf.data.image_ops import Op, apply_operations, cut_windows, resize_windows
from gatf.data.policies import AutoAugment, Fill, TrivialAugment
from gatf.devices import upload
from gatf.errors import UserError
from gatf.io.events import reason

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
"""One augmentation of a uint8 batch `[B, C, H, W]`; all randomness comes from the generator."""


# --- steps ------------------------------------------------------------------------------------------------------------


Strength = Annotated[FiniteFloat, Field(ge=0.0)]


@dataclass(frozen=True)
class RandomCrop:
    """Zero-pad every side by `padding`, then cut a window of the original size at a random offset."""

    padding: PositiveInt

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, channels, height, width = images.shape
        offsets = upload(draws.randint(2 * self.padding + 1, (2, count), generator, dim=1), images.device)
        padded = F.pad(images, (self.padding,) * 4)
        # Every memory offset of `padded` starts a window (a view, nothing is copied); image i picks its own.
        per_image, *strides = padded.stride()
        extent = sum((size - 1) * stride for size, stride in zip(images.shape[1:], strides, strict=True))
        windows = padded.as_strided((padded.numel() - extent, channels, height, width), (1, *strides))
        images_start = torch.arange(count, device=images.device) * per_image
        return windows.index_select(0, images_start + offsets[0] * strides[1] + offsets[1] * strides[2])


@dataclass(frozen=True)
class RandomFlip:
    """Mirror each image left to right with probability one half."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count = len(images)
        mirrored = upload(draws.randint(2, (count,), generator), images.device)
        both = torch.cat([images, images.flip(-1)])
        return both.index_select(0, torch.arange(count, device=images.device) + count * mirrored)


@dataclass(frozen=True)
class Pad:
    """Zero-pad every side by `padding`: the images grow, for a resized crop to cut from (EFC)."""

    padding: PositiveInt

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return F.pad(images, (self.padding,) * 4)


@dataclass(frozen=True)
class RandomWindow:
    """Cut a size × size window at a random place, smaller than the image (TinyImageNet in FeCAM's release)."""

    size: PositiveInt

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, _, *sides = images.shape
        if min(sides) < self.size:
            raise UserError(f"augmentation window:{self.size} does not fit images of {sides[0]} × {sides[1]} pixels")
        top, left = (upload(draws.randint(side - self.size + 1, (count,), generator), images.device) for side in sides)
        return cut_windows(images, top, left, size=self.size)


@dataclass(frozen=True)
class ResizedCrop:
    """Cut a window of random area (a fraction from `smallest` to `largest`) and aspect ratio (3/4 … 4/3), resize it.

    Ten windows per image are drawn and the first that fits is taken; if none does, the largest centred window whose
    ratio is in range. Resizing is Pillow's antialiased bilinear.
    """

    size: PositiveInt
    smallest: Annotated[FiniteFloat, Field(ge=1e-6, le=1.0)] = 0.08
    largest: Annotated[FiniteFloat, Field(le=1.0)] = 1.0

    def __post_init__(self) -> None:
        if self.largest < self.smallest:
            raise ValueError(f"the largest area must be between {self.smallest:g} and 1, not {self.largest:g}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, _, rows, columns = images.shape
        windows = upload(torch.stack(self.draw(count, rows, columns, generator)), images.device)
        return resize_windows(images, *windows.unbind(), size=self.size)

    def draw(self, count: int, rows: int, columns: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Top, left, height and width of each image's window, whole pixels, each `[count]`."""
        attempts, tall, wide = 10, 3 / 4, 4 / 3
        uniform = draws.rand((4, attempts, count), generator, dim=2)
        area = rows * columns * (self.smallest + (self.largest - self.smallest) * uniform[0])
        ratio = (math.log(tall) + (math.log(wide) - math.log(tall)) * uniform[1]).exp()
        width, height = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
        fits = (width >= 1) & (width <= columns) & (height >= 1) & (height <= rows)
        top, left = (uniform[2] * (rows - height + 1)).long(), (uniform[3] * (columns - width + 1)).long()

        whole_height = rows if columns / rows >= tall else round(columns / tall)
        whole_width = columns if columns / rows <= wide else round(rows * wide)
        fallback = ((rows - whole_height) // 2, (columns - whole_width) // 2, whole_height, whole_width)
        preference = fits * torch.arange(attempts, 0, -1, device=fits.device)[:, None]  # the first that fits wins
        first = preference.argmax(0, keepdim=True)
        fitted = fits.any(0)
        drawn = (top, left, height, width)
        return tuple(
            torch.where(fitted, tensor.gather(0, first)[0], default)
            for tensor, default in zip(drawn, fallback, strict=True)
        )


@dataclass(frozen=True)
class ColorJitter:
    """Brightness, contrast and saturation by factors uniform in [1 − strength, 1 + strength], in random order.

    PASS uses brightness 63/255 alone. Each image has its own factors and its own order.
    """

    brightness: Strength = 0.0
    contrast: Strength = 0.0
    saturation: Strength = 0.0

    def __post_init__(self) -> None:
        if not (self.brightness or self.contrast or self.saturation):
            raise ValueError("a strength is missing")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        strengths = {Op.BRIGHTNESS: self.brightness, Op.CONTRAST: self.contrast, Op.COLOR: self.saturation}
        used = {op: strength for op, strength in strengths.items() if strength > 0}
        shape = (len(images), len(used))
        order = draws.rand(shape, generator).argsort(1)
        uniform = draws.rand(shape, generator)
        low = torch.tensor([max(0.0, 1 - strength) for strength in used.values()])
        high = torch.tensor([1 + strength for strength in used.values()])
        factors = (low + (high - low) * uniform).gather(1, order)
        operations = torch.tensor(list(used))[order]
        for position in range(len(used)):
            images = apply_operations(images, operations[:, position], factors[:, position])
        return images


@dataclass(frozen=True)
class Cutout:
    """Paint a size × size square around a random pixel with `fill`; at the border part of it falls outside."""

    size: PositiveInt
    fill: Fill = 0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, _, height, width = images.shape
        device = images.device

        def covered(length: int) -> Tensor:  # [B, length]
            start = upload(draws.randint(length, (count, 1), generator), device) - self.size // 2
            pixels = torch.arange(length, device=device)
            return (pixels >= start) & (pixels < start + self.size)

        square = covered(height)[:, None, :, None] & covered(width)[:, None, None, :]
        return images.masked_fill(square, self.fill)


# --- the pipeline -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], channels: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Rows `[W * C]` such that `pixel * scale + shift = (pixel / 255 - mean) / std`, made once a device.

    A whole row rather than C numbers, because broadcasting over an innermost dimension of 3 is not vectorised.
    """
    mean_, std_ = (torch.tensor(v, dtype=torch.float64).expand(channels).repeat(width) for v in (mean, std))
    return (1 / (255 * std_)).float().to(device), (-mean_ / std_).float().to(device)


@dataclass(frozen=True)
class Pipeline:
    """Steps on uint8, then `(pixel / 255 - mean) / std` as float32 in channels_last memory format.

    `mean` and `std` are in the [0, 1] pixel scale, one number or one a channel. Without a generator the steps
    are skipped, and `test_crop` pixels around the centre are cut out if it is given: that is the test transform.
    Without mean and std the input is vectors, which stay as they are.
    """

    steps: tuple[Augmentation, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    test_crop: int | None = None

    def __post_init__(self) -> None:
        if min(self.std, default=0.0) <= 0 and (self.mean or self.std):
            raise ValueError(f"std must be positive numbers, one or one a channel, not {self.std}.")

    def check(self, shape: tuple[int, ...]) -> Self:
        """Itself, or an error if the test transform cannot be done to images of this shape [C, H, W]."""
        if self.test_crop is not None and self.test_crop > min(shape[1:]):
            raise UserError(f"data.test_crop is {self.test_crop}, but the images have {shape[1]} × {shape[2]} pixels")
        return self

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if not self.std:
            return images
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ValueError(f"images must be uint8 [B, C, H, W], not {images.dtype} {list(images.shape)}.")
        if not {len(self.mean), len(self.std)} <= {1, images.shape[1]}:
            channels = images.shape[1]
            wanted = (
                "1 number for images of 1 channel" if channels == 1 else f"1 or {channels} numbers for these images"
            )
            raise ValueError(f"mean and std must have {wanted}, not {len(self.mean)} and {len(self.std)}.")
        if generator is not None and len(images) > 0:
            for step in self.steps:
                images = step(images, generator)
        elif generator is None and self.test_crop is not None:
            images = centre(images, self.test_crop)
        count, channels, height, width = images.shape
        scale, shift = _scale_and_shift(self.mean, self.std, channels, width, images.device)
        pixels = torch.empty((count, height, width, channels), device=images.device)
        if images.device.type == "cpu":
            for channel in range(channels):  # in one copy, the loop over 3 channels would be the innermost
                pixels[..., channel].copy_(images[:, channel])
        else:
            pixels.copy_(images.permute(0, 2, 3, 1))
        pixels.view(count, height, width * channels).mul_(scale).add_(shift)
        return pixels.permute(0, 3, 1, 2)


def centre(images: Tensor, size: int) -> Tensor:
    """The size × size square in the middle of `[..., H, W]`; where it cannot be, half a pixel to the top left."""
    height, width = images.shape[-2:]
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]


# --- names ------------------------------------------------------------------------------------------------------------


STEPS: dict[str, Any] = {
    "crop": RandomCrop,
    "flip": RandomFlip,
    "pad": Pad,
    "window": RandomWindow,
    "resized_crop": ResizedCrop,
    "jitter": ColorJitter,
    "trivial": TrivialAugment,
    "autoaugment": AutoAugment,
    "cutout": Cutout,
}
EXAMPLES = {
    "crop": "crop:4",
    "pad": "pad:4",
    "window": "window:32",
    "resized_crop": "resized_crop:32 or resized_crop:32,0.08,1.0",
    "jitter": "jitter:0.247 or jitter:brightness=0.247,contrast=0.2,saturation=0.2",
    "autoaugment": "autoaugment or autoaugment:128",
    "cutout": "cutout:16 or cutout:16,128",
}
"""Of steps with arguments."""


def parse_augmentation(names: Sequence[str]) -> tuple[Augmentation, ...]:
    """Turn names such as "crop:4", "flip" and "trivial" into steps, in the given order; `STEPS` lists them all.

    A plugin is called with the numbers after its name: `mine:Blur:3` gives `Blur(3)`.
    """
    if isinstance(names, str):
        raise UserError(f"augmentation must be a list of names, not the text {names!r}: write [{names!r}].")
    steps = []
    for text in names:
        name, rest = split_step(text)
        step = plugins.find("augmentation", name, STEPS)
        pieces = [piece.strip() for piece in rest.split(",")] if rest else []
        if name not in STEPS:
            steps.append(plugins.call("augmentation", name, step, *map(_value, pieces)))
            continue
        try:
            steps.append(step(**_by_name(pieces, list(step.__dataclass_fields__))))
        except ValueError as error:
            raise UserError(f"bad augmentation {text!r}: {reason(error)}; write {EXAMPLES.get(name, name)}.") from None
    return tuple(steps)


def _by_name(pieces: Sequence[str], fields: Sequence[str]) -> dict[str, Any]:
    """Arguments such as `contrast=0.2` or, by their place, `0.2`."""
    values = {}
    for field, piece in zip_longest(fields, pieces):
        if piece is not None:
            name, sign, value = piece.rpartition("=")
            name = name if sign else field
            if name not in fields:
                raise ValueError(f"{piece!r} is too much")
            values[name] = value
    return values


def split_step(text: str) -> tuple[str, str]:
    """Name and arguments of a step; the name may be an import path."""
    name, _, rest = text.partition(":")
    attribute, _, more = rest.partition(":")
    if name in STEPS or not attribute.isidentifier() or name in plugins.registered("augmentation"):
        return name, rest
    return f"{name}:{attribute}", more


def _value(piece: str) -> float | str:
    try:
        return int(piece) if piece.lstrip("-").isdecimal() else float(piece)
    except ValueError:
        return piece


# --- rotations as extra classes ---------------------------------------------------------------------------------------


def four_rotations(images: Tensor) -> Tensor:
    """`[B, C, H, W]` (square) → `[4B, C, H, W]`: all images at 0°, then all at 90°, at 180° and at 270°.

    A pipeline's channels_last images stay channels_last, which `torch.rot90` alone would undo.
    """
    if images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last):
        pixels = images.permute(0, 2, 3, 1)
        return torch.cat([torch.rot90(pixels, k, dims=(1, 2)) for k in range(4)]).permute(0, 3, 1, 2)
    return torch.cat([torch.rot90(images, k, dims=(-2, -1)) for k in range(4)])


def rotation_labels(labels: Tensor, classes: int) -> Tensor:
    """Labels of `four_rotations` as in AdaGauss: class c at k quarter turns is `c + k * classes`."""
    return torch.cat([labels + k * classes for k in range(4)])


def rotation_labels_class_major(labels: Tensor) -> Tensor:
    """Labels of `four_rotations` as in PASS: class y at k quarter turns is `4 y + k`."""
    return torch.cat([4 * labels + k for k in range(4)])


def rotation_labels_appended(labels: Tensor, classes: int) -> Tensor:
    """Labels of `four_rotations` as in EFC: `c` for class c unrotated, `classes + 3c + k − 1` at k = 1, 2, 3 turns."""
    return torch.cat([labels, *(classes + 3 * labels + turn for turn in range(3))])
