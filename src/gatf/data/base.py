"""Labelled images in two parts, in memory or decoded on demand, and how a source describes itself."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatf.data.decode import CENTRAL_SHARE, Box, RandomWindows, careful_pillow, centre_box, decode
from gatf.data.domains import shifted
from gatf.data.encoded import Encoded
from gatf.data.pixels import as_labels, as_pixels
from gatf.data.workers import in_order
from gatf.errors import UserError
from gatf.settings import DataConfig, Domain

OnProgress = Callable[[str, int, int], None]
"""Called during a download with a description, the finished and the total number of images."""
Card = list[tuple[str, str]]
"""Pairs of a heading and a line, printed by `gatf data show`."""
PIECE = 32
"""Images that a worker decodes at a time. Small pieces let all workers share a batch and keep memory low."""


@dataclass(frozen=True)
class LazyImages:
    """RGB images that are decoded on demand to size × size."""

    encoded: Encoded
    size: int
    workers: int = 0
    central_share: float = CENTRAL_SHARE
    """Share of the shorter side in the test view."""
    domain_of: Tensor | None = None
    """[N]: number of each image's domain in `domains`; None: images as they are."""
    domains: tuple[Domain, ...] = ()

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the decoded tensor: images, channels, height, width."""
        return len(self), 3, self.size, self.size

    def take(self, numbers: Sequence[int]) -> "LazyImages":
        own = None if self.domain_of is None else self.domain_of[list(numbers)]
        return replace(self, encoded=self.encoded.take(numbers), domain_of=own)

    def stream(self, batches: Sequence[Tensor], windows: RandomWindows | None = None) -> Iterator[Tensor]:
        """The pixels of each batch of image numbers, uint8 [B, 3, size, size]: random windows, or the test view."""
        numbers = [batch.tolist() for batch in batches]
        pieces = [batch[at : at + PIECE] for batch in numbers for at in range(0, len(batch), PIECE)]
        piece = DecodePiece(self.encoded, self.size, windows, self.central_share)
        decoded = in_order(piece, pieces, workers=self.workers)
        for batch in numbers:
            parts = [next(decoded) for _ in range(0, len(batch), PIECE)]
            pixels = torch.cat(parts) if parts else torch.empty((0, 3, self.size, self.size), dtype=torch.uint8)
            yield pixels if self.domain_of is None else shifted(pixels, self.domain_of[batch], self.domains)


@dataclass(frozen=True)
class DecodePiece:
    """Image numbers → uint8 [B, 3, size, size]; the function of the workers."""

    encoded: Encoded
    size: int
    windows: RandomWindows | None
    central_share: float

    def __call__(self, numbers: list[int]) -> Tensor:
        pixels = np.empty((len(numbers), self.size, self.size, 3), np.uint8)
        with careful_pillow():
            for place, number in enumerate(numbers):
                data, name = self.encoded.read(number), self.encoded.name(number)
                pixels[place] = decode(data, name, self.size, partial(self._box, number))
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()

    def _box(self, number: int, width: int, height: int) -> Box:
        if self.windows is None:
            return centre_box(width, height, zoom=1 / self.central_share)
        return self.windows.box(number, width, height)


@dataclass(frozen=True)
class ImageSet:
    """Images of one size with the source's class numbers: pixels in memory, or decoded on demand."""

    images: Tensor | LazyImages  # uint8 [N, C, H, W], or vectors [N, D]
    labels: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height, width; of vectors the dimension alone."""
        return tuple(self.images.shape[1:])

    def identity(self) -> str:
        """A digest of the pixels, or of names, sizes and modification times of the files and a non-default test
        view."""
        if isinstance(self.images, Tensor):
            return hashlib.blake2b(self.images.contiguous().cpu().numpy().data, digest_size=16).hexdigest()
        share, stamp = self.images.central_share, self.images.encoded.stamp()
        stamp = stamp if share == CENTRAL_SHARE else f"{stamp} {share}"
        if self.images.domain_of is None:
            return stamp
        return f"{stamp} {self.images.domains} {hashlib.sha256(bytes(self.images.domain_of.tolist())).hexdigest()}"

    def in_domains(self, domain_of: Tensor, domains: tuple[Domain, ...]) -> "ImageSet":
        """Image i as it looks in the domain `domains[domain_of[i]]`."""
        if isinstance(self.images, Tensor):
            return ImageSet(shifted(self.images, domain_of, domains), self.labels)
        return ImageSet(replace(self.images, domain_of=domain_of, domains=domains), self.labels)

    def take(self, numbers: Tensor) -> "ImageSet":
        """A subset of the images, by number."""
        if isinstance(self.images, Tensor):
            return ImageSet(self.images[numbers], self.labels[numbers])
        return ImageSet(self.images.take(numbers.tolist()), self.labels[numbers])

    def with_central_share(self, central_share: float) -> "ImageSet":
        """With this share of the shorter side as the test view; pixels in memory are unchanged."""
        if isinstance(self.images, Tensor):
            return self
        return replace(self, images=replace(self.images, central_share=central_share))

    def stream(self, batches: Sequence[Tensor], windows: RandomWindows | None = None) -> Iterator[Tensor]:
        """The pixels of each batch of image numbers. `windows` are only for images decoded on demand."""
        if not isinstance(self.images, Tensor):
            return self.images.stream(batches, windows)
        if windows is not None:
            raise ValueError("images in memory are already decoded: crop them as a step of the pipeline")
        images = self.images
        return (images[batch] for batch in batches)


@dataclass(frozen=True)
class Source:
    """A data set, which a scenario splits into tasks."""

    name: str
    class_names: tuple[str, ...]
    train: ImageSet
    test: ImageSet
    mean: tuple[float, ...]
    """Per channel, of pixels scaled to [0, 1]."""
    std: tuple[float, ...]
    published_order: tuple[int, ...] | None = None
    """The class order of the published benchmark, if there is one."""
    warnings: tuple[str, ...] = ()
    """One sentence per problem: counts that differ from the benchmark's, omitted images."""

    @classmethod
    def from_arrays(
        cls, name: str, train: tuple[Any, Any], test: tuple[Any, Any], class_names: Sequence[str] | None = None
    ) -> "Source":
        """A source of images in memory: pairs of images and class numbers from 0.

        Images are arrays or tensors as `IncrementalClassifier.fit` takes them, all of one size. They are normalised by
        the mean and standard deviation of the training images.
        """
        pixels, labels = as_pixels(train[0]), torch.from_numpy(as_labels(train[1])).long()
        tested, answers = as_pixels(test[0]), torch.from_numpy(as_labels(test[1])).long()
        if len(pixels) != len(labels) or len(tested) != len(answers):
            raise UserError(f"'{name}' needs one label for each image")
        low, high = (int(value) for value in torch.cat([labels, answers]).aminmax())
        names = tuple(class_names or map(str, range(high + 1)))
        if low < 0 or high >= len(names):
            raise UserError(f"the labels of '{name}' must be class numbers from 0 to {len(names) - 1}")
        std, mean = torch.std_mean(pixels.transpose(0, 1).flatten(1).double() / 255, dim=1)
        return cls(
            name, names, ImageSet(pixels, labels), ImageSet(tested, answers), tuple(mean.tolist()),
            tuple(std.clamp_min(1e-3).tolist()),
        )  # fmt: skip

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height, width."""
        return self.train.image_shape

    def facts(self) -> Card:
        """Facts about a source that opens quickly."""
        channels, height, width = self.image_shape
        return [
            *counted(self.classes, len(self.train), len(self.test)),
            ("size", f"{height}×{width} {'grey' if channels == 1 else 'colour'}"),
            *(("note", warning) for warning in self.warnings),
        ]

    def with_parts(self, train: ImageSet, test: ImageSet) -> "Source":
        return replace(self, train=train, test=test)


def counted(classes: int, train: int, test: int) -> Card:
    return [("classes", str(classes)), ("images", f"{train} for training, {test} for testing")]


def rank_in_class(labels: Tensor, counts: Tensor) -> Tensor:
    """[N]: the number of images of the same class before each image."""
    by_class = torch.argsort(labels, stable=True)
    starts = torch.cumsum(counts, 0) - counts
    rank = torch.empty_like(labels)
    rank[by_class] = torch.arange(len(labels)) - starts[labels[by_class]]
    return rank


@dataclass(frozen=True)
class SourceEntry(ABC):
    """A source: its description, and how to open and download it."""

    summary: str
    licence: str
    origin: str
    settings: frozenset[str]
    """Source-specific settings that this source uses."""

    @abstractmethod
    def open(self, config: DataConfig) -> Source: ...

    def missing(self, config: DataConfig) -> str | None:
        """None if the data is available, else a sentence with what is missing and how to get it."""
        return None

    def card(self, config: DataConfig) -> Card:
        """Facts about the available data, without slow decoding."""
        return self.open(config).facts()

    def fetch(self, config: DataConfig, on_progress: OnProgress) -> str:
        """Download the data and return its folder."""
        raise UserError(f"'{config.name}' needs no download: {self.origin}")
