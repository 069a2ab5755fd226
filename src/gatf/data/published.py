"""Class orders and lists that publications fix, with the digest each must have."""

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

import numpy as np

CIFAR100_ORDER_SEED = 1993
CIFAR100_ORDER_SHA256 = "?"
IMAGENET100_SHA256 = "?"


def list_digest(items: Iterable[object]) -> str:
    """SHA-256 of the items, one a line."""
    return hashlib.sha256("".join(f"{item}\n" for item in items).encode()).hexdigest()


@cache
def cifar100_order() -> tuple[int, ...]:
    """The permutation of iCaRL's successors: NumPy's legacy generator seeded 1993, permuting 100."""
    order = tuple(int(number) for number in np.random.RandomState(CIFAR100_ORDER_SEED).permutation(100))
    return _verified(order, CIFAR100_ORDER_SHA256, "CIFAR-100's published class order")


@cache
def imagenet100_wnids() -> tuple[str, ...]:
    """ImageNet-100's classes, in order: the list of "Contrastive Multiview Coding" (Tian et al., 2020; imagenet100.txt
    of its repository), which is also the label order of the hub's clane9/imagenet-100."""
    text = files("gatf.data").joinpath("lists/imagenet100.txt").read_text(encoding="utf-8")
    return _verified(tuple(text.split()), IMAGENET100_SHA256, "the list of ImageNet-100's classes")


def _verified[Item](items: tuple[Item, ...], sha256: str, what: str) -> tuple[Item, ...]:
    if list_digest(items) != sha256:
        raise RuntimeError(f"{what} is not the recorded one: this installation of gatf is damaged")
    return items
