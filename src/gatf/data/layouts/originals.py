"""The benchmarks as their authors distribute them."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gatf.data.encoded import Files
from gatf.data.layouts.folder import class_folders, list_classes
from gatf.data.listing import Listing, Part, some
from gatf.errors import UserError
from gatf.settings import DataConfig

# --- CIFAR-100: three pickles -----------------------------------------------------------------------------------------


class _PlainUnpickler(pickle.Unpickler):
    """Reads dictionaries, lists, strings and NumPy arrays, and refuses to look up anything else."""

    ALLOWED = (
        ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"), ("numpy", "ndarray"),
        ("numpy", "dtype"), ("_codecs", "encode"),
    )  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def cifar_folder(folder: Path) -> Path | None:
    return _folder_with(("train", "test", "meta"), folder / "cifar-100-python", folder)


def read_cifar_pickles(folder: Path, config: DataConfig) -> Listing:
    """cifar-100-python: rows of 3 072 bytes, red, green, blue, with fine labels."""
    place = cifar_folder(folder)
    assert place is not None
    names = _unpickle(place / "meta").get("fine_label_names", ())
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{place / 'meta'} has no class names; get CIFAR-100 again")
    train, test = (_cifar_part(place / part, len(names)) for part in ("train", "test"))
    return Listing(tuple(names), train, test)


def _cifar_part(file: Path, classes: int) -> Part:
    content = _unpickle(file)
    try:
        rows = np.asarray(content["data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        labels = torch.tensor(content["fine_labels"], dtype=torch.int64)
    except (KeyError, ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise UserError(f"{file} is not CIFAR-100's ({' '.join(str(error).split())[:120]}); get it again") from None
    if labels.shape != (len(rows),) or not len(rows) or not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise UserError(f"{file} does not have a label for each image, of a class that has a name; get CIFAR-100 again")
    return Part(torch.from_numpy(rows.copy()), labels)


def _unpickle(path: Path) -> dict[str, Any]:
    try:
        content = _PlainUnpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except Exception as error:  # a damaged pickle hands NumPy's constructors nearly anything
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{path} is not a pickle of plain arrays ({reason}); get CIFAR-100 again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no dictionary, so it is not CIFAR-100's; get CIFAR-100 again")
    return content


# --- Tiny ImageNet ----------------------------------------------------------------------------------------------------


def tiny_folder(folder: Path) -> Path | None:
    return _folder_with(("val/val_annotations.txt", "train/"), folder / "tiny-imagenet-200", folder)


def read_tiny(folder: Path, config: DataConfig) -> Listing:
    """tiny-imagenet-200: train/<wnid>/images, and val/images with the class of each in val_annotations.txt."""
    place = tiny_folder(folder)
    assert place is not None
    names = class_folders(place / "train")
    number = {name: label for label, name in enumerate(names)}
    paths, labels = [], []
    for row in _rows(place / "val" / "val_annotations.txt", 2):
        if row[1] not in number:
            raise UserError(f"{place / 'val' / 'val_annotations.txt'} names class {row[1]}, which train/ does not have")
        paths.append(str(place / "val" / "images" / row[0]))
        labels.append(number[row[1]])
    return Listing(names, list_classes(place / "train", names), _files(paths, labels))


# --- CUB-200-2011 -----------------------------------------------------------------------------------------------------


def cub_folder(folder: Path) -> Path | None:
    return _folder_with(("images.txt", "train_test_split.txt"), folder / "CUB_200_2011", folder)


def read_cub(folder: Path, config: DataConfig) -> Listing:
    """CUB_200_2011: text files that give each image's path, its class (from 1) and whether it is for training."""
    place = cub_folder(folder)
    assert place is not None
    paths = dict(row[:2] for row in _rows(place / "images.txt", 2))
    classes = {row[0]: _number(row[1], place) - 1 for row in _rows(place / "image_class_labels.txt", 2)}
    training = {row[0]: row[1] == "1" for row in _rows(place / "train_test_split.txt", 2)}
    named = {_number(row[0], place) - 1: row[1] for row in _rows(place / "classes.txt", 2)}
    unknown = [image for image in paths if image not in classes or image not in training]
    if unknown or set(classes.values()) - set(named):
        raise UserError(f"the text files in {place} do not agree (image {some(unknown)}); get CUB-200-2011 again")
    names = tuple(named[number] for number in sorted(named))
    number = {label: place for place, label in enumerate(sorted(named))}

    def part(wanted: bool) -> Part:
        images = [image for image in paths if training[image] is wanted]
        files = [str(place / "images" / paths[image]) for image in images]
        return _files(files, [number[classes[image]] for image in images])

    return Listing(names, part(True), part(False))


# ----------------------------------------------------------------------------------------------------------------------


def _folder_with(names: tuple[str, ...], *places: Path) -> Path | None:
    """The first place that has all these files, and folders where a name ends with a slash."""
    for place in places:
        if all((place / name).is_dir() if name.endswith("/") else (place / name).is_file() for name in names):
            return place
    return None


def _number(word: str, place: Path) -> int:
    if not word.isdecimal() or len(word) > 9:
        raise UserError(f"a text file in {place} has {word[:80]!r} for a class's number; get the data set again")
    return int(word)


def _rows(path: Path, columns: int) -> list[list[str]]:
    """The words of each line, of which there must be enough."""
    try:
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); get the data set again") from None
    short = next((number for number, row in enumerate(rows, 1) if len(row) < columns), None)
    if short is not None:
        raise UserError(f"line {short} of {path} has fewer than {columns} words; get the data set again")
    return rows


def _files(paths: list[str], labels: list[int]) -> Part:
    return Part(Files(tuple(paths)), torch.tensor(labels, dtype=torch.int64))
