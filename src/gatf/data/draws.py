"""Random numbers for the images of a batch.

Processes that share a batch draw for the whole batch and use their own part, so that the augmentation of an image does
not depend on the number of processes.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class BatchGenerator(torch.Generator):
    """A generator that also stores which images of a batch this process has: those from `first` on, of `whole`."""

    first: int = 0
    whole: int | None = None
    """None: all of them."""


def rand(shape: Sequence[int], generator: torch.Generator, *, dim: int = 0) -> Tensor:
    """Uniform in [0, 1); dimension `dim` of the shape is that of this process's images."""
    return _own(lambda size: torch.rand(size, generator=generator, device=generator.device), shape, generator, dim)


def randint(high: int, shape: Sequence[int], generator: torch.Generator, *, dim: int = 0) -> Tensor:
    """Integers 0..high−1; dimension `dim` of the shape is that of this process's images."""

    def draw(size: Sequence[int]) -> Tensor:
        return torch.randint(high, tuple(size), generator=generator, device=generator.device)

    return _own(draw, shape, generator, dim)


def _own(draw: Callable[[Sequence[int]], Tensor], shape: Sequence[int], generator: torch.Generator, dim: int) -> Tensor:
    if not isinstance(generator, BatchGenerator) or generator.whole is None:
        return draw(shape)
    whole = list(shape)
    whole[dim] = generator.whole
    return draw(whole).narrow(dim, generator.first, shape[dim])
