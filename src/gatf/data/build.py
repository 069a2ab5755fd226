"""Builds a source from listed files: small images are decoded once and cached, large ones decoded on demand."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gatf.data import cache
from gatf.data.base import Card, ImageSet, LazyImages, Source, SourceEntry, counted
from gatf.data.decode import SMALL
from gatf.data.encoded import Encoded, decode_all, natural_side, readable
from gatf.data.listing import Layout, Listing, base_folder, find_layout, some
from gatf.data.workers import default_workers
from gatf.errors import UserError
from gatf.settings import DataConfig


@dataclass(frozen=True)
class Traits:
    """Known properties of a data set."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int | None = None
    """Height and width of the network's input; None: derived from the images."""
    classes: int | None = None
    train_per_class: tuple[int, int] | None = None
    """Fewest and most training images of a class."""
    test_per_class: tuple[int, int] | None = None
    published_order: tuple[int, ...] | None = None


def build_source(name: str, listing: Listing, config: DataConfig, traits: Traits) -> Source:
    """Decode small images (once, then from the cache), keep large ones encoded, and check the counts."""
    size = image_size(listing, config, traits)
    parts, skipped = [], []
    images: Tensor | LazyImages
    for what, part in (("training", listing.train), ("test", listing.test)):
        if isinstance(part.images, Tensor):
            images, kept = _resized(part.images, size), torch.arange(len(part))
        elif size <= SMALL:
            images, kept = _in_memory(name, part.images, size, config)
        else:
            images, kept = _on_the_fly(part.images, size, config)
        if len(kept) < len(part) and not isinstance(part.images, Tensor):
            good = set(kept.tolist())
            bad = [part.images.name(number) for number in range(len(part)) if number not in good]
            skipped.append(f"{name}: {some(bad)} left out of the {what} images: not decodable")
        parts.append(ImageSet(images, part.labels[kept]))
    train, test = parts
    labels = [train.labels, test.labels]
    known = traits.published_order is not None and len(traits.published_order) == len(listing.class_names)
    mean, std = (v if len(v) == train.image_shape[0] else (sum(v) / len(v),) for v in (traits.mean, traits.std))
    return Source(
        name, listing.class_names, train, test, mean=mean, std=std,
        published_order=traits.published_order if known else None,
        warnings=(*listing.warnings, *skipped, *check_counts(name, listing.class_names, labels, traits)),
    )  # fmt: skip


def image_size(listing: Listing, config: DataConfig, traits: Traits) -> int:
    """The configured or known size; else small images of one size keep it, others become 224."""
    if config.image_size is not None or traits.size is not None:
        return cast(int, config.image_size or traits.size)
    if isinstance(listing.train.images, Tensor):
        return listing.train.images.shape[-1]
    return natural_side(listing.train.images)


# --- pixels -----------------------------------------------------------------------------------------------------------


def _in_memory(name: str, images: Encoded, size: int, config: DataConfig) -> tuple[Tensor, Tensor]:
    """All pixels [N, 3, size, size] and the numbers of their images, memory-mapped from the cache."""

    def make() -> dict[str, Tensor]:
        pixels, kept = decode_all(images, size, skip=config.on_bad_image == "skip")
        return {"images": pixels, "kept": kept}

    made = cache.cached_tensors(name, cache.digest(images.content(), size, config.on_bad_image), make)
    return made["images"], made["kept"]


def _resized(images: Tensor, size: int) -> Tensor:
    if images.shape[-2:] == (size, size):
        return images
    chunks = [
        torch.nn.functional.interpolate(chunk.float(), (size, size), mode="bilinear", antialias=True)
        .round_()
        .clamp_(0, 255)
        .to(torch.uint8)
        for chunk in images.split(1024)
    ]
    return torch.cat(chunks)


def _on_the_fly(images: Encoded, size: int, config: DataConfig) -> tuple[LazyImages, Tensor]:
    """Images that are decoded on demand, without unreadable ones if `on_bad_image` is skip."""
    workers = default_workers() if config.workers is None else config.workers
    kept = torch.arange(len(images))
    images.prepare()
    if config.on_bad_image == "skip":
        key = cache.digest(images.stamp())
        kept = cache.cached_tensors("readable", key, lambda: {"kept": readable(images, workers)})["kept"]
        images = images.take(kept.tolist())
    return LazyImages(images, size, workers), kept


# --- checks -----------------------------------------------------------------------------------------------------------


def check_counts(name: str, class_names: tuple[str, ...], labels: Sequence[Tensor], traits: Traits) -> list[str]:
    """One sentence per difference from the known properties."""
    found = []
    classes = len(class_names)
    if traits.classes is not None and classes != traits.classes:
        found.append(f"{name}: {classes} classes, expected {traits.classes}")
    expected = (("training", traits.train_per_class), ("test", traits.test_per_class))
    for part, (what, bounds) in zip(labels, expected, strict=True):
        low, high = bounds or (1, 2**62)
        counts = torch.bincount(part, minlength=classes).tolist()
        off = [f"'{n}' has {count}" for n, count in zip(class_names, counts, strict=True) if not low <= count <= high]
        if off:
            wanted = f"{low}" if low == high else f"{low} to {high}" if bounds else "at least 1"
            found.append(f"{name}: class {some(off)} {what} images, expected {wanted}")
    return found


# --- sources ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileSource(SourceEntry):
    """A source in files, which have one of its layouts."""

    layouts: tuple[Layout, ...]
    traits: Traits

    @abstractmethod
    def listing(self, config: DataConfig) -> Listing:
        """The images and labels of the files; a `UserError` if there are none."""

    def open(self, config: DataConfig) -> Source:
        return build_source(config.name, self.listing(config), config, self.traits)

    def missing(self, config: DataConfig) -> str | None:
        try:
            self.listing(config)
        except UserError as error:
            return str(error)
        return None

    def card(self, config: DataConfig) -> Card:
        """Counted without decoding; the expected facts if the files are missing or wrong."""
        found = find_layout(config, self.layouts)
        expected = [("classes", f"{self.traits.classes} expected")] if self.traits.classes else []
        if found is None:
            return [*expected, ("looked in", f"{base_folder(config) / config.name} and {base_folder(config)}")]
        place, layout = found
        where = ("found in", f"{place} ({layout.name})")
        try:
            listing = self.listing(config)
        except UserError:  # reported by `missing`
            return [*expected, where]
        size = image_size(listing, config, self.traits)
        labels = [listing.train.labels, listing.test.labels]
        off = [*listing.warnings, *check_counts(config.name, listing.class_names, labels, self.traits)]
        return [
            *counted(len(listing.class_names), len(listing.train), len(listing.test)),
            ("size", f"{size}×{size}"),
            where,
            ("checks", "; ".join(off) or "counts per class are as expected"),
        ]
