"""NumPy archives: uint8 images and labels, for training and, if there are any, for testing."""

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gatf.data.listing import Listing, Part, listing_of, some
from gatf.data.vectors import PlainArray
from gatf.errors import UserError
from gatf.settings import DataConfig

NAMES = {
    "train": (("x_train", "y_train"), ("train_images", "train_labels"), ("images", "labels")),
    "test": (("x_test", "y_test"), ("test_images", "test_labels")),
}
SMALL, EXPANSION = 2**30, 100
"""Arrays may take this many bytes, or this many times the archive's size: images do not compress better, bombs do."""


def find_npz(place: Path) -> Path | None:
    """The file itself, or the only archive in a folder."""
    if place.is_file():
        return place if place.suffix == ".npz" else None
    found = sorted(place.glob("*.npz")) if place.is_dir() else []
    return found[0] if len(found) == 1 else None


def read_npz(place: Path, config: DataConfig) -> Listing:
    """x_train, y_train, x_test, y_test (or train_images, …): [N, H, W], [N, H, W, C] or [N, C, H, W], C 1 or 3."""
    file = find_npz(place)
    assert file is not None
    try:
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = [name for pairs in NAMES.values() for pair in pairs for name in pair if name in members]
            if sum(members[name].file_size for name in wanted) > max(SMALL, EXPANSION * file.stat().st_size):
                raise UserError(f"{file} would take more than {EXPANSION} times its size in memory, and is refused")
            arrays = {name: PlainArray(archive.open(members[name])).whole() for name in wanted}
    except UserError:
        raise
    except Exception:  # the parsers of zips and of array headers raise nearly anything
        raise UserError(f"{file} is damaged or no archive of plain arrays; write it with np.savez") from None
    parts = [_part(arrays, part, file) for part in ("train", "test")]
    if parts[0] is None:
        needed = ", ".join("/".join(pair) for pair in NAMES["train"])
        raise UserError(f"{file} has no training images: it needs arrays {needed}, and has {some(members)}")
    return listing_of([part for part in parts if part is not None], None, config.test_fraction, file)


def _part(arrays: dict[str, np.ndarray], part: str, file: Path) -> Part | None:
    for images, labels in NAMES[part]:
        if images in arrays and labels in arrays:
            pixels, numbers = _pixels(arrays[images], images, file), arrays[labels].reshape(-1)
            if numbers.dtype.kind not in "iu":
                raise UserError(f"'{labels}' in {file} holds {numbers.dtype}, not class numbers")
            if len(pixels) != len(numbers):
                raise UserError(
                    f"{file} has {len(pixels)} images in '{images}' and {len(numbers)} labels in '{labels}'"
                )
            return Part(pixels, torch.from_numpy(numbers.astype(np.int64)))
    return None


def _pixels(array: np.ndarray, name: str, file: Path) -> Tensor:
    if array.dtype != np.uint8:
        raise UserError(f"'{name}' in {file} holds {array.dtype}; images must be uint8, from 0 to 255")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in (1, 3) and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or array.shape[2] != array.shape[3]:
        raise UserError(f"'{name}' in {file} has shape {array.shape}; images must be square, with 1 or 3 channels")
    return torch.from_numpy(np.ascontiguousarray(array))
