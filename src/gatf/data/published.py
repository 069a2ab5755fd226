"""Class orders and lists that publications fix."""

from functools import cache
from importlib.resources import files

import numpy as np

CIFAR100_ORDER_SEED = 1993
IMAGENET100 = {"adagauss": "AdaGauss's", "cmc": "CMC's"}
"""Lists of ImageNet-100's classes by name, and whose they are. The first is the default."""


@cache
def cifar100_order() -> tuple[int, ...]:
    """The permutation of iCaRL's successors: NumPy's legacy generator seeded 1993, permuting 100."""
    return tuple(int(number) for number in np.random.RandomState(CIFAR100_ORDER_SEED).permutation(100))


@cache
def imagenet100_wnids(name: str = "adagauss") -> tuple[str, ...]:
    """ImageNet-100's classes, in published order.

    `adagauss`: of ImageNet's 1000 sorted wnids, permuted by NumPy's legacy generator seeded 1993, the first 100; their
    order is these 100 sorted and permuted likewise, as CIFAR-100's classes are. It is `imagenet_subset_kaggle` in
    AdaGauss's and GATF's releases, and the folder seed_1993_subset_100_imagenet of other class-incremental releases.
    `cmc`: "Contrastive Multiview Coding" (Tian et al., 2020; imagenet100.txt of its repository), in its order, which is
    also the label order of the hub's clane9/imagenet-100.
    """
    wnids = tuple(files("gatf.data").joinpath(f"lists/imagenet100-{name}.txt").read_text(encoding="utf-8").split())
    return tuple(wnids[number] for number in cifar100_order()) if name == "adagauss" else wnids
