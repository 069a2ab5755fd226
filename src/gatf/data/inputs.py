"""Images from users (arrays, tensors, paths, PIL images, a folder) as uint8 images of one size.

Arrays must have the model's size. Files and PIL images are converted to RGB, cropped to the central square and resized.
Nothing is written to the cache, because users may not be allowed to keep these images.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatf.data import image_ops
from gatf.data.base import LazyImages
from gatf.data.decode import CENTRAL_SHARE, SMALL, BadImage, plain_view
from gatf.data.encoded import Encoded, Files, Pictures, decode_all, natural_side, readable, shorter_side
from gatf.data.files import existing, image_files
from gatf.data.layouts.folder import class_folders
from gatf.data.pixels import CHANNELS, as_labels, as_pixels, stacked
from gatf.data.workers import default_workers
from gatf.errors import UserError

SMALLEST_SIDE = 8
"""The smallest image that two halvings of the network leave pixels of."""
VECTOR_COLUMNS = ("List", "LargeList", "Sequence")
"""Types of the columns of Hugging Face data sets that hold vectors."""
Shape = tuple[int, ...]
"""Channels, height, width; of vectors the dimension alone."""


class ImageInput:
    """Images of a user: uint8 pixels [N, C, H, W], or encoded images of any size. Small images are decoded once."""

    def __init__(self, images: Tensor | Encoded) -> None:
        self.source = images
        self._decoded: tuple[Shape, float, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.source)

    @property
    def are_pixels(self) -> bool:
        return isinstance(self.source, Tensor)

    def names(self) -> list[str]:
        """A name for each image: its path, or its number."""
        source = self.source
        if isinstance(source, Tensor):
            return [f"image {number}" for number in range(len(self))]
        return [source.name(number) for number in range(len(self))]

    def stamp(self) -> str:
        """A digest that identifies the same images later."""
        if isinstance(self.source, Tensor):
            raise ValueError("pixels have no stamp: nobody asks for the same ones again")
        return self.source.stamp()

    def natural_shape(self) -> Shape:
        """The shape a first fit would use: of pixels their own; small images of one size keep it, else 224."""
        if isinstance(self.source, Tensor):
            channels, height, width = self.source.shape[1:]
            return channels, height, width
        side = natural_side(self.source, SMALLEST_SIDE)
        return 3, side, side

    @cached_property
    def shorter_side(self) -> int:
        """The shorter side of typical images."""
        return min(self.source.shape[2:]) if isinstance(self.source, Tensor) else shorter_side(self.source)

    def images(self, shape: Shape, central_share: float = CENTRAL_SHARE) -> Tensor | LazyImages:
        """The images in a model's shape, cropped to the central share; large files are decoded when they are needed."""
        channels, height, _ = shape
        if isinstance(self.source, Tensor):
            if self._fits_after_resizing(shape):  # as a file with these pixels
                return LazyImages(Pictures(_as_pictures(self.source)), height, 0, central_share)
            if self.source.shape[1:] != shape:
                raise UserError(
                    f"the images are {_describe(tuple(self.source.shape[1:]))}, but the model was made for "
                    f"{_describe(shape)}; resize or convert them"
                )
            return self.source
        if height > SMALL and channels == 3 and isinstance(self.source, Files):
            return LazyImages(self.source, height, default_workers(), central_share)
        if self._decoded is None or self._decoded[:2] != (shape, central_share):
            pixels, _ = decode_all(self.source, height, choose=plain_view(height, central_share))
            self._decoded = shape, central_share, pixels if channels == 3 else grey(pixels)
        return self._decoded[2]

    def _fits_after_resizing(self, shape: Shape) -> bool:
        """Whether these pixels are square, and the network takes large colour images."""
        assert isinstance(self.source, Tensor)
        channels, height, width = self.source.shape[1:]
        return shape[0] == 3 and channels in CHANNELS and SMALLEST_SIDE <= height == width != shape[1] > SMALL

    def first_copies(self, shape: Shape, central_share: float = CENTRAL_SHARE) -> Tensor:
        """For each image the number of the first image with the same content, int64 [N]; its own if there is none.

        Images in memory are compared by their pixels, files that are decoded later by their bytes.
        """
        images = self.source if isinstance(self.source, Tensor) else self.images(shape, central_share)
        if isinstance(images, Tensor):
            contents = (_digest(image.numpy().tobytes()) for image in images)
            return _first_places(contents)
        assert isinstance(self.source, Files)
        sizes = [Path(path).stat().st_size if Path(path).is_file() else -1 for path in self.source.paths]
        shared = {size for size, count in Counter(sizes).items() if count > 1}
        read = (_digest(_bytes_of(self.source, n)) if size in shared else n for n, size in enumerate(sizes))
        return _first_places(read)

    def without_bad(self, shape: Shape) -> tuple["ImageInput", np.ndarray]:
        """The images that can be decoded, and a mask of them, bool [N]. Small decoded images are kept."""
        if isinstance(self.source, Tensor):
            return self, np.ones(len(self), dtype=bool)
        if shape[1] > SMALL:
            kept, decoded = readable(self.source, default_workers()), None
        else:
            pixels, kept = decode_all(self.source, shape[1], skip=True)
            decoded = (shape, CENTRAL_SHARE, pixels if shape[0] == 3 else grey(pixels))
        good = ImageInput(self.source.take(kept.tolist()))
        good._decoded = decoded
        return good, np.isin(np.arange(len(self)), kept.numpy())


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _bytes_of(files: Files, number: int) -> bytes:
    """The content of a file; of one that cannot be read, its name: decoding will report it."""
    try:
        return files.read(number)
    except BadImage:
        return files.name(number).encode()


