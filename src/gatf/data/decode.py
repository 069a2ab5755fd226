"""One encoded image → RGB pixels. All special cases of image files are handled here.

Palette, CMYK and grey images become RGB; transparency is blended on white; 16 bits are scaled to 8; an animation is
reduced to its first frame; a photo is rotated by its EXIF orientation. A damaged image, or one above Pillow's limit
against decompression bombs, is a `BadImage`.
"""

from __future__ import annotations

import io
import math
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from gatf.errors import UserError, extra
from gatf.seeding import key

try:
    from PIL import Image as Image
    from PIL import ImageOps
except ImportError:

    class _Missing:
        """In place of Pillow, which vectors do not need."""

        def __getattr__(self, name: str) -> None:
            extra("PIL")

    Image = ImageOps = _Missing()  # type: ignore[assignment]

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels."""
ChooseBox = Callable[[int, int], Box]
"""From an image's width and height to the window to decode."""

SMALL = 64
"""Images up to this height and width are decoded once into memory; larger ones have a central test view."""
CENTRAL_SHARE = 224 / 256
"""Default share of the shorter side in the test view of large images: resize to 256, centre crop of 224."""
ORIENTATION = 0x0112
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
"""Pixel formats only: Pillow would also run Ghostscript on an EPS file."""
LEAVE_OUT = "data.on_bad_image=skip (gatf learn, predict: --skip-bad)"
SIGNATURES = {b"\xff\xd8": "JPEG", b"\x89P": "PNG", b"RI": "WEBP", b"GI": "GIF", b"BM": "BMP"}


class BadImage(UserError):
    """A file that cannot be decoded."""


@contextmanager
def careful_pillow() -> Iterator[None]:
    """Make images above `Image.MAX_IMAGE_PIXELS` an error, and silence Pillow's warnings about metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def decode(data: bytes, name: str, size: int, choose: ChooseBox, file: io.BytesIO | None = None) -> np.ndarray:
    """The chosen window of an image, resized to uint8 [size, size, 3] by Pillow's antialiased bilinear filter.

    Call it inside `careful_pillow`. `file` reads `data`, with limits of its own.
    """
    try:
        with Image.open(file or io.BytesIO(data), formats=likely_formats(data)) as image:
            return _window(image, size, choose)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        limit = Image.MAX_IMAGE_PIXELS or 0
        raise BadImage(
            f"image {name} has more than {limit / 1e6:.0f} million pixels and is refused as a decompression bomb; "
            f"make it smaller, or leave it out: {LEAVE_OUT}"
        ) from None
    except Exception as error:  # Pillow's readers raise nearly anything on damaged files
        reason = " ".join(str(error).split()).split(" <_io")[0]  # Pillow prints the buffer's address
        raise BadImage(
            f"image {name} cannot be decoded ({reason}); repair or delete it, or leave it out: {LEAVE_OUT}"
        ) from None


def likely_formats(data: bytes) -> tuple[str, ...]:
    """The format by a file's first bytes, else all supported ones, which Pillow tries one by one."""
    likely = SIGNATURES.get(data[:2])
    if likely is not None:
        return (likely,)
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _window(image: Image.Image, size: int, choose: ChooseBox) -> np.ndarray:
    width, height = image.size
    if _is_turned(image):
        image = ImageOps.exif_transpose(image)
        width, height = image.size
        left, top, right, bottom = choose(width, height)
    else:
        left, top, right, bottom = choose(width, height)
        reduction = int(min(right - left, bottom - top) // size)
        if reduction >= 2:  # JPEG can decode at a half, a quarter or an eighth; the window stays at least `size` wide
            image.draft(None, (-(-width // reduction), -(-height // reduction)))
    rgb = to_rgb(image)
    across, down = rgb.width / width, rgb.height / height
    box = (left * across, top * down, right * across, bottom * down)
    if rgb.size != (size, size) or box != (0, 0, size, size):
        rgb = rgb.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(rgb)


def _is_turned(image: Image.Image) -> bool:
    if image.format == "JPEG" and "exif" not in image.info:
        return False
    return image.getexif().get(ORIENTATION, 1) not in (0, 1)


def to_rgb(image: Image.Image) -> Image.Image:
    """The image's pixels (of the first frame) as 8-bit RGB."""
    image.load()
    if image.mode.startswith("I"):
        return _from_16_bits(np.asarray(image)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(opaque, image.convert("RGBA")).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_16_bits(pixels: np.ndarray) -> Image.Image:
    if pixels.min() < 0 or pixels.max() > 65535:
        raise ValueError("its pixels have more than 16 bits")
    return Image.fromarray(np.rint(pixels / 257).astype(np.uint8))


# --- windows ----------------------------------------------------------------------------------------------------------


def centre_box(width: int, height: int, *, zoom: float = 1.0) -> Box:
    """The largest centred square, or one `zoom` times smaller."""
    side = min(width, height) / zoom
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def plain_view(side: int, central_share: float = CENTRAL_SHARE) -> ChooseBox:
    """The test view of images with this side: the whole central square for small ones."""
    return partial(centre_box, zoom=1 / central_share) if side > SMALL else centre_box


@dataclass(frozen=True)
class RandomWindows:
    """A random window per image: the draws of `augment.ResizedCrop`, made during decoding.

    They depend only on `purpose` (seed, name, task, epoch) and the image's number, not on the process that decodes it.
    """

    scale: tuple[float, float]
    purpose: tuple[int | str, ...]

    def box(self, number: int, width: int, height: int) -> Box:
        """Area a fraction in `scale`, aspect ratio 3/4 … 4/3; the first of ten draws that fits, else the centre."""
        draw = random.Random(key(0, *self.purpose, number)).random
        low, high = math.log(3 / 4), math.log(4 / 3)
        for _ in range(10):
            area = width * height * (self.scale[0] + (self.scale[1] - self.scale[0]) * draw())
            ratio = math.exp(low + (high - low) * draw())
            across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < across <= width and 0 < down <= height:
                left, top = int(draw() * (width - across + 1)), int(draw() * (height - down + 1))
                return left, top, left + across, top + down
        across = min(width, max(1, round(height * 4 / 3)))
        down = min(height, max(1, round(width * 4 / 3)))
        left, top = (width - across) // 2, (height - down) // 2
        return left, top, left + across, top + down
