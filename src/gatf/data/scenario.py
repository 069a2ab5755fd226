"""Class order and tasks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatf.data.augment import Pipeline
from gatf.data.base import ImageSet, Source, rank_in_class
from gatf.data.inputs import labelled_items
from gatf.data.listing import some
from gatf.data.loader import TaskData, TaskInfo
from gatf.data.pixels import stacked
from gatf.errors import UserError, near_misses
from gatf.io.parsing import parse_yaml
from gatf.seeding import generator
from gatf.settings import Domain, ScenarioConfig

WORDS = ("published", "seed", "natural")
"""Class orders with a name; any other text names a file."""


@dataclass(frozen=True)
class Scenario:
    """A source's classes, ordered and split into tasks. Class k of the scenario is class `order[k]` of the source.

    >>> import torch
    >>> from gatf.data.base import Source
    >>> part = torch.zeros(6, 1, 8, 8), [0, 0, 1, 1, 2, 2]
    >>> print(gatf.Scenario(Source.from_arrays("mine", part, part), order=(2, 0, 1), task_sizes=(1, 2)))
    mine: 3 classes in 2 tasks
      task 0: 1 classes (2), 2 training and 2 test images
      task 1: 2 classes (0, 1), 4 training and 4 test images
    """

    source: Source
    order: tuple[int, ...]
    task_sizes: tuple[int, ...]
    """New classes of each task."""
    train_tasks: Tensor | None = None
    """[N]: task of each training image where that is not the task of its class; likewise of test images."""
    test_tasks: Tensor | None = None
    domains: tuple[Domain, ...] = ()
    """Of each task in a domain-incremental scenario."""

    @classmethod
    def from_continuum(cls, train: Iterable[Any], test: Iterable[Any], *, name: str = "continuum") -> "Scenario":
        """A scenario of continuum, or the streams of an Avalanche benchmark: `train` and `test` yield the tasks.

        Each task is a data set of (image, label, …) items, or has one as `dataset`. Every class must be in one task.
        Pass the result to `gatf.run(config, folder, scenario=…)`.

        >>> import numpy as np
        >>> def stream(count):  # continuum.ClassIncremental(…) or benchmark.train_stream
        ...     for first in (0, 2):
        ...         yield [(np.full((8, 8), 20 * label), label) for label in (first, first + 1)] * count
        >>> print(gatf.Scenario.from_continuum(stream(5), stream(1)))
        continuum: 4 classes in 2 tasks
          task 0: 2 classes (0, 1), 10 training and 2 test images
          task 1: 2 classes (2, 3), 10 training and 2 test images
        """
        tasks = [labelled_items(getattr(task, "dataset", task)) for task in train]
        tests = [labelled_items(getattr(task, "dataset", task)) for task in test]
        found = [sorted(set(labels)) for _, labels in tasks]
        classes = [label for labels in found for label in labels]
        if len(set(classes)) < len(classes) or not classes:
            raise UserError("every class must be in exactly one task; scenarios that repeat classes are not supported")
        numbers = {label: number for number, label in enumerate(classes)}

        def part(tasks: list[tuple[list[Any], list[Any]]]) -> tuple[Any, list[int]]:
            pixels = stacked([image for images, _ in tasks for image in images])
            return pixels, [numbers.get(label, -1) for _, labels in tasks for label in labels]

        source = Source.from_arrays(name, part(tasks), part(tests), [str(label) for label in classes])
        return cls(source, tuple(range(len(classes))), tuple(map(len, found)))

    def __len__(self) -> int:
        return len(self.task_sizes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Number of classes that came before each task."""
        return tuple(sum(self.task_sizes[:task]) for task in range(len(self)))

    @property
    def parts(self) -> tuple[ImageSet, ImageSet]:
        """Training and test images."""
        return self.source.train, self.source.test

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.source.class_names[number] for number in self.order)

    def with_tests(self, numbers: Tensor) -> "Scenario":
        """With only these of the test images."""
        train, test = self.parts
        given = None if self.test_tasks is None else self.test_tasks[numbers]
        return replace(self, source=self.source.with_parts(train, test.take(numbers)), test_tasks=given)

    def with_central_share(self, central_share: float) -> "Scenario":
        """With this share of the shorter side of large images as their test view."""
        train, test = (images.with_central_share(central_share) for images in self.parts)
        return replace(self, source=self.source.with_parts(train, test))

    def task_of_class(self) -> Tensor:
        """[classes]: the task each scenario class belongs to."""
        return torch.repeat_interleave(torch.arange(len(self)), torch.tensor(self.task_sizes))

    def labels(self, images: ImageSet) -> Tensor:
        """[N]: scenario class numbers of a set; −1 for classes outside the scenario."""
        lookup = torch.full((self.source.classes,), -1, dtype=torch.int64)
        lookup[list(self.order)] = torch.arange(len(self.order))
        return lookup[images.labels]

    def tasks(self, images: ImageSet) -> Tensor:
        """[N]: the task of each training or test image; −1 outside the scenario."""
        labels = self.labels(images)
        given = self.test_tasks if images is self.source.test else self.train_tasks
        return torch.where(labels < 0, -1, self.task_of_class()[labels] if given is None else given)

    def members(self, images: ImageSet, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Indices and scenario labels of the images of tasks first..last."""
        tasks = self.tasks(images)
        chosen = torch.nonzero((tasks >= first) & (tasks <= last)).squeeze(1)
        return chosen, self.labels(images)[chosen]

    def returning(self, task: int) -> tuple[int, ...]:
        """Numbers of the task's classes that came before it."""
        _, labels = self.members(self.source.train, task, task)
        return tuple(labels[labels < self.offsets[task]].unique().tolist())

    def task_info(self, task: int, *, all_so_far: bool = False) -> TaskInfo:
        """The description of a task for a method; `all_so_far` counts the images of all tasks up to it."""
        members, _ = self.members(self.source.train, 0 if all_so_far else task, task)
        return self._info(task, len(members))

    def _info(self, task: int, images: int) -> TaskInfo:
        return TaskInfo(task, self.offsets[task], self.task_sizes[task], images)

    def task_data(
        self, task: int, pipeline: Pipeline, *, seed: int = 0, device: torch.device | str = "cpu",
        all_so_far: bool = False, features: Tensor | None = None,
    ) -> TaskData:  # fmt: skip
        """The training images of a task, or of every task up to it; `features` of all training images if known."""
        members = self.members(self.source.train, 0 if all_so_far else task, task)
        info = self._info(task, len(members[0]))
        return TaskData(
            info, self.source.train, members, pipeline=pipeline, seed=seed, device=torch.device(device),
            features=features,
        )  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.source.name}: {sum(self.task_sizes)} classes in {len(self)} tasks"]
        for task, (offset, size) in enumerate(zip(self.offsets, self.task_sizes, strict=True)):
            train, test = (len(self.members(part, task, task)[0]) for part in self.parts)
            names = self.class_names[offset : offset + size]
            shown = f"{size} classes ({', '.join(names[:6])}{' …' if size > 6 else ''})"
            if self.domains:
                shown = f"all classes, {self.domains[task]}"
            elif again := len(self.returning(task)):
                shown += f" and {again} returning"
            lines.append(f"  task {task}: {shown}, {train} training and {test} test images")
        return "\n".join(lines)


