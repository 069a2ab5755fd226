"""Fewer training images: a cap, a long tail, a part held out."""

import torch
from torch import Tensor

from gatf.data.base import Source
from gatf.settings import DataConfig


def limit_training(source: Source, config: DataConfig) -> Source:
    """Of each class's training images, in file order, keep the first `max_per_class`, of these what the long tail
    leaves, and hold out the last `val_fraction`; the held-out ones are the test images if `evaluate_on` says so."""
    labels = source.train.labels
    counts = torch.bincount(labels, minlength=source.classes)
    kept = counts if config.max_per_class is None else counts.clamp(max=config.max_per_class)
    if config.imbalance is not None:
        kept = torch.minimum(kept, long_tail(int(kept.max()), source.classes, config.imbalance))
    trained = kept - (kept * config.val_fraction).long()
    if torch.equal(trained, counts):
        return source
    rank = rank_in_class(labels, counts)
    train = source.train.take(torch.nonzero(rank < trained[labels]).squeeze(1))
    if config.evaluate_on == "test":
        return source.with_parts(train, source.test)
    held_out = (rank >= trained[labels]) & (rank < kept[labels])
    return source.with_parts(train, source.train.take(torch.nonzero(held_out).squeeze(1)))


def long_tail(largest: int, classes: int, ratio: float) -> Tensor:
    """[classes]: n·ratio^(−c/(C−1)) images for class c, rounded down, at least one; the first class has n, the last
    n/ratio (Cui et al., CVPR 2019, as in long-tailed class-incremental learning, Liu et al., ECCV 2022)."""
    position = torch.arange(classes, dtype=torch.float64) / max(classes - 1, 1)
    return (largest * ratio**-position + 1e-9).floor().clamp(min=1).long()


def rank_in_class(labels: Tensor, counts: Tensor) -> Tensor:
    """[N]: how many images of the same class come before each image."""
    by_class = torch.argsort(labels, stable=True)
    starts = torch.cumsum(counts, 0) - counts
    rank = torch.empty_like(labels)
    rank[by_class] = torch.arange(len(labels)) - starts[labels[by_class]]
    return rank
