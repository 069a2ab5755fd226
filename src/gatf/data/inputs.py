"""What people hand over — arrays, tensors, paths, PIL images, a folder — as uint8 images of one size.

Arrays are taken as they are and must have the model's size; files and PIL images become RGB and are cut to the central
square and resized. Nothing is written to gatf's cache: images that may not be kept must not lie there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatf.data.base import ImageSet
from gatf.data.decode import BadImage, careful_pillow, centre_box, decode, likely_formats, test_box
from gatf.data.encoded import Files
from gatf.data.layouts.folder import class_folders, image_files
from gatf.data.lazy import LazyImages
from gatf.data.pixels import CHANNELS, as_labels, as_pixels, stacked
from gatf.data.workers import default_workers
from gatf.errors import UserError

SMALL, LARGE_DEFAULT = 64, 224
"""Pictures of up to so many pixels a side are decoded once and kept in memory; others become photos of this side."""
SMALLEST_SIDE = 8
"""Below this, two halvings leave nothing to look at."""
Shape = tuple[int, int, int]
"""Channels, height, width."""


@dataclass(frozen=True)
class Given:
    """Images as they were given: pixels of one size, or files and PIL images of any size."""

    pixels: Tensor | None = None
    """uint8 [N, C, H, W]."""
    pictures: tuple[Any, ...] = ()
    """Paths as text, or PIL images."""

    def __len__(self) -> int:
        return len(self.pictures) if self.pixels is None else len(self.pixels)

    def names(self) -> list[str]:
        """A name for each image: its path, or its number."""
        return [item if isinstance(item, str) else f"image {number}" for number, item in enumerate(self._items())]

    def _items(self) -> Sequence[Any]:
        return self.pictures if self.pixels is None else range(len(self.pixels))

    def natural_shape(self) -> Shape:
        """The shape a first fit would use: of pixels their own; small pictures of one size keep it, else 224."""
        if self.pixels is not None:
            channels, height, width = self.pixels.shape[1:]
            return channels, height, width
        sizes = {_size(item) for item in self.pictures[:: -(-len(self.pictures) // 64)]}
        width, height = next(iter(sizes))
        side = width if len(sizes) == 1 and width == height and SMALLEST_SIDE <= width <= SMALL else LARGE_DEFAULT
        return 3, side, side

    def images(self, shape: Shape) -> Tensor | LazyImages:
        """The images in a model's shape; large files are decoded when they are wanted."""
        channels, height, width = shape
        if self.pixels is not None:
            if self.pixels.shape[1:] != shape:
                raise UserError(
                    f"the images are {_describe(tuple(self.pixels.shape[1:]))}, but the model was made for "
                    f"{_describe(shape)}; resize or convert them"
                )
            return self.pixels
        if channels != 3:
            raise UserError(
                "the model was made for grey arrays; files and PIL images are read in colour, so give arrays"
            )
        if height > SMALL and all(isinstance(item, str) for item in self.pictures):
            return LazyImages(Files(self.pictures), height, default_workers())
        pixels = np.empty((len(self), height, width, 3), np.uint8)
        with careful_pillow():
            for place, (item, name) in enumerate(zip(self.pictures, self.names(), strict=True)):
                pixels[place] = decode(_encoded(item), name, height, test_box if height > SMALL else centre_box)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def read_images(given: Any) -> Given:
    """Images without labels, for prediction: everything `read_labelled` takes, one file, or a folder of any depth."""
    if isinstance(given, (str, Path)):
        path = Path(given)
        if path.is_dir():
            found = image_files(path)
            if not found:
                raise UserError(f"{path} holds no images")
            return Given(pictures=tuple(found))
        return Given(pictures=(_existing(path),))
    if _is_picture(given):
        return Given(pictures=(given,))
    if isinstance(given, (list, tuple)) or (isinstance(given, np.ndarray) and given.dtype.kind in "OU"):
        items = list(given)
        if items and all(isinstance(item, (str, Path)) for item in items):
            return Given(pictures=tuple(_existing(Path(item)) for item in items))
        if items and all(_is_picture(item) for item in items):
            return Given(pictures=tuple(items))
        if any(isinstance(item, (str, Path)) or _is_picture(item) for item in items):
            raise UserError("the images mix paths, PIL images or arrays; give one kind")
        given = stacked(items)
    return Given(pixels=as_pixels(given))


