"""Random numbers for the images of a batch.

Processes that share a batch draw for the whole of it and keep the part that is theirs, so that what happens to an image
does not depend on how many processes there are.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class BatchGenerator(torch.Generator):
    """A generator that also knows which images of a batch this process holds: those from `first` on, of `whole`."""

    first: int = 0
    whole: int | None = None
    """None: all of them."""


def rand(shape: Sequence[int], generator: torch.Generator, *, dim: int = 0) -> Tensor:
    """Uniform in [0, 1); dimension `dim` of the shape counts the images at hand."""
    return _own(lambda size: torch.rand(size, generator=generator, device=generator.device), shape, generator, dim)


def randint(high: int, shape: Sequence[int], generator: torch.Generator, *, dim: int = 0) -> Tensor:
    """Whole numbers 0..high−1; dimension `dim` of the shape counts the images at hand."""

    def draw(size: Sequence[int]) -> Tensor:
        return torch.randint(high, tuple(size), generator=generator, device=generator.device)

    return _own(draw, shape, generator, dim)


def _own(draw: Callable[[Sequence[int]], Tensor], shape: Sequence[int], generator: torch.Generator, dim: int) -> Tensor:
    if not isinstance(generator, BatchGenerator) or generator.whole is None:
        return draw(shape)
    whole = list(shape)
    whole[dim] = generator.whole
    return draw(whole).narrow(dim, generator.first, shape[dim])
