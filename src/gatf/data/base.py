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
"""Images a worker decodes at a time: all workers share a batch, and little waits in memory."""


@dataclass(frozen=True)
class LazyImages:
    """RGB images that are size × size once decoded."""

    encoded: Encoded
    size: int
    workers: int = 0
    central_share: float = CENTRAL_SHARE
    """Of the shorter side, what is seen where no random window is cut."""

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """As of the tensor this stands for: images, channels, height, width."""
        return len(self), 3, self.size, self.size

    def take(self, numbers: Sequence[int]) -> "LazyImages":
        return replace(self, encoded=self.encoded.take(numbers))

    def stream(self, batches: Sequence[Tensor], windows: RandomWindows | None = None) -> Iterator[Tensor]:
        """For each batch of image numbers, uint8 [B, 3, size, size]: random windows, or the centre for testing."""
        numbers = [batch.tolist() for batch in batches]
        pieces = [batch[at : at + PIECE] for batch in numbers for at in range(0, len(batch), PIECE)]
        piece = DecodePiece(self.encoded, self.size, windows, self.central_share)
        decoded = in_order(piece, pieces, workers=self.workers)
        for batch in numbers:
            parts = [next(decoded) for _ in range(0, len(batch), PIECE)]
            yield torch.cat(parts) if parts else torch.empty((0, 3, self.size, self.size), dtype=torch.uint8)


@dataclass(frozen=True)
class DecodePiece:
    """Image numbers → uint8 [B, 3, size, size]; what the workers run."""

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
    """Images of one size with the source's own class numbers: pixels in memory, or decoded when they are wanted."""

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
        """A digest of the images: of their pixels, or of names, sizes and times of change of the files they are in,
        with the share of them that is seen where that is not the usual one."""
        if isinstance(self.images, Tensor):
            return hashlib.blake2b(self.images.contiguous().cpu().numpy().data, digest_size=16).hexdigest()
        share, stamp = self.images.central_share, self.images.encoded.stamp()
        return stamp if share == CENTRAL_SHARE else f"{stamp} {share}"

    def take(self, numbers: Tensor) -> "ImageSet":
        """Some of the images, by number, with their pixels or the places where those lie."""
        if isinstance(self.images, Tensor):
            return ImageSet(self.images[numbers], self.labels[numbers])
        return ImageSet(self.images.take(numbers.tolist()), self.labels[numbers])

    def seen_by(self, central_share: float) -> "ImageSet":
        """With this share of the shorter side as the test view; pixels in memory are as they are."""
        if isinstance(self.images, Tensor):
            return self
        return replace(self, images=replace(self.images, central_share=central_share))

    def stream(self, batches: Sequence[Tensor], windows: RandomWindows | None = None) -> Iterator[Tensor]:
        """The pixels of each batch of image numbers. `windows` are cut while decoding: pixels in memory have none."""
        if not isinstance(self.images, Tensor):
            return self.images.stream(batches, windows)
        if windows is not None:
            raise ValueError("images in memory are already decoded: crop them as a step of the pipeline")
        images = self.images
        return (images[batch] for batch in batches)


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
    warnings: tuple[str, ...] = ()
    """What is off about the data, a sentence each: counts that differ from the benchmark's, images left out."""

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
"""Called while a source is fetched: what is under way, how much of it is done, how much there is."""
Card = list[tuple[str, str]]
"""What `gatf data show` prints: pairs of a heading and a line."""


@dataclass(frozen=True)
class SourceEntry:
    """What `gatf data` prints of a source, how it is opened and how it is fetched."""

    summary: str
    licence: str
    origin: str
    open: Callable[[DataConfig], Source]
    missing: Callable[[DataConfig], str | None]
    """None when the data is at hand, else one sentence that says what is missing and how to get it."""
    card: Callable[[DataConfig], Card]
    """What is known of the data at hand, without decoding it where that would take long."""
    fetch: Callable[[DataConfig, OnProgress], str] | None = None
    """Download, and return the folder; None where there is nothing to download."""
    settings: frozenset[str] = frozenset()
    """Of the settings that only some sources have a use for, those that change this one."""
