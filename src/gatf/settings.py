"""The settings of each concern, as strict, frozen models: an unknown key or a bad value fails with the field's name.

`config.RunConfig` puts them together; the modules below it import only the section they need.
"""

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from gatf.errors import UserError, near_misses

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]


class Strict(BaseModel):
    """Frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)


class DataConfig(Strict):
    """Which images, and what is done to them."""

    name: str = "digits"
    """Name of the data source; `gatf data` lists them."""
    root: str | None = None
    """Folder or file of a local copy; nothing is downloaded when it is given."""
    augment: tuple[str, ...] = ()
    """Steps applied to training images, in order, e.g. ["crop:4", "flip"]."""
    max_per_class: PositiveInt | None = None
    """Use only the first so many training images of each class, in file order."""
    val_fraction: Fraction = 0.0
    """Share of each class's training images that is held out and not trained on."""


class ScenarioConfig(Strict):
    """How classes arrive."""

    tasks: PositiveInt = 10
    """Number of tasks the classes are split into, as equally as possible."""
    first_task_classes: PositiveInt | None = None
    """Classes in task 0; the rest is split over the other tasks. Default: an equal share."""
    task_sizes: tuple[PositiveInt, ...] | None = None
    """Classes of every task, in order; replaces `tasks` and `first_task_classes`."""
    order: Literal["published", "seed", "natural"] | tuple[int, ...] = "published"
    """Class order: the data set's published one (drawn from `class_order_seed` where there is none), drawn from the
    seed, as stored, or a list of class numbers."""
    stop_after: PositiveInt | None = None
    """Stop after so many tasks."""


class BackboneConfig(Strict):
    """The network from image to feature."""

    name: str = "resnet18"
    """`resnet18`, or `small` for images of 8 to 16 pixels."""
    width: PositiveInt = 64
    """Channels of the first stage; the later ones double it."""
    stem: Literal["3x3", "7x7"] = "3x3"
    """First layer: 3×3 without pooling for 32 and 64 pixels, 7×7 with pooling for 224."""
    bottleneck: PositiveInt | None = 64
    """Dimension S of a linear layer after the pooled features; null keeps the pooled, non-negative features."""


class StageConfig(Strict):
    """How a network is optimised during one task."""

    optimiser: Literal["sgd", "adam"] = "sgd"
    """SGD with momentum, or Adam; weight decay is added to the gradient in both."""
    epochs: PositiveInt = 200
    """Epochs a task."""
    batch_size: PositiveInt = 256
    """Images the network sees a step (with four rotations a quarter of it is loaded)."""
    lr: Positive = 0.1
    """Learning rate at the start."""
    lr_backbone: Positive | None = None
    """Another learning rate for the backbone, e.g. a pretrained one."""
    momentum: Fraction = 0.9
    """Momentum of SGD."""
    weight_decay: NotNegative = 5e-4
    """L2 penalty on every trained parameter."""
    schedule: Literal["steps", "cosine", "constant"] = "steps"
    """Learning rate over epochs."""
    milestones: tuple[Fraction, ...] = (0.3, 0.6, 0.9)
    """For `steps`: fractions of the epochs after which the rate is multiplied by `decay`."""
    decay: Positive = 0.1
    """For `steps`: the factor at each milestone."""
    clip: Positive | None = 1.0
    """Largest norm of the gradient over all trained parameters; null does not clip."""
    warmup: Fraction = 0.01
    """Fraction of the epochs (rounded down) in which the backbone does not learn yet."""
    drop_last: bool = True
    """Leave out an incomplete last batch."""


class OptimisationConfig(Strict):
    """The first task trains a network from nothing, the next ones move it."""

    first: StageConfig = StageConfig()
    """Task 0."""
    next: StageConfig = StageConfig(lr=0.01)
    """Every later task."""

    def stage(self, task: int) -> StageConfig:
        return self.first if task == 0 else self.next


class MethodConfig(Strict):
    """Base of every method's own settings; `name` says which method."""

    name: str

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, values: Any) -> Any:
        """A preset replaces defaults; what the user wrote stays."""
        if isinstance(values, dict) and "preset" in values and "preset" in cls.model_fields:
            return {**cls.presets().get(values["preset"], {}), **values}
        return values

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        """Named sets of values for this method's fields."""
        return {}


def explain(error: ValidationError, model: type[BaseModel], method: type[BaseModel] | None = None) -> UserError:
    """The validation errors as sentences a person can act on, with the dotted field name and near misses.

    `method` is the model behind the field of that name, which the annotation alone does not tell.
    """
    sentences = []
    for item in error.errors():
        path = [str(part) for part in item["loc"]]
        field = ".".join(path)
        if item["type"] == "extra_forbidden":
            inside = method is not None and path[0] == "method"
            known = _fields_at(method, path[1:-1]) if inside and method else _fields_at(model, path[:-1])
            sentences.append(f"unknown setting '{field}'{near_misses(path[-1], known)}")
        else:
            message = item["msg"].removeprefix("Value error, ")
            sentences.append(f"setting '{field}': {message} (got {item['input']!r})")
    return UserError("; ".join(sentences))


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """Names of the fields of the model that a dotted path leads to."""
    for part in path:
        if part not in model.model_fields:
            break
        for candidate in _alternatives(model.model_fields[part].annotation):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    return list(model.model_fields)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
