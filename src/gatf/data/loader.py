"""Batches of one task, augmented on the device. A task's data closes when the task ends."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gatf import distributed
from gatf.data.augment import Pipeline, ResizedCrop
from gatf.data.base import ImageSet
from gatf.data.decode import SMALL, RandomWindows
from gatf.data.draws import BatchGenerator
from gatf.devices import upload
from gatf.errors import UserError
from gatf.seeding import generator, key

EVALUATION_BATCH, LARGE_BATCH = 256, 64
"""Images per batch where nothing is trained: enough for an accelerator, and layers of small images still fit a cache.
Above `SMALL` pixels an image is a dozen times as large, so there are fewer."""

Order = Callable[[Tensor, torch.Generator], Tensor]
"""Labels [N] of a task and a generator → numbers of the images an epoch visits, in order. The labels alone decide how
many they are."""


def shuffled(labels: Tensor, draws: torch.Generator) -> Tensor:
    """Every image once, in random order."""
    return torch.randperm(len(labels), generator=draws)


def everything(count: int) -> slice:
    """All of a batch."""
    return slice(0, count)


@dataclass(slots=True, eq=False)
class Batch:
    """One step's images and labels, with its position in training and a generator for draws inside the loss.

    The generator is on the CPU, wherever the images are, so that the draws are the same on every device; `upload`
    brings them there. If processes share a batch, each has its own generator, and `images` are its part.
    """

    images: Tensor
    """float32 [B, C, H, W], normalised."""
    labels: Tensor
    """int64 [B], scenario class numbers."""
    epoch: int
    step: int
    generator: torch.Generator
    whole: int = 0
    """Images of all processes."""
    warming_up: bool = False
    """Whether the backbone is not to learn yet."""

    def __post_init__(self) -> None:
        self.whole = self.whole or len(self.images)

    @property
    def weight(self) -> float:
        """What this process's mean loss is multiplied by, so that the mean over processes is that over all images."""
        return distributed.world() * len(self.images) / self.whole if self.whole >= distributed.world() else 1.0