def build_scenario(source: Source, config: ScenarioConfig, class_order_seed: int) -> Scenario:
    """Order the classes and split them by the config; an error suggests a valid split."""
    order = class_order(source, config, class_order_seed)
    sizes = split_classes(len(order), config)
    if config.stop_after is not None:
        sizes = sizes[: config.stop_after]
    scenario = Scenario(source, order[: sum(sizes)], sizes)
    if config.shots is not None:
        scenario = replace(scenario, source=few_shot(source, scenario.order[sizes[0] :], config.shots))
    if config.returning is not None:
        train, test = scenario.parts
        apart = scenario.source.with_parts(train, replace(test))  # `tasks` distinguishes the parts by their identity
        drawn = returning_tasks(scenario, config.returning, class_order_seed)
        scenario = replace(scenario, source=apart, train_tasks=drawn)
    if config.domains is not None:
        scenario = domain_incremental(scenario, config.domains[: config.stop_after])
    for part, images in (("training", source.train), ("test", source.test)):
        counts = torch.bincount(images.labels, minlength=source.classes)
        empty = [source.class_names[number] for number in scenario.order if counts[number] == 0]
        if empty:
            raise UserError(
                f"class {some(empty)} of '{source.name}' has no {part} images; add some, or leave the class out of "
                "scenario.order"
            )
    return scenario


def few_shot(source: Source, classes: Sequence[int], shots: int) -> Source:
    """With at most `shots` training images of each of these classes, the first ones in file order."""
    labels = source.train.labels
    counts = torch.bincount(labels, minlength=source.classes)
    kept = counts.clone()
    kept[list(classes)] = counts[list(classes)].clamp(max=shots)
    chosen = torch.nonzero(rank_in_class(labels, counts) < kept[labels]).squeeze(1)
    return source.with_parts(source.train.take(chosen), source.test)


