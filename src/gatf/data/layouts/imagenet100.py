"""ImageNet-100: a hundred classes out of an ImageNet folder, or parquet files that say which classes they hold.

The name is used for several lists of classes, so the files are compared with the requested list (`data.class_list`).
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from gatf.data.layouts.folder import class_folders, read_class_list, two_folders
from gatf.data.layouts.parquet import read_parquet
from gatf.data.listing import Listing, Part, some
from gatf.data.published import IMAGENET100, imagenet100_wnids
from gatf.errors import UserError
from gatf.settings import DataConfig

KAGGLE = "seed_1993_subset_100_imagenet"
"""Folder of Kaggle's arjunashok33/imagenet-subset-for-inc-learn, which holds AdaGauss's list."""
HUB_FIRST = (
    "bonnet, poke bonnet", "green mamba", "langur", "Doberman, Doberman pinscher", "gyromitra", "Saluki, gazelle hound",
    "vacuum, vacuum cleaner", "window screen", "cocktail shaker", "garden spider, Aranea diademata",
)  # fmt: skip
"""The hub's clane9/imagenet-100 numbers CMC's classes in CMC's order and names them in words, of which these are the
first: it is known by them."""


def imagenet_folders(folder: Path) -> tuple[Path, Path] | None:
    """The training and the test images: train/ with val/ (or validation/, test/), here or as Kaggle has them."""
    for place in (folder / KAGGLE / "data", folder / "data", folder):
        test = next((place / name for name in ("val", "validation", "test") if (place / name).is_dir()), None)
        if test is not None and (place / "train").is_dir():
            return place / "train", test
    return None


def read_imagenet(folder: Path, config: DataConfig) -> Listing:
    """An ImageNet folder, train/<wnid> and val/<wnid>: the classes of the requested list, in its order."""
    folders = imagenet_folders(folder)
    assert folders is not None
    wanted = wanted_classes(config)
    _check(folder, wanted, class_folders(folders[0]), config)
    return _noted(two_folders(*folders, wanted, unlisted_ok=True), config)


def read_imagenet_parquet(folder: Path, config: DataConfig) -> Listing:
    """Parquet files whose class names, or an explicit `data.class_list`, identify the classes."""
    listing, wanted = read_parquet(folder, config), wanted_classes(config)
    names = listing.class_names
    if all(re.fullmatch(r"n\d{8}", name) for name in names):
        held = names
    elif len(names) == 100 and names[: len(HUB_FIRST)] == HUB_FIRST:
        held = imagenet100_wnids("cmc")
    elif all(name.isdecimal() for name in names):
        # sorted and published order differ in AdaGauss's list: plain numbers could mean either
        if config.class_list in (None, "adagauss") or len(names) != len(wanted):
            raise UserError(
                f"the classes in {folder} have only numbers for names, which do not identify classes of ImageNet; if "
                "they are the hub's clane9/imagenet-100 say so with data.class_list=cmc, else name them by wnid"
            )
        listing, held = replace(listing, class_names=wanted), wanted
    else:
        raise UserError(
            f"the classes in {folder} are called {some(list(names))}: neither wnids nor the names of the hub's "
            "clane9/imagenet-100, so their list is unknown; name them by wnid, or use data.name=parquet"
        )
    _check(folder, wanted, held, config)
    return _noted(_chosen(listing, [held.index(wnid) for wnid in wanted]), config)


def wanted_classes(config: DataConfig) -> tuple[str, ...]:
    """The requested wnids, in their published or listed order."""
    if config.class_list is None or config.class_list in IMAGENET100:
        return imagenet100_wnids(config.class_list or next(iter(IMAGENET100)))
    return read_class_list(config.class_list)


def list_title(config: DataConfig) -> str:
    """The name of the requested list."""
    owner = IMAGENET100.get(config.class_list or next(iter(IMAGENET100)))
    return f"{owner} ImageNet-100" if owner else str(config.class_list)


def _check(place: Path, wanted: Sequence[str], held: Collection[str], config: DataConfig) -> None:
    """Raise a `UserError` if a requested class is missing; it names another list that is complete."""
    present = set(held)
    missing = [wnid for wnid in wanted if wnid not in present]
    if not missing:
        return
    default = ", the default of data.class_list," if config.class_list is None else ""
    lacking = f"{place} lacks {len(missing)} of the {len(wanted)} classes of {list_title(config)} ({some(missing)})"
    for name, owner in IMAGENET100.items():
        if present.issuperset(imagenet100_wnids(name)):
            raise UserError(f"{lacking}{default} and holds {owner}: set data.class_list={name} to use those")
    raise UserError(f"{lacking}; add them, or list the classes to use in a file (data.class_list=FILE)")


def _chosen(listing: Listing, numbers: list[int]) -> Listing:
    """Only the classes with these numbers, renumbered in this order."""
    if numbers == list(range(len(listing.class_names))):
        return listing
    place = torch.full((len(listing.class_names),), -1)
    place[numbers] = torch.arange(len(numbers))

    def part(whole: Part) -> Part:
        kept = whole.take(torch.nonzero(place[whole.labels] >= 0).squeeze(1))
        return Part(kept.images, place[kept.labels])

    names = tuple(listing.class_names[number] for number in numbers)
    return replace(listing, class_names=names, train=part(listing.train), test=part(listing.test))


def _noted(listing: Listing, config: DataConfig) -> Listing:
    """With a warning if class-incremental papers use other classes."""
    if config.class_list != "cmc":
        return listing
    note = (
        "imagenet100: CMC's classes (data.class_list=cmc); AdaGauss, GATF and the numbers they publish have another "
        "list, with 7 of the 100 in common"
    )
    return replace(listing, warnings=(*listing.warnings, note))
