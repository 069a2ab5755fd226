"""Batches of one task, augmented on the device. A task's data closes when the task ends."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gatf.data.augment import Pipeline
from gatf.data.sources import ImageSet
from gatf.seeding import generator, key

EVALUATION_BATCH = 512


class Batch:
    """One step's images and labels, with where it stands and a generator for draws inside the loss."""

    __slots__ = ("epoch", "generator", "images", "labels", "step")

    def __init__(self, images: Tensor, labels: Tensor, epoch: int, step: int, generator: torch.Generator) -> None:
        self.images = images  # float32 [B, C, H, W], normalised
        self.labels = labels  # int64 [B], scenario class numbers
        self.epoch = epoch
        self.step = step
        self.generator = generator


@dataclass(frozen=True)
class TaskInfo:
    """What a method is told about a task before it sees any image."""

    index: int
    old: int
    """Classes seen before this task; the task's own are old..seen−1."""
    new: int
    images: int
    """Training images of the task."""

    @property
    def seen(self) -> int:
        return self.old + self.new


class TaskData:
    """The training images of one task. After `close`, any access raises: earlier images are gone, not just unused."""

    def __init__(
        self, info: TaskInfo, images: ImageSet, members: tuple[Tensor, Tensor], *, pipeline: Pipeline, seed: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        indices, labels = members
        self.info = info
        self._images: Tensor | None = images.images[indices].to(device)
        self._labels: Tensor | None = labels.to(device)
        self._pipeline = pipeline
        self._seed = seed
        self._device = device

    def __len__(self) -> int:
        return self.info.images

    def steps(self, batch_size: int, drop_last: bool) -> int:
        """Batches an epoch."""
        size = self.batch_size(batch_size)
        return len(self) // size if drop_last else -(-len(self) // size)

    def batch_size(self, asked: int) -> int:
        """A task smaller than a batch is one batch: dropping it would leave nothing to learn from."""
        return min(asked, len(self))

    def batches(
        self, view: Literal["train", "test"], *, batch_size: int = EVALUATION_BATCH, purpose: str = "", epoch: int = 0,
        start: int = 0, shuffle: bool = False, drop_last: bool = False,
    ) -> Iterator[Batch]:  # fmt: skip
        """Batches of the task. `train` augments, `test` only normalises. Order and augmentation depend on nothing but
        (seed, purpose, task, epoch, step), so `start` can enter an epoch anywhere."""
        images, labels = self._open()
        size = self.batch_size(batch_size)
        order = torch.arange(len(self), device=self._device)
        if shuffle:
            shuffler = generator(self._seed, "shuffle", purpose, self.info.index, epoch)
            order = torch.randperm(len(self), generator=shuffler).to(self._device)
        draws = torch.Generator(self._device)
        for step in range(start, self.steps(size, drop_last)):
            chosen = order[step * size : (step + 1) * size]
            draws.manual_seed(key(self._seed, "batch", purpose, self.info.index, epoch, step))
            pixels = self._pipeline(images[chosen], draws if view == "train" else None)
            yield Batch(pixels, labels[chosen], epoch, step, draws)

    def close(self) -> None:
        """Forget the images."""
        self._images = self._labels = None

    def _open(self) -> tuple[Tensor, Tensor]:
        if self._images is None or self._labels is None:
            raise RuntimeError(
                f"the images of task {self.info.index} are gone: its data closed when the task ended "
                "(exemplar-free methods must keep what they need, not look back)"
            )
        return self._images, self._labels
