"""Image files by name, without reading them. This module does not import torch, which is slow to import."""

import os
from collections.abc import Iterable
from pathlib import Path

from gatf.errors import UserError
from gatf.io.files import is_special

IMAGES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".jp2", ".avif")
)


def image_files(folder: Path) -> list[str]:
    """All image files below a folder, sorted."""
    found = []
    for parent, _, files in os.walk(folder):
        found += [os.path.join(parent, name) for name in files if is_image(name)]  # noqa: PTH118  # a million paths
    return sorted(found)


def is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGES  # noqa: PTH122


def existing(path: Path) -> str:
    """The path of an existing image; a `UserError` if there is none."""
    if is_special(path):
        raise UserError(f"{path} is a pipe, a device or a socket, not an image")
    if not path.is_file():
        raise UserError(f"there is no image {path}")
    return str(path)


def named_images(places: Iterable[Path]) -> tuple[str, ...]:
    """The given files, and all images below the given folders."""
    names: list[str] = []
    for place in places:
        found = image_files(place) if place.is_dir() else [existing(place)]
        if not found:
            raise UserError(f"{place} holds no images")
        names += found
    return tuple(names)


def is_vector_file(name: str) -> bool:
    """Whether a path, pattern or address names vectors rather than images."""
    return name.lower().endswith((".npy", ".npz", ".parquet")) or "://" in name
