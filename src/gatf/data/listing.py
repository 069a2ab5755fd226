"""Images and labels of a data set's files, before decoding, and the search for these files."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gatf.data.cache import cache_folder
from gatf.data.encoded import Encoded
from gatf.errors import UserError
from gatf.io.text import harmless
from gatf.seeding import generator
from gatf.settings import DataConfig


@dataclass(frozen=True)
class Part:
    """Training or test images, encoded or as pixels [N, C, H, W], and their class numbers."""

    images: Encoded | Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, numbers: Tensor) -> "Part":
        if isinstance(self.images, Tensor):
            return Part(self.images[numbers], self.labels[numbers])
        return Part(self.images.take(numbers.tolist()), self.labels[numbers])


@dataclass(frozen=True)
class Listing:
    """Class names, images and labels of a data set's files."""

    class_names: tuple[str, ...]
    train: Part
    test: Part
    warnings: tuple[str, ...] = ()


def some(items: Iterable[object], most: int = 3) -> str:
    """`"a, b, c and 5 more"`."""
    listed = [harmless(item) for item in items]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def compact_labels(labels: Sequence[Tensor], name: str) -> tuple[list[Tensor], tuple[int, ...], tuple[str, ...]]:
    """Labels of the parts, renumbered from 0 without gaps; the original numbers; a warning.

    Class numbers come from the first (training) part; −1 marks images of other parts with unknown classes.
    """
    if any(len(part) and int(part.min()) < 0 for part in labels):
        raise UserError(f"{name} has labels below 0, which mark unlabelled images; delete those rows")
    present = labels[0].unique()
    if not len(present):
        raise UserError(f"{name} has no training images")
    numbers = tuple(present.tolist())
    if numbers == tuple(range(len(numbers))):
        return [torch.where(part < len(numbers), part, -1) for part in labels], numbers, ()
    mapped = []
    for part in labels:
        place = torch.searchsorted(present, part).clamp(max=len(present) - 1)
        mapped.append(torch.where(present[place] == part, place, -1))
    warning = (
        f"{name}: labels are not 0 to {len(numbers) - 1} but {some([str(n) for n in numbers])}; renumbered in order"
    )
    return mapped, numbers, (warning,)


def drop_unknown(part: Part, name: str) -> tuple[Part, tuple[str, ...]]:
    """The test images of classes with training images (label ≥ 0), and a warning about the others."""
    known = torch.nonzero(part.labels >= 0).squeeze(1)
    if len(known) == len(part):
        return part, ()
    return part.take(known), (
        f"{name}: {len(part) - len(known)} test images are of classes without training images and are left out",
    )


def share_of_each_class(labels: Tensor, share: float, draws: Sequence[torch.Generator], *, fewest: int = 2) -> Tensor:
    """Which images are held out, bool [N]: this share of each class, drawn by its generator, at least one image and not
    all; none of a class with fewer than `fewest` images. Labels [N] are 0 to len(draws) − 1."""
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for number, generator_of_class in enumerate(draws):
        members = torch.nonzero(labels == number).squeeze(1)
        if len(members) < fewest:
            continue
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        held_out[members[torch.randperm(len(members), generator=generator_of_class)[:count]]] = True
    return held_out


def split_part(part: Part, class_names: Sequence[str], fraction: float) -> tuple[Part, Part]:
    """Split one part into training and test images: a share of each class, drawn by the class's name, with at least one
    image in both."""
    for name, count in zip(class_names, torch.bincount(part.labels, minlength=len(class_names)).tolist(), strict=True):
        if count < 2:
            raise UserError(f"class '{name}' has {count} image, too few to split into training and test images")
    draws = [generator(0, "test part", name) for name in class_names]
    testing = share_of_each_class(part.labels, fraction, draws)
    return part.take(torch.nonzero(~testing).squeeze(1)), part.take(torch.nonzero(testing).squeeze(1))


def listing_of(parts: Sequence[Part], names: Sequence[str] | None, fraction: float, place: Path) -> Listing:
    """Training images, and test images or else a `fraction` of them; labels are numbers into `names`, or names."""
    labels, numbers, warnings = compact_labels([part.labels for part in parts], str(place))
    class_names = tuple(names[number] if names else str(number) for number in numbers)
    train = Part(parts[0].images, labels[0])
    if len(parts) == 1:
        return Listing(class_names, *split_part(train, class_names, fraction), warnings)
    test, more = drop_unknown(Part(parts[1].images, labels[1]), str(place))
    return Listing(class_names, train, test, warnings + more)


@dataclass(frozen=True)
class Layout:
    """A file layout of a data set."""

    name: str
    matches: Callable[[Path], object]
    """Whether a folder has this layout: anything that is true."""
    read: Callable[[Path, DataConfig], Listing]
    matches_base: Callable[[Path], object] | None = None
    """The check for the base folder, which may contain other data sets too; None: `matches`."""


def base_folder(config: DataConfig) -> Path:
    """The folder of `data.root` or GATF_DATA, else the download folder of `gatf data get`."""
    named = config.root or os.environ.get("GATF_DATA")
    return Path(named).expanduser() if named else cache_folder() / "data"


def fetch_folder(config: DataConfig) -> Path:
    """The download folder of a source."""
    return base_folder(config) / config.name


def find_layout(config: DataConfig, layouts: Sequence[Layout]) -> tuple[Path, Layout] | None:
    """The first of <base>/<name> and the base folder that has one of the layouts."""
    base = base_folder(config)
    own = base / config.name
    for place in (own, base):
        if place.exists():
            for layout in layouts:
                matches = layout.matches if place == own else layout.matches_base or layout.matches
                if matches(place):
                    return place, layout
    return None


def not_found(config: DataConfig, layouts: Sequence[Layout], get: str | None = None) -> str:
    base = base_folder(config)
    known = " or ".join(layout.name for layout in layouts)
    command = f"get it with `{get or f'gatf data get {config.name}'}`, or " if get != "" else ""
    return (
        f"'{config.name}' is not in {base / config.name} or {base}: {command}name a folder that holds it ({known}) "
        "with --data-root or GATF_DATA"
    )
