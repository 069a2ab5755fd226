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
IMAGENET100 = {"adagauss": "AdaGauss's", "cmc": "CMC's"}
"""Lists of ImageNet-100's classes by name, and whose they are. The first is the default."""
IMAGENET100_SHA256 = {
    "adagauss": "bbfc1ad00af3270b8a99afd7d8542caf909c1d52820b6dbad6a50b9b20d7e340",
    "cmc": "79f3f1552ccc478ce24bd934b4573625db584ddc1f4643ae23c994a94cb11397",
}
"""Digests of the shipped lists: AdaGauss's sorted, CMC's in its own order."""
ADAGAUSS_ORDER_SHA256 = "451c586a78df3fc4e6a762ebb56b0b45fc25b5a498e1c038c4bae0acda89f98e"
"""Of AdaGauss's list in the order in which the classes are learnt."""


def list_digest(items: Iterable[object]) -> str:
    """SHA-256 of the items, one per line."""
    return hashlib.sha256("".join(f"{item}\n" for item in items).encode()).hexdigest()


@cache
def cifar100_order() -> tuple[int, ...]:
    """The permutation of iCaRL's successors: NumPy's legacy generator seeded 1993, permuting 100."""
    order = tuple(int(number) for number in np.random.RandomState(CIFAR100_ORDER_SEED).permutation(100))
    return _verified(order, CIFAR100_ORDER_SHA256, "CIFAR-100's published class order")


@cache
def imagenet100_wnids(name: str = "adagauss") -> tuple[str, ...]:
    """ImageNet-100's classes, in published order.

    `adagauss`: of ImageNet's 1000 sorted wnids, permuted by NumPy's legacy generator seeded 1993, the first 100; their
    order is these 100 sorted and permuted likewise, as CIFAR-100's classes are. It is `imagenet_subset_kaggle` in
    AdaGauss's and GATF's releases, and the folder seed_1993_subset_100_imagenet of other class-incremental releases.
    `cmc`: "Contrastive Multiview Coding" (Tian et al., 2020; imagenet100.txt of its repository), in its order, which is
    also the label order of the hub's clane9/imagenet-100.
    """
    text = files("gatf.data").joinpath(f"lists/imagenet100-{name}.txt").read_text(encoding="utf-8")
    wnids = _verified(tuple(text.split()), IMAGENET100_SHA256[name], "the list of ImageNet-100's classes")
    if name == "adagauss":
        ordered = tuple(wnids[number] for number in cifar100_order())
        return _verified(ordered, ADAGAUSS_ORDER_SHA256, "the order of ImageNet-100's classes")
    return wnids


def _verified(items: tuple[Item, ...], sha256: str, what: str) -> tuple[Item, ...]:
    if list_digest(items) != sha256:
        raise RuntimeError(f"{what} is not the recorded one: this installation of gatf is damaged")
    return items
