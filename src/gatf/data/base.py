"""Labelled images in two parts, in memory or decoded on demand, and how a source describes itself."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gatf.data.decode import CENTRAL_SHARE, Box, RandomWindows, careful_pillow, decode, test_box
from gatf.data.encoded import Encoded
from gatf.data.workers import in_order
from gatf.settings import DataConfig

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

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the decoded tensor: images, channels, height, width."""
        return len(self), 3, self.size, self.size

    def take(self, numbers: Sequence[int]) -> "LazyImages":
        return replace(self, encoded=self.encoded.take(numbers))

    def stream(self, batches: Sequence[Tensor], windows: RandomWindows | None = None) -> Iterator[Tensor]:
        """The pixels of each batch of image numbers, uint8 [B, 3, size, size]: random windows, or the test view."""
        numbers = [batch.tolist() for batch in batches]
        pieces = [batch[at : at + PIECE] for batch in numbers for at in range(0, len(batch), PIECE)]
        piece = DecodePiece(self.encoded, self.size, windows, self.central_share)
        decoded = in_order(piece, pieces, workers=self.workers)
        for batch in numbers:
            parts = [next(decoded) for _ in range(0, len(batch), PIECE)]
            yield torch.cat(parts) if parts else torch.empty((0, 3, self.size, self.size), dtype=torch.uint8)


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
            return test_box(width, height, central_share=self.central_share)
        return self.windows.box(number, width, height)


@dataclass(frozen=True)
class ImageSet:
    """Images of one size with the source's class numbers: pixels in memory, or decoded on demand."""

    images: Tensor | LazyImages  # uint8 [N, C, H, W]
    labels: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def identity(self) -> str:
        """A digest of the pixels, or of names, sizes and modification times of the files and a non-default test
        view."""
        if isinstance(self.images, Tensor):
            return hashlib.blake2b(self.images.contiguous().cpu().numpy().data, digest_size=16).hexdigest()
        share, stamp = self.images.central_share, self.images.encoded.stamp()
        return stamp if share == CENTRAL_SHARE else f"{stamp} {share}"

    def take(self, numbers: Tensor) -> "ImageSet":
        """A subset of the images, by number."""
        if isinstance(self.images, Tensor):
            return ImageSet(self.images[numbers], self.labels[numbers])
        return ImageSet(self.images.take(numbers.tolist()), self.labels[numbers])

    def seen_by(self, central_share: float) -> "ImageSet":
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

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return self.train.image_shape

    def with_parts(self, train: ImageSet, test: ImageSet) -> "Source":
        return replace(self, train=train, test=test)


OnProgress = Callable[[str, int, int], None]
"""Called during a download with a description, the finished and the total number of images."""
Card = list[tuple[str, str]]
"""Pairs of a heading and a line, printed by `gatf data show`."""


@dataclass(frozen=True)
class SourceEntry:
    """A source: its description, and functions that open and download it."""

    summary: str
    licence: str
    origin: str
    open: Callable[[DataConfig], Source]
    missing: Callable[[DataConfig], str | None]
    """None if the data is available, else a sentence with what is missing and how to get it."""
    card: Callable[[DataConfig], Card]
    """Facts about the available data, without slow decoding."""
    fetch: Callable[[DataConfig, OnProgress], str] | None = None
    """Download the data and return its folder; None if there is nothing to download."""
    settings: frozenset[str] = frozenset()
    """Source-specific settings that this source uses."""
