"""The order in which classes arrive, cut into tasks."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gatf.data.sources import ImageSet, Source
from gatf.errors import UserError
from gatf.settings import ScenarioConfig


@dataclass(frozen=True)
class Scenario:
    """A source's classes, in order, in tasks. Class number k of the scenario is `order[k]` of the source."""

    source: Source
    order: tuple[int, ...]
    task_sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.task_sizes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Number of classes that came before each task."""
        return tuple(sum(self.task_sizes[:task]) for task in range(len(self)))

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.source.class_names[number] for number in self.order)

    def task_of_class(self) -> Tensor:
        """[classes]: the task each scenario class belongs to."""
        return torch.repeat_interleave(torch.arange(len(self)), torch.tensor(self.task_sizes))

    def labels(self, images: ImageSet) -> Tensor:
        """[N]: scenario class numbers of a set; −1 for classes outside the scenario."""
        lookup = torch.full((self.source.classes,), -1, dtype=torch.int64)
        lookup[list(self.order)] = torch.arange(len(self.order))
        return lookup[images.labels]

    def members(self, images: ImageSet, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Indices and scenario labels of the images of tasks first..last."""
        labels = self.labels(images)
        low, high = self.offsets[first], self.offsets[last] + self.task_sizes[last]
        chosen = torch.nonzero((labels >= low) & (labels < high)).squeeze(1)
        return chosen, labels[chosen]

    def __str__(self) -> str:
        lines = [f"{self.source.name}: {sum(self.task_sizes)} classes in {len(self)} tasks"]
        for task, (offset, size) in enumerate(zip(self.offsets, self.task_sizes, strict=True)):
            train, test = (len(self.members(part, task, task)[0]) for part in (self.source.train, self.source.test))
            names = self.class_names[offset : offset + size]
            shown = ", ".join(names[:6]) + (" …" if size > 6 else "")
            lines.append(f"  task {task}: {size} classes ({shown}), {train} training and {test} test images")
        return "\n".join(lines)


def build_scenario(source: Source, config: ScenarioConfig, class_order_seed: int) -> Scenario:
    """Order the classes and split them as the config says; what cannot be split says what would have worked."""
    order = class_order(source, config, class_order_seed)
    sizes = split_classes(len(order), config)
    if config.stop_after is not None:
        sizes = sizes[: config.stop_after]
    scenario = Scenario(source, order[: sum(sizes)], sizes)
    for part, images in (("training", source.train), ("test", source.test)):
        counts = torch.bincount(images.labels, minlength=source.classes)
        empty = [source.class_names[number] for number in scenario.order if counts[number] == 0]
        if empty:
            raise UserError(f"class {', '.join(empty[:5])} of '{source.name}' has no {part} images")
    return scenario


def class_order(source: Source, config: ScenarioConfig, class_order_seed: int) -> tuple[int, ...]:
    """Class numbers of the source in the order in which they are learnt."""
    if config.order == "natural":
        return tuple(range(source.classes))
    if config.order == "published" and source.published_order is not None:
        return source.published_order
    if isinstance(config.order, tuple):
        wrong = [number for number in config.order if not 0 <= number < source.classes]
        if wrong or len(set(config.order)) < len(config.order):
            raise UserError(f"scenario.order must list class numbers from 0 to {source.classes - 1}, each at most once")
        return config.order
    # NumPy's legacy generator is what the published orders are drawn with
    return tuple(int(number) for number in np.random.RandomState(class_order_seed).permutation(source.classes))


def split_classes(classes: int, config: ScenarioConfig) -> tuple[int, ...]:
    """Sizes of the tasks; where a split is not even, the earlier tasks get one class more."""
    if config.task_sizes is not None:
        if sum(config.task_sizes) > classes:
            raise UserError(f"scenario.task_sizes add up to {sum(config.task_sizes)}, but there are {classes} classes")
        return config.task_sizes
    first = config.first_task_classes
    tasks, rest = (config.tasks, classes) if first is None else (config.tasks - 1, classes - first)
    if rest < tasks or (tasks == 0 and rest > 0):
        at_most = classes if first is None else classes - first + 1
        raise UserError(
            f"{classes} classes cannot be split into {config.tasks} tasks"
            + (f" with {first} in the first" if first is not None else "")
            + f"; use at most {max(at_most, 1)} tasks (--tasks)"
        )
    sizes = tuple(rest // tasks + (task < rest % tasks) for task in range(tasks)) if tasks else ()
    return sizes if first is None else (first, *sizes)
