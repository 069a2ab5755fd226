"""From encoded pictures to pixels: what side they should have, which can be decoded, all of them at once.

Sources of runs and the images handed to a classifier come through here alike.
"""

import io
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gatf.data.decode import SMALL, BadImage, ChooseBox, careful_pillow, centre_box, decode, likely_formats
from gatf.data.encoded import Encoded
from gatf.data.workers import in_order

LARGE_DEFAULT = 224
"""Height and width that images of larger or differing sizes are given."""
GREY_MODES = ("1", "L", "LA", "F")
LOOKED_AT = 64
"""Images whose size is looked up to choose one for all."""


def natural_side(images: Encoded, smallest: int = 1) -> int:
    """The side to give images: small ones that all have one size keep it, others become 224."""
    sizes = {(header.width, header.height) for header in _headers(images)} or {(LARGE_DEFAULT, LARGE_DEFAULT)}
    side = max(max(size) for size in sizes)
    return side if smallest <= side <= SMALL and sizes == {(side, side)} else LARGE_DEFAULT


def photo_side(images: Encoded) -> int | None:
    """The shorter side of a typical image; None where most images are grey."""
    seen = _headers(images)
    if not seen or 2 * sum(header.grey for header in seen) > len(seen):
        return None
    return sorted(min(header.width, header.height) for header in seen)[len(seen) // 2]


@dataclass(frozen=True)
class _Header:
    width: int
    height: int
    grey: bool


def _headers(images: Encoded) -> list[_Header]:
    """What some images, spread over the set, say of themselves; damaged ones are met later, when decoding."""
    seen = []
    with careful_pillow():
        for number in range(0, len(images), -(-len(images) // LOOKED_AT)):
            try:
                data = images.read(number)
                with Image.open(io.BytesIO(data), formats=likely_formats(data)) as image:
                    seen.append(_Header(*image.size, grey=image.mode in GREY_MODES or image.mode.startswith("I")))
            except (BadImage, OSError, ValueError, SyntaxError):
                continue
            except (Image.DecompressionBombWarning, Image.DecompressionBombError):
                continue
    return seen


def decode_all(
    images: Encoded, size: int, *, skip: bool = False, choose: ChooseBox = centre_box
) -> tuple[Tensor, Tensor]:
    """Pixels uint8 [n, 3, size, size] and which images they are, [n]; with `skip` without those that cannot be
    decoded, else the first of them is a `BadImage`."""
    pixels = np.empty((len(images), size, size, 3), np.uint8)
    kept: list[int] = []
    with careful_pillow():
        reading = images.in_order()
        for number in range(len(images)):
            try:
                pixels[len(kept)] = decode(next(reading), images.name(number), size, choose)
            except BadImage:
                if not skip:
                    raise
                continue
            kept.append(number)
    stacked = torch.from_numpy(pixels[: len(kept)]).permute(0, 3, 1, 2).contiguous()
    return stacked, torch.tensor(kept, dtype=torch.int64)


def readable(images: Encoded, workers: int) -> Tensor:
    """Numbers of the images that can be decoded, found by decoding every one."""
    pieces = [range(at, min(at + 64, len(images))) for at in range(0, len(images), 64)]
    found = in_order(_Readable(images), pieces, workers=workers)
    return torch.tensor([number for piece in found for number in piece], dtype=torch.int64)


@dataclass(frozen=True)
class _Readable:
    images: Encoded

    def __call__(self, numbers: Iterable[int]) -> list[int]:
        good = []
        with careful_pillow():
            for number in numbers:
                try:
                    decode(self.images.read(number), self.images.name(number), 1, centre_box)
                except BadImage:
                    continue
                good.append(number)
        return good
