"""Triplets of images: batches that hold them, the loss over them, how far embeddings went (Yu et al., CVPR 2020)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gatf import distributed
from gatf.devices import upload
from gatf.errors import UserError
from gatf.methods.base import Batch
from gatf.settings import OptimisationConfig

Triplets = Literal["random", "official", "hard"]
LwfLoss = Literal["squared", "norm"]


@dataclass(frozen=True)
class ClassBalanced:
    """An order of visits for batches of whole classes: `per_class` random images of each class of the task, once an
    epoch, the classes in random order. A class with fewer images is drawn from with replacement; classes that do not
    fill a batch are left out, unless there are no others."""

    per_class: int
    classes: int
    """Classes in a batch."""

    def __call__(self, labels: Tensor, draws: torch.Generator) -> Tensor:
        _, numbers, counts = labels.unique(return_inverse=True, return_counts=True)
        mixed = torch.randperm(len(labels), generator=draws)
        by_class = mixed[numbers[mixed].argsort(stable=True)]  # class after class, each in random order
        again = (torch.rand(len(counts), self.per_class, generator=draws) * counts[:, None]).long()
        few = counts[:, None] < self.per_class
        picks = torch.where(few, again, torch.arange(self.per_class))  # [classes, per_class]
        chosen = by_class[(counts.cumsum(0) - counts)[:, None] + picks]
        kept = len(counts) if len(counts) < self.classes else len(counts) // self.classes * self.classes
        return chosen[torch.randperm(len(counts), generator=draws)[:kept]].flatten()


def check_class_batches(optimisation: OptimisationConfig, per_class: int) -> None:
    """Batches are made of whole classes, at least two of them."""
    for name, stage in (("first", optimisation.first), ("next", optimisation.next)):
        if stage.batch_size % per_class or stage.batch_size < 2 * per_class:
            raise UserError(
                f"optimisation.{name}.batch_size is {stage.batch_size}, but base triplet makes batches of {per_class} "
                f"images (method.base.images_per_class) of each of at least two classes: use a multiple of "
                f"{per_class}, at least {2 * per_class} (32 in the paper)"
            )


def distances(embeddings: Tensor) -> Tensor:
    """Euclidean distances between all rows, [B, D] → [B, B]; squares are clamped at 1e-12 before the root, whose
    derivative at 0 is infinite."""
    squares = embeddings.square().sum(dim=1)
    return (squares[:, None] + squares - 2 * embeddings @ embeddings.T).clamp_min(1e-12).sqrt()


def triplet_loss(
    embeddings: Tensor, labels: Tensor, *, rule: Triplets, margin: float, per_class: int, draws: torch.Generator,
    anchors: slice = slice(None),
) -> Tensor:  # fmt: skip
    """Mean over triplets of max(0, d(a, p) − d(a, n) + margin), d Euclidean: embeddings [B, D], labels [B].

    "random": every pair of an image and another of its class, each with a random image of another class. "hard": for
    each image the farthest of its class and the nearest of another (the release's loss for CUB, Flowers and Cars).
    "official": the release's loss for CIFAR-100 and ImageNet-Subset, which takes the 2nd to m-th image of the class in
    the batch, often the anchor itself, and the 2nd to m-th of other classes. A batch of one class has no triplet: 0.
    Only rows `anchors` are anchors; positives and negatives come from all.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        apart = distances(_precise(embeddings))[anchors]  # [A, B]
        same = labels[anchors, None] == labels
        other = ~same
        fellow = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)[anchors]
        if rule == "hard":
            positive = apart.masked_fill(~fellow, 0.0).amax(dim=1)
            negative = apart.masked_fill(~other, torch.inf).amin(dim=1)
            real = fellow.any(dim=1) & other.any(dim=1)
        elif rule == "official":
            near, far = (_in_order(members)[:, 1:per_class] for members in (same, other))
            positive, negative = apart.gather(1, near), apart.gather(1, far)
            real = same.gather(1, near) & other.gather(1, far)
        else:
            counts = other.sum(dim=1, keepdim=True)
            drawn = (upload(torch.rand(apart.shape, generator=draws), apart.device) * counts).long()
            positive, negative = apart, apart.gather(1, _in_order(other).gather(1, drawn))  # one for each positive
            real = fellow & (counts > 0)
        hinge = (positive - negative + margin).clamp_min(0)
        return (hinge * real).sum() / real.sum().clamp_min(1)


def batch_triplet_loss(embeddings: Tensor, batch: Batch, *, rule: Triplets, margin: float, per_class: int) -> Tensor:
    """The loss of a batch's embeddings [B, D]; where processes share the batch, of this one's images as anchors among
    the images of all."""
    labels, anchors = batch.labels, slice(None)
    if len(labels) < batch.whole:
        anchors = distributed.part(batch.whole)
        embeddings, labels = _among_all(embeddings, anchors, batch.whole), distributed.gather_rows(labels)
    return triplet_loss(
        embeddings, labels, rule=rule, margin=margin, per_class=per_class, draws=batch.generator, anchors=anchors
    )


def _among_all(rows: Tensor, own: slice, whole: int) -> Tensor:
    """The rows [whole, D] of all processes, of which this one holds `own`; differentiable."""
    before, after = rows.new_zeros(own.start, rows.shape[1]), rows.new_zeros(whole - own.stop, rows.shape[1])
    return distributed.total(torch.cat([before, rows, after]))


def _in_order(members: Tensor) -> Tensor:
    """Columns of each row of a mask [B, B]: first those that are set, in order, then the others."""
    return members.int().argsort(dim=1, descending=True, stable=True)


def embedding_change(new: Tensor, old: Tensor, form: LwfLoss, *, whole: int) -> Tensor:
    """E-LwF of embeddings [B, D], all or some of a batch of `whole` images: ½·Σ_batch ‖e_t − e_{t−1}‖² (the release) or
    the mean of ‖e_t − e_{t−1}‖ (the paper)."""
    change = _precise(new) - _precise(old)
    return 0.5 * whole * change.square().sum(dim=1).mean() if form == "squared" else change.norm(dim=1).mean()


def _precise(embeddings: Tensor) -> Tensor:
    """Embeddings in float32, also where they were computed in less; float64 stays."""
    return embeddings if embeddings.dtype == torch.float64 else embeddings.float()
