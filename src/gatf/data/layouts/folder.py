"""One folder per class (`imagefolder`): train/ and test/, or the class folders alone."""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from gatf.data.encoded import Files
from gatf.data.files import image_files
from gatf.data.listing import Listing, Part, some, split_part
from gatf.errors import UserError
from gatf.settings import DataConfig

TEST_NAMES = ("test", "val", "valid", "validation")


def has_class_folders(folder: Path) -> bool:
    return folder.is_dir() and any(child.is_dir() for child in folder.iterdir())


def read_folder(folder: Path, config: DataConfig) -> Listing:
    """train/ with test/ (or val/); without train/, every folder is a class and a share of it is for testing."""
    wanted = read_class_list(config.class_list) if config.class_list is not None else None
    has_parts = (folder / "train").is_dir()
    train = folder / "train" if has_parts else folder
    names = wanted or class_folders(train)
    test = next((folder / name for name in TEST_NAMES if has_parts and (folder / name).is_dir()), None)
    if test is None:
        return Listing(names, *split_part(list_classes(train, names), names, config.test_fraction))
    return two_folders(train, test, names, unlisted_ok=wanted is not None)


def two_folders(train: Path, test: Path, names: tuple[str, ...], *, unlisted_ok: bool) -> Listing:
    """The named classes of a training and a test folder; one that only the test folder has is left out."""
    tested = class_folders(test)
    if not tested:
        raise UserError(f"{test} holds no class folders; sort its images into folders named like those in {train}")
    unknown = [] if unlisted_ok else [name for name in tested if name not in set(names)]
    warnings = (f"{test}: class {some(unknown)} has no training images and is left out",) if unknown else ()
    part = list_classes(test, names, empty_ok=True)
    return Listing(names, list_classes(train, names), part, warnings)


def class_folders(folder: Path) -> tuple[str, ...]:
    """Names of the class folders, sorted. Two that differ only by case would be one on some systems: refused."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    same = defaultdict(list)
    for name in names:
        same[name.casefold()].append(name)
    for twins in same.values():
        if len(twins) > 1:
            raise UserError(
                f"class folders {' and '.join(twins)} in {folder} differ only by case; merge them or rename one"
            )
    return tuple(names)


def list_classes(folder: Path, names: Sequence[str], *, empty_ok: bool = False) -> Part:
    """The image files of each class, sorted by name, in its folder or below."""
    paths, labels = [], []
    for number, name in enumerate(names):
        found = image_files(folder / name)
        if not found and not empty_ok:
            what = "holds no images" if (folder / name).is_dir() else "is not there"
            raise UserError(f"class folder {folder / name} {what}; add images or take the class out")
        paths += found
        labels += [number] * len(found)
    return Part(Files(tuple(paths)), torch.tensor(labels, dtype=torch.int64))


def read_class_list(file: str) -> tuple[str, ...]:
    """Class folders to use, one per line."""
    try:
        lines = Path(file).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the class list {file} (data.class_list) cannot be read: {error}") from None
    names = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not names or len(set(names)) < len(names):
        raise UserError(f"the class list {file} must name at least one class folder, each once, one per line")
    return names