def read_labelled(images: Any, labels: Any) -> tuple[Given, np.ndarray]:
    """Images and one label each; a folder has a folder of images a class, and no labels are given with it."""
    if isinstance(images, (str, Path)):
        if labels is not None:
            raise UserError("a folder brings its own labels, the names of its class folders; leave out y")
        return read_class_folders(Path(images))
    if labels is None:
        raise UserError("requires y to be passed, but the target y is None: give one label for each image")
    given = read_images(images)
    answers = as_labels(labels)
    if len(given) != len(answers):
        raise UserError(f"there are {len(given)} images but {len(answers)} labels; give one label for each image")
    return given, answers


def read_class_folders(folder: Path) -> tuple[Given, np.ndarray]:
    """A folder a class, the folder's name being the class's."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    paths: list[str] = []
    names: list[str] = []
    for name in class_folders(folder):
        found = image_files(folder / name)
        if not found:
            raise UserError(f"class folder {folder / name} holds no images; add images or take the class out")
        paths += found
        names += [name] * len(found)
    if not paths:
        hint = (
            "sort its images into one folder a class" if image_files(folder) else "it needs a folder of images a class"
        )
        raise UserError(f"{folder} has no class folders; {hint}")
    return Given(pictures=tuple(paths)), np.array(names)


def image_set(given: Given, shape: Shape, labels: Tensor | None = None) -> ImageSet:
    """The given images in the model's shape, with class numbers (zeros where nobody asks)."""
    numbers = torch.zeros(len(given), dtype=torch.int64) if labels is None else labels
    return ImageSet(given.images(shape), numbers)


def check_shape(shape: Shape) -> None:
    """A first fit takes square images of 8 pixels or more: the rotations of the first task need squares."""
    channels, height, width = shape
    if height != width or height < SMALLEST_SIDE:
        raise UserError(
            f"the images are {_describe(shape)}; they must be square, with at least {SMALLEST_SIDE} pixels a side: "
            "crop, pad or resize them"
        )
    if channels not in CHANNELS:
        raise UserError(f"the images have {channels} channels; give grey ones (1) or colour ones (3)")


# --- files and PIL images ---------------------------------------------------------------------------------------------


def _is_picture(item: Any) -> bool:
    try:
        from PIL import Image
    except ImportError:
        return False
    return isinstance(item, Image.Image)


def _existing(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"there is no image {path}")
    return str(path)


def _encoded(item: Any) -> bytes:
    """The bytes of a file, or of a PIL image written without loss, so that both go through one decoder."""
    if isinstance(item, str):
        return Files((item,)).read(0)
    buffer = BytesIO()
    if item.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        item = item.convert("RGB")
    item.save(buffer, "PNG", compress_level=0)
    return buffer.getvalue()


def _size(item: Any) -> tuple[int, int]:
    """Width and height; of a damaged file, which decoding will name, a large one."""
    if not isinstance(item, str):
        return int(item.width), int(item.height)
    from PIL import Image

    data = _encoded(item)
    try:
        with careful_pillow(), Image.open(BytesIO(data), formats=likely_formats(data)) as image:
            return image.size
    except Exception:  # Pillow's readers raise nearly anything on damaged files
        return LARGE_DEFAULT, LARGE_DEFAULT


def readable(given: Given) -> np.ndarray:
    """Which pictures can be decoded, bool [N]; pixels always can."""
    return np.array([True] * len(given) if given.pixels is not None else list(map(_decodes, given.pictures)))


def _decodes(item: Any) -> bool:
    try:
        with careful_pillow():
            decode(_encoded(item), "", 1, centre_box)
    except BadImage:
        return False
    return True


def _describe(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    kind = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
    return f"{height}×{width} {kind}"
