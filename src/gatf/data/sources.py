"""Where images come from. A source is images, labels and names; it knows nothing of tasks."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gatf.errors import UserError, near_misses
from gatf.settings import DataConfig


@dataclass(frozen=True)
class ImageSet:
    """Images of one size as one uint8 tensor, with the source's own class numbers."""

    images: Tensor  # uint8 [N, C, H, W]
    labels: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Source:
    """A data set: what a scenario is cut from."""

    name: str
    class_names: tuple[str, ...]
    train: ImageSet
    test: ImageSet
    mean: tuple[float, ...]
    """Per channel, of pixels scaled to [0, 1]."""
    std: tuple[float, ...]
    published_order: tuple[int, ...] | None = None
    """The class order of the published benchmark, where there is one."""

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width


@dataclass(frozen=True)
class SourceEntry:
    """What `gatf data` prints of a source, and how it is opened."""

    summary: str
    open: Callable[[DataConfig], Source]
    missing: Callable[[DataConfig], str | None]
    """None when the data is at hand, else one sentence that says what is missing and how to get it."""


def load_digits(config: DataConfig) -> Source:
    """scikit-learn's 1 797 handwritten digits of 8×8 pixels, split 80/20 by class with seed 0."""
    from sklearn.datasets import load_digits as sklearn_digits
    from sklearn.model_selection import train_test_split

    bunch = sklearn_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]  # [N, 1, 8, 8]
    labels = bunch.target.astype(np.int64)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0)
    train, test = np.sort(train), np.sort(test)
    scaled = pixels[train] / 255.0
    return Source(
        name="digits",
        class_names=tuple(str(digit) for digit in range(10)),
        train=ImageSet(torch.from_numpy(pixels[train]), torch.from_numpy(labels[train])),
        test=ImageSet(torch.from_numpy(pixels[test]), torch.from_numpy(labels[test])),
        mean=(float(scaled.mean()),),
        std=(float(scaled.std()),),
    )


SOURCES: dict[str, SourceEntry] = {
    "digits": SourceEntry("10 classes, 8×8 grey, 1 797 images inside scikit-learn", load_digits, lambda config: None),
}


def open_source(config: DataConfig) -> Source:
    """Load the source a config names, capped and held out as it says."""
    if config.name not in SOURCES:
        raise UserError(f"no data source is called '{config.name}'{near_misses(config.name, SOURCES)}")
    entry = SOURCES[config.name]
    problem = entry.missing(config)
    if problem:
        raise UserError(problem)
    return limit_training(entry.open(config), config)


def limit_training(source: Source, config: DataConfig) -> Source:
    """Keep the first `max_per_class` images of each class in file order, less the last `val_fraction` of them."""
    if config.max_per_class is None and config.val_fraction == 0.0:
        return source
    labels = source.train.labels
    counts = torch.bincount(labels, minlength=source.classes)
    by_class = torch.argsort(labels, stable=True)
    starts = torch.cumsum(counts, 0) - counts
    rank = torch.empty_like(labels)  # position of each image within its class
    rank[by_class] = torch.arange(len(labels)) - starts[labels[by_class]]
    kept = counts if config.max_per_class is None else counts.clamp(max=config.max_per_class)
    kept = kept - (kept * config.val_fraction).long()
    chosen = torch.nonzero(rank < kept[labels]).squeeze(1)
    train = ImageSet(source.train.images[chosen], labels[chosen])
    return Source(source.name, source.class_names, train, source.test, source.mean, source.std, source.published_order)
