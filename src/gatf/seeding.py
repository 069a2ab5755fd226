"""Every random draw comes from a generator keyed by its purpose: runs repeat, and resume, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def key(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that depends on the run's seed and on the words and numbers that name the purpose."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A fresh generator for one purpose, e.g. `generator(seed, "shuffle", task, epoch)`."""
    import torch  # not at the top: reading images needs keys, and no torch

    return torch.Generator().manual_seed(key(seed, *purpose))


@contextmanager
def keyed_init(seed: int, *purpose: str | int) -> Iterator[None]:
    """Inside, PyTorch's global generator, which module constructors draw weights from, is keyed; outside, untouched."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, *purpose))
        yield
