"""Images too large to keep in memory: decoded, cropped and resized when they are wanted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gatf.data.decode import CENTRAL_SHARE, Box, RandomWindows, careful_pillow, decode, test_box
from gatf.data.encoded import Encoded
from gatf.data.workers import in_order

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