def returning_tasks(scenario: Scenario, share: float, seed: int) -> Tensor:
    """[N]: the task of each training image if this share of the classes before the last task returns.

    The first half of a returning class's images, in file order, stays in its own task. The others are dealt to the
    later tasks in turn. i-Blurry (Koh et al., ICLR 2022) also lets classes come early, which has no meaning here: the
    task that brings a class first is its own.
    """
    train, last = scenario.source.train, len(scenario) - 1
    own, labels = scenario.task_of_class(), scenario.labels(train)
    candidates = torch.nonzero(own < last)[:, 0]
    drawn = torch.randperm(len(candidates), generator=generator(seed, "returning"))
    again = torch.zeros(len(own), dtype=torch.bool)
    again[candidates[drawn[: round(share * len(candidates))]]] = True
    counts = torch.bincount(train.labels, minlength=scenario.source.classes)
    rank, stay, task = rank_in_class(train.labels, counts), (counts[train.labels] + 1) // 2, own[labels]
    later = task + 1 + (rank - stay) % (last - task).clamp(min=1)
    return torch.where(again[labels] & (rank >= stay), later, task)


def domain_incremental(scenario: Scenario, names: tuple[Domain, ...]) -> Scenario:
    """Every task has all classes: a part of each class's training images, and all test images, in the task's domain."""
    train, test = scenario.parts
    counts = torch.bincount(train.labels, minlength=scenario.source.classes)
    train_tasks = rank_in_class(train.labels, counts) % len(names)
    copies = torch.arange(len(test)).repeat(len(names))
    test_tasks = torch.arange(len(names)).repeat_interleave(len(test))
    source = scenario.source.with_parts(
        train.in_domains(train_tasks, names), test.take(copies).in_domains(test_tasks, names)
    )
    sizes = (len(scenario.order),) + (0,) * (len(names) - 1)
    return Scenario(source, scenario.order, sizes, train_tasks, test_tasks, names)


def class_order(source: Source, config: ScenarioConfig, class_order_seed: int) -> tuple[int, ...]:
    """Class numbers of the source in the order in which they are learnt."""
    if isinstance(config.order, tuple):
        return class_numbers(config.order, source, "scenario.order")
    if config.order == "natural":
        return tuple(range(source.classes))
    if config.order == "published" and source.published_order is not None:
        return source.published_order
    if config.order not in WORDS:
        return class_numbers(read_order(config.order), source, config.order)
    if class_order_seed >= 2**32:
        raise UserError(
            f"a class order can be drawn from a seed of at most {2**32 - 1}, not {class_order_seed} (class_order_seed, "
            "or seed where that is null)"
        )
    # NumPy's legacy generator is what the published orders are drawn with
    return tuple(int(number) for number in np.random.RandomState(class_order_seed).permutation(source.classes))


def class_numbers(items: Sequence[object], source: Source, origin: str) -> tuple[int, ...]:
    """A list of class names or numbers as numbers. A word is a name if the source has such a class, else a number."""
    by_name = {name: number for number, name in enumerate(source.class_names)}
    order: list[int] = []
    for item in items:
        number = by_name.get(item) if isinstance(item, str) else None
        if number is None and str(item).isdecimal():
            number = int(str(item))
        if number is None or number >= source.classes:
            hint = near_misses(str(item), source.class_names) if isinstance(item, str) and source.classes < 1000 else ""
            raise UserError(
                f"{origin} lists {item!r}, which is no class of '{source.name}': give numbers from 0 to "
                f"{source.classes - 1} or names{hint}"
            )
        order.append(number)
    if len(set(order)) < len(order) or not order:
        raise UserError(f"{origin} must list at least one class, each at most once")
    return tuple(order)


def read_order(file: str) -> list[Any]:
    """The classes in a file: one per line, or in formats of other frameworks: a list in brackets (PyCIL, FACIL),
    numbers in one line, a YAML list, or a YAML mapping with `class_order` (continuum)."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise UserError(
            f"scenario.order '{file}' is not a file nor one of {', '.join(WORDS)}{near_misses(file, WORDS)}"
        )
    try:
        text = path.read_text(encoding="utf-8")
        structured = path.suffix in (".yaml", ".yml", ".json") or text.lstrip().startswith("[")
        loaded = parse_yaml(text) if structured else _words(text)
    except (OSError, ValueError) as error:
        raise UserError(f"the class order {file} cannot be read: {error}") from None
    if isinstance(loaded, dict):
        loaded = loaded.get("class_order")
    if not isinstance(loaded, list):
        raise UserError(f"the class order {file} must be a list of class numbers or names, or have one as class_order")
    if all(isinstance(line, str) for line in loaded):
        return [line.strip() for line in loaded if line.strip() and not line.startswith("#")]
    return loaded


def _words(text: str) -> list[str]:
    """The lines; if the file has only numbers, every number."""
    words = text.replace(",", " ").split()
    return words if words and all(word.isdecimal() for word in words) else text.splitlines()


def split_classes(classes: int, config: ScenarioConfig) -> tuple[int, ...]:
    """Classes per task; in an uneven split the earlier tasks have one class more."""
    if config.domains is not None:
        return (classes,)
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
