"""Feature extraction: forward passes over a task's images, class means, and buffers that grow with the classes."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gatf import distributed
from gatf.geometry.moments import Moments, PairedMoments
from gatf.methods.base import TaskData, shuffled
from gatf.nets.base import freeze_batch_norm
from gatf.nets.folding import folded


def frozen_features(net: nn.Module, images: Tensor) -> Tensor:
    """What a frozen network makes of images, as a constant of the loss."""
    with torch.inference_mode():
        features = net(images)
    return features.clone()  # an ordinary tensor, which autograd may keep


def training_mode(*modules: nn.Module, fix_bn: bool) -> Callable[[], None]:
    """What a phase calls to put its networks into train mode, batch-norm left in eval mode if asked."""

    def enter() -> None:
        for module in modules:
            module.train()
            if fix_bn:
                freeze_batch_norm(module)

    return enter


@torch.no_grad()
def own_features(net: nn.Module, data: TaskData, *, mirror: bool = False) -> tuple[Tensor, Tensor]:
    """Features [N, S] and labels [N] of this process's share of a task's images under the test transform, `net` in
    eval mode. With `mirror` the horizontally flipped images follow the plain ones. Features that the data knows,
    because no task trains the backbone, are not computed again."""
    known = None if mirror else data.known_features()
    if known is not None:
        return known
    net = folded(net.eval())
    features, labels = [], []
    flips = (False, True) if mirror else (False,)
    seen, images = 0, len(flips) * len(data)
    data.extracted(seen, images)
    for flip in flips:
        for batch in data.batches("test", batch_size=data.forward_batch_size, part=distributed.part):
            features.append(net(batch.images.flip(-1) if flip else batch.images))
            labels.append(batch.labels)
            seen += batch.whole
            data.extracted(seen, images)
    return torch.cat(features), torch.cat(labels)


AnyMoments = TypeVar("AnyMoments", Moments, PairedMoments)


def of_all_processes(own: AnyMoments) -> AnyMoments:
    """Moments of the vectors of all processes, from each one's own."""
    return own.over(distributed.total) if distributed.world() > 1 else own


def extract(net: nn.Module, data: TaskData, *, mirror: bool = False) -> tuple[Tensor, Tensor]:
    """`own_features` of all processes: every image of the task once (and once mirrored)."""
    features, labels = own_features(net, data, mirror=mirror)
    return distributed.gather_rows(features), distributed.gather_rows(labels)


@torch.no_grad()
def class_means(features: Tensor, labels: Tensor, *, classes: int) -> Tensor:
    """Mean feature of every class, float64 [classes, S]: features [N, S], labels [N] in 0..classes−1, none empty.

    A product with the one-hot labels, so that sums are added in the same order on every run and device.
    """
    members = nn.functional.one_hot(labels, classes).double()  # [N, classes]
    return members.T @ features.double() / members.sum(0)[:, None]


@torch.no_grad()
def feature_pairs(
    teacher: nn.Module, student: nn.Module, data: TaskData, *, batch_size: int, purpose: str, epoch: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """(old, new) features of the same augmented images, both networks in eval mode; this process's part of an epoch."""
    student = folded(student.eval())
    for batch in data.batches(
        "train", batch_size=batch_size, purpose=purpose, epoch=epoch, order=shuffled, part=distributed.part
    ):
        yield teacher(batch.images), student(batch.images)


class Growing(nn.Module):
    """A module whose buffers take whatever shape a loaded state has."""

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        for name, buffer in self._buffers.items():
            loaded = state_dict.get(prefix + name)
            if buffer is not None and loaded is not None and loaded.shape != buffer.shape:
                self._buffers[name] = buffer.new_empty(loaded.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)