def _first_places(contents: Iterable[object]) -> Tensor:
    """For each item the place of the first equal one, int64 [N]."""
    first: dict[object, int] = {}
    return torch.tensor([first.setdefault(content, place) for place, content in enumerate(contents)])


def grey(pixels: Tensor) -> Tensor:
    """Colour [N, 3, H, W] as brightness [N, 1, H, W], as Pillow weighs it; what is grey keeps its value."""
    return image_ops.grey(pixels).to(torch.uint8)


def read_images(given: Any) -> ImageInput:
    """Images without labels, for prediction: everything `read_labelled` takes, one file, or a folder of any depth."""
    if isinstance(given, ImageInput):
        return given
    if isinstance(given, (str, Path)):
        path = Path(given)
        if path.is_dir():
            found = image_files(path)
            if not found:
                raise UserError(f"{path} holds no images")
            return ImageInput(Files(tuple(found)))
        return ImageInput(Files((existing(path),)))
    if _is_picture(given):
        return ImageInput(Pictures((given,)))
    if isinstance(given, (list, tuple)) or (isinstance(given, np.ndarray) and given.dtype.kind in "OU"):
        items = list(given)
        if items and all(isinstance(item, (str, Path)) for item in items):
            return ImageInput(Files(tuple(existing(Path(item)) for item in items)))
        if items and all(_is_picture(item) for item in items):
            return ImageInput(Pictures(tuple(items)))
        if any(isinstance(item, (str, Path)) or _is_picture(item) for item in items):
            raise UserError("the images mix paths, PIL images or arrays; give one kind")
        given = stacked(items)
    return ImageInput(as_pixels(given))


def read_labelled(images: Any, labels: Any) -> tuple[ImageInput, np.ndarray]:
    """Images and one label each; a folder has a folder of images per class, and a data set its own labels."""
    if isinstance(images, (str, Path)):
        if labels is not None:
            raise UserError("a folder brings its own labels, the names of its class folders; leave out y")
        return read_class_folders(Path(images))
    if labels is None:
        images, labels = from_dataset(images)
    if labels is None:
        raise UserError("requires y to be passed, but the target y is None: give one label for each image")
    given = read_images(images)
    known = as_labels(labels)
    if len(given) != len(known):
        raise UserError(f"there are {len(given)} images but {len(known)} labels; give one label for each image")
    return given, known