@dataclass(frozen=True)
class TaskInfo:
    """The description of a task that a method gets before its images."""

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
    """The training images of one task. After `close`, any access raises, which enforces exemplar-free learning."""

    def __init__(
        self, info: TaskInfo, images: ImageSet, members: tuple[Tensor, Tensor], *, pipeline: Pipeline, seed: int,
        device: torch.device, features: Tensor | None = None,
    ) -> None:  # fmt: skip
        """`features` [all images, S]: what a network that is not trained makes of the images, where that is known."""
        indices, labels = members
        self.info = info
        taken = images.take(indices).images
        self._images: ImageSet | None = ImageSet(
            taken.to(device) if isinstance(taken, Tensor) else taken, labels.to(device)
        )
        self._features = None if features is None else features[indices].to(device)
        self._window, self._pipeline = split_pipeline(images, pipeline)
        self._seed = seed
        self._device = device
        self.extracted: Callable[[int, int], None] = lambda images, of: None
        """Called with the images done and in total while features are extracted without training."""

    def __len__(self) -> int:
        return self.info.images

    def steps(self, batch_size: int, drop_last: bool, order: Order | None = None) -> int:
        """Batches an epoch."""
        images = len(self) if order is None else len(self._visited(order, torch.Generator()))
        return _steps(images, batch_size, drop_last)

    @property
    def forward_batch_size(self) -> int:
        """Images per batch where nothing is trained."""
        return forward_batch_size(self._open())

    def known_features(self) -> tuple[Tensor, Tensor] | None:
        """Features [N, S] of the plain images, and their labels [N]; None where the network has to be asked."""
        labels = self._open().labels
        return None if self._features is None else (self._features, labels)

    def _visited(self, order: Order, draws: torch.Generator) -> Tensor:
        return order(self._open().labels.cpu(), draws)

    def batches(
        self, view: Literal["train", "test"], *, batch_size: int = EVALUATION_BATCH, purpose: str = "", epoch: int = 0,
        start: int = 0, order: Order | None = None, drop_last: bool = False,
        part: Callable[[int], slice] = everything,
    ) -> Iterator[Batch]:  # fmt: skip
        """Batches of the task, as stored or in a random `order`. `train` augments, `test` only normalises. Order and
        augmentation depend only on (seed, purpose, task, epoch, step), so `start` can be any step of an epoch.

        Processes of a run may share each batch: `part` maps its number of images to this process's share
        (`distributed.part`, `distributed.part_of_step`).
        """
        visited = torch.arange(len(self))
        if order is not None:
            visited = self._visited(order, generator(self._seed, "shuffle", purpose, self.info.index, epoch))
        steps = range(start, _steps(len(visited), batch_size, drop_last))
        here = upload(visited, self._device)
        chosen = [here[step * batch_size : (step + 1) * batch_size] for step in steps]
        parts = [part(len(numbers)) for numbers in chosen]
        if isinstance(self._open().images, Tensor):
            own = [numbers[rows] for numbers, rows in zip(chosen, parts, strict=True)]
        else:  # decoded on the CPU, which must not read the numbers back from the device
            own = [visited[step * batch_size :][rows] for step, rows in zip(steps, parts, strict=True)]
        windows = None
        if view == "train" and self._window is not None:
            scale = self._window.smallest, self._window.largest
            windows = RandomWindows(scale, (self._seed, "decode", purpose, self.info.index, epoch))
        pixels = self._open().stream(own, windows)
        for step, numbers, rows, loaded in zip(steps, chosen, parts, pixels, strict=True):
            labels = self._open().labels[numbers[rows]]  # closing ends iterators that are under way, too
            seed = key(self._seed, "batch", purpose, self.info.index, epoch, step)
            draws = BatchGenerator()
            draws.manual_seed(seed)
            draws.first, draws.whole = rows.start, len(numbers)
            images = self._pipeline(upload(loaded, self._device), draws if view == "train" else None)
            draws.whole = None
            shared = len(labels) < len(numbers)
            for_loss = generator(seed, "rank", distributed.rank()) if shared else draws
            yield Batch(images, labels, epoch, step, for_loss, len(numbers))

    def close(self) -> None:
        """Delete the references to images and features."""
        self._images = self._features = None

    def _open(self) -> ImageSet:
        if self._images is None:
            raise RuntimeError(
                f"the images of task {self.info.index} are deleted: its data closed when the task ended "
                "(exemplar-free methods must keep what they need, not look back)"
            )
        return self._images


def _steps(images: int, batch_size: int, drop_last: bool) -> int:
    """Number of batches. Fewer images than a batch are one batch even with `drop_last`."""
    return max(1, images // batch_size) if drop_last else -(-images // batch_size)


def forward_batch_size(images: ImageSet) -> int:
    """Images per batch where nothing is trained, by their size."""
    shape = images.image_shape
    return EVALUATION_BATCH if len(shape) == 1 or shape[1] <= SMALL else LARGE_BATCH


def views(images: ImageSet, members: Tensor, pipeline: Pipeline, device: torch.device) -> Iterator[Tensor]:
    """The network's input for these images in a test: normalised, not augmented, in order, in batches."""
    for pixels in images.stream(members.split(forward_batch_size(images))):
        yield pipeline(upload(pixels, device), None)


def split_pipeline(images: ImageSet, pipeline: Pipeline) -> tuple[ResizedCrop | None, Pipeline]:
    """What is done to training images where they are decoded, and what is done to batches afterwards.

    Of large images only the window that a resized crop chooses is decoded to full size, so it must come first.
    """
    if isinstance(images.images, Tensor):
        return None, pipeline
    size = images.image_shape[1]
    first, rest = pipeline.steps[:1], pipeline.steps[1:]
    crop = first[0] if first and isinstance(first[0], ResizedCrop) else None
    misplaced = [step for step in (rest if crop else pipeline.steps) if isinstance(step, ResizedCrop)]
    if misplaced or (crop is not None and crop.size != size):
        raise UserError(
            f"data.augment must begin with resized_crop:{size}, or have no resized_crop, for images decoded on the fly "
            f"at {size} pixels (data.image_size)"
        )
    return (crop, replace(pipeline, steps=rest)) if crop else (None, pipeline)
