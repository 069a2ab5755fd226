"""Class orders and lists that publications fix, with the digest each must have."""

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")

CIFAR100_ORDER_SEED = 1993
CIFAR100_ORDER_SHA256 = "3ed9d1df4b73f082597c3a6283ecea3c20dc3424b121e05caf58c56093feacbf"
IMAGENET100_SHA256 = "79f3f1552ccc478ce24bd934b4573625db584ddc1f4643ae23c994a94cb11397"


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


def _verified(items: tuple[Item, ...], sha256: str, what: str) -> tuple[Item, ...]:
    if list_digest(items) != sha256:
        raise RuntimeError(f"{what} is not the recorded one: this installation of gatf is damaged")
    return items