def from_dataset(given: Any, *, vectors: bool = False, labelled: bool = True) -> tuple[Any, Any]:
    """Images or vectors and labels of a data set that brings its own: one of Hugging Face, or of torch with (item,
    label) pairs; other input unchanged, without labels."""
    features = getattr(given, "features", None)
    if isinstance(features, dict):  # a datasets.Dataset
        kinds = {name: type(feature).__name__ for name, feature in features.items()}
        items = [name for name, kind in kinds.items() if kind in (VECTOR_COLUMNS if vectors else ("Image",))]
        label = next((name for name in ("fine_label", "label") if name in kinds), None) or next(
            (name for name, kind in kinds.items() if kind == "ClassLabel"), None
        )
        if not items or (labelled and label is None):
            needed = f"one of {'vectors' if vectors else 'images'}{' and one of labels' if labelled else ''}"
            raise UserError(f"the data set has columns {', '.join(kinds)}, but needs {needed}")
        found = (given.with_format("numpy") if vectors else given)["embedding" if "embedding" in items else items[0]]
        names = getattr(features.get(label), "names", None)
        return list(found), label and [names[number] if names else number for number in given[label]]
    if isinstance(given, torch.utils.data.Dataset):
        if not hasattr(given, "__len__"):
            raise UserError("a torch data set must have a length; an IterableDataset is not read")
        return labelled_items(given)
    return given, None


def labelled_items(dataset: Any) -> tuple[list[Any], list[Any]]:
    """Images and labels of a data set whose items begin with an image and its label."""
    images, labels = [], []
    for number in range(len(dataset)):
        item = dataset[number]
        if not isinstance(item, tuple | list) or len(item) < 2:
            raise UserError(f"items of the data set must be (image, label), but item {number} is {type(item).__name__}")
        images.append(item[0])
        labels.append(item[1].item() if isinstance(item[1], Tensor | np.generic) else item[1])
    return images, labels


def read_class_folders(folder: Path) -> tuple[ImageInput, np.ndarray]:
    """One folder per class, the folder's name being the class's."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}" if not folder.exists() else f"{folder} is no folder")
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
            "sort its images into one folder per class"
            if image_files(folder)
            else "it needs one folder of images per class"
        )
        raise UserError(f"{folder} has no class folders; {hint}")
    return ImageInput(Files(tuple(paths))), np.array(names)


def decodable(paths: Sequence[str]) -> np.ndarray:
    """Which files are images that can be decoded, bool [N]."""
    return np.isin(np.arange(len(paths)), readable(Files(tuple(paths)), default_workers()).numpy())


def check_shape(shape: Shape) -> None:
    """A first fit takes square images of 8 pixels or more: the rotations of the first task need squares."""
    if len(shape) == 1:
        return
    channels, height, width = shape
    if height != width or height < SMALLEST_SIDE:
        raise UserError(
            f"the images are {_describe(shape)}; they must be square, with at least {SMALLEST_SIDE} pixels a side: "
            "crop, pad or resize them"
        )
    if channels not in CHANNELS:
        raise UserError(f"the images have {channels} channels; give grey ones (1) or colour ones (3)")


# --- files and PIL images ---------------------------------------------------------------------------------------------


def _as_pictures(pixels: Tensor) -> tuple[Any, ...]:
    """Pixels uint8 [N, 1 or 3, H, W] as PIL images, which share their memory."""
    from PIL import Image

    return tuple(Image.fromarray(image) for image in pixels.permute(0, 2, 3, 1).contiguous().squeeze(3).numpy())


def _is_picture(item: Any) -> bool:
    try:
        from PIL import Image
    except ImportError:
        return False
    return isinstance(item, Image.Image)


def _describe(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    kind = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
    return f"{height}×{width} {kind}"
