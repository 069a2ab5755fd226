"""The settings of each concern, as strict, frozen models: an unknown key or a bad value fails with the field's name.

`config.RunConfig` puts them together; the modules below it import only the section they need.
"""

import ast
import inspect
import textwrap
import types
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator
from pydantic.fields import FieldInfo

from gatf.errors import UserError, near_misses

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]


KINDS = frozenset({"base"})
"""Sections whose `name` decides which settings they have; a word in place of such a section is its name."""


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, mapping by mapping; a section of `KINDS` with another name starts anew."""
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


class Strict(BaseModel):
    """Frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The text under each field, from the source: for those who show it, since a prediction need not wait for it."""
    found = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        body = cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]).body
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value))
    return found


class GlyphsConfig(Strict):
    """The images of the source `glyphs`, which are rendered."""

    classes: Annotated[int, Field(ge=1, le=100)] = 100
    """Characters."""
    train_per_class: PositiveInt = 100
    """Training images of each character."""
    test_per_class: PositiveInt = 20
    """Test images of each character, in fonts that training does not use."""
    size: Annotated[int, Field(ge=8, le=64)] = 32
    """Height and width in pixels."""
    difficulty: Fraction = 0.5
    """0: upright, centred, strong contrast; 1: rotated, sheared, shifted, weak contrast, noisy."""
    seed: NonNegativeInt = 0
    """Seed of the rendering; the run's own seed does not change the images."""


class DataConfig(Strict):
    """Which images, and what is done to them."""

    name: str = "digits"
    """Name of the data source; `gatf data` lists them."""
    root: str | None = None
    """Folder or file of a local copy; else the folder in GATF_DATA, else the cache that `gatf data get` fills."""
    hub: str | None = None
    """Hugging Face data set that `gatf data get` fetches in place of the source's own."""
    image_size: PositiveInt | None = None
    """Height and width of the images the network gets. Default: the benchmark's; for own data the images' size where
    all share one of at most 64 pixels, else 224. Up to 64 pixels are kept in memory, larger ones decoded on the fly."""
    label_column: str | None = None
    """Column of the labels in parquet files. Default: `fine_label`, else `label`."""
    class_list: str | None = None
    """File with the class folders to use, one per line, in order. Default: all. For `imagenet100` also the name of a
    published list: `adagauss`, the default, of AdaGauss's and GATF's papers, or `cmc`, of the copy on the hub."""
    test_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Share of each class that becomes test images where own data has no test part."""
    on_bad_image: Literal["fail", "skip"] = "fail"
    """A file that cannot be decoded ends the run, or is left out. The latter takes one more pass over all files."""
    workers: NonNegativeInt | None = None
    """Processes that decode large images ahead of training; 0: none. Default: one less than the cores, 1 to 8."""
    augment: tuple[str, ...] = ()
    """Steps applied to training images, in order, e.g. ["crop:4", "flip"]."""
    test_crop: PositiveInt | None = None
    """Cut a square with this side from the centre of test images, and of training images seen without augmentation;
    null keeps whole images. For networks that take any size (ADC and FeCAM release TinyImageNet with 56 of 64)."""
    max_per_class: PositiveInt | None = None
    """Use at most this many training images of each class, the first ones in file order."""
    imbalance: Annotated[float, Field(ge=1.0)] | None = None
    """Long tail: class c of C (in the source's numbering) keeps n·ratio^(−c/(C−1)) training images, n being the largest
    class. `scenario.order` decides whether the head comes first (natural) or mixed."""
    val_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of each class's training images that is held out and not trained on."""
    evaluate_on: Literal["test", "validation"] = "test"
    """What accuracy is measured on: the test images or, to choose settings, those `val_fraction` holds out."""
    glyphs: GlyphsConfig = GlyphsConfig()
    """Settings of the source `glyphs`."""

    @model_validator(mode="after")
    def _validation_needs_images(self) -> Self:
        if self.evaluate_on == "validation" and self.val_fraction == 0.0:
            raise ValueError("evaluate_on=validation needs val_fraction above 0, e.g. 0.1")
        return self


class ScenarioConfig(Strict):
    """How classes arrive."""

    tasks: PositiveInt = 10
    """Number of tasks the classes are split into, as equally as possible."""
    first_task_classes: PositiveInt | None = None
    """Classes in task 0; the rest is split over the other tasks. Default: an equal share."""
    task_sizes: tuple[PositiveInt, ...] | None = None
    """Classes of every task, in order; replaces `tasks` and `first_task_classes`."""
    order: str | tuple[int | str, ...] = "published"
    """Class order: `published`, the data set's own (drawn where there is none); `seed`, drawn from `class_order_seed`,
    which may be the run's seed; `natural`, as stored; a list of class numbers or names; or a file with such a list (one
    per line, or YAML)."""
    stop_after: PositiveInt | None = None
    """Stop after this number of tasks."""


PYTHON = "python:"
"""Begins the name of a backbone that was handed over in Python; the constructor's dotted name follows."""
PACKAGE, HUB, INSIDE = "package", "hub", "inside"
"""Words for where pretrained weights are: in a package that is installed, or in the model file itself."""
LITE0 = "efficientnet_lite0"


class BackboneConfig(Strict):
    """The network from image to feature."""

    name: str = "resnet18"
    """`resnet18`, `resnet50`, `mobilenet_v2`, `efficientnet_lite0`, `small` for images of 8 to 16 pixels, or
    `timm:<model>` with the extra `timm`."""
    width: PositiveInt = 64
    """Channels of the first stage, of ResNets and `small`; the later ones double it."""
    stem: Literal["3x3", "3x3pool", "7x7"] = "3x3"
    """First layer of ResNets: 3×3 without pooling for 32 and 64 pixels, 7×7 of stride 2 with pooling for 224; 3×3 with
    pooling is how the FeCAM, ADC, LDC and DPCR releases take 224, at four times the cost."""
    bottleneck: PositiveInt | None = 64
    """Dimension S of a linear layer after the pooled features; null keeps the pooled, non-negative features."""
    bottleneck_init: Literal["auto", "random", "pca"] = "auto"
    """The bottleneck's first weights: random, or the directions in which the features of the first task's images vary
    most, each scaled to variance 1 (pca). auto: pca after a pretrained network, whose features random weights would
    blur, else random."""
    pretrained: str | None = None
    """Start from these weights: a .safetensors or .pth file, a hub id such as timm/resnet18.tv_in1k, `package`: what
    the extra `pretrained` installs for efficientnet_lite0, or `hub`: those that timm has for a `timm:<model>`, from the
    Hugging Face hub. Default: `package` for efficientnet_lite0, in a classifier `hub` for timm's models, else null.
    Model files say `inside`, for they hold their weights."""
    batch_norm: Literal["auto", "train", "fixed"] = "auto"
    """Statistics of batch-norm while training: of each batch, or fixed where they are. auto: fixed for a pretrained
    network, whose statistics of a million images are better than those of a few."""

    def __str__(self) -> str:
        """In a few words, for a line on the terminal."""
        about = f"features {self.bottleneck}" if self.bottleneck else "all its features"
        if self.name in ("resnet18", "resnet50", "small"):
            about = f"width {self.width}, {about}"
        weights = {None: "", PACKAGE: "ImageNet's weights, ", HUB: "timm's weights, ", INSIDE: "pretrained, "}
        return f"{self.name} ({weights.get(self.pretrained, f'weights of {self.pretrained}, ')}{about})"

    @model_validator(mode="before")
    @classmethod
    def _weights_at_hand(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("name") == LITE0 and "pretrained" not in values:
            return {**values, "pretrained": PACKAGE}
        return values


class StageConfig(Strict):
    """How a network is optimised during one task."""

    optimiser: Literal["sgd", "adam"] = "sgd"
    """SGD with momentum, or Adam; weight decay is added to the gradient in both."""
    epochs: PositiveInt = 200
    """Epochs per task."""
    batch_size: PositiveInt = 256
    """Images the network sees per step (with four rotations a quarter of it is loaded)."""
    lr: Positive = 0.1
    """Learning rate at the start."""
    lr_backbone: Positive | Literal["auto"] | None = "auto"
    """Learning rate of the backbone; null: `lr`. auto: a hundredth of `lr` for a pretrained backbone, which is good
    already and is spoilt sooner than it is improved, else `lr`."""
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
    """Largest norm of the gradient; null does not clip."""
    warmup: Fraction = 0.01
    """Warm-up: the fraction of the epochs, rounded down to whole epochs, in which the backbone does not learn yet."""
    drop_last: bool = True
    """Leave out an incomplete last batch."""

    @property
    def warmup_epochs(self) -> int:
        """Epochs in which the backbone does not learn yet."""
        return int(self.warmup * self.epochs + 1e-9)


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

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The changes of each preset, shaped like a config: this method's settings under `method`, and settings of other
    sections, such as `optimisation`. The default preset has the default values and is not listed."""
    name: str
    """The method: a name of `gatf methods`, or `package.module:Class` for a class of your own."""

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, values: Any) -> Any:
        """A preset replaces defaults; what the user wrote stays."""
        if isinstance(values, dict) and "preset" in values and "preset" in cls.model_fields:
            return deep_merge(cls.preset_layer(values["preset"]).get("method", {}), values)
        return values

    def training(self) -> dict[str, Any]:
        """The settings that decide the trained networks. Two methods with equal ones train the same networks, if all
        other settings of their runs agree. The name is included, unless other methods train alike."""
        return _without(self, Effect.READOUT_ONLY)

    def first_training(self) -> dict[str, Any]:
        """The settings that decide the network of the first task."""
        return _without(self, Effect.READOUT_ONLY, Effect.LATER_TASKS_ONLY)

    @classmethod
    def preset_names(cls) -> tuple[str, ...]:
        """Every preset, the default first."""
        return get_args(cls.model_fields["preset"].annotation) if "preset" in cls.model_fields else ()

    @classmethod
    def preset_layer(cls, preset: Any) -> dict[str, Any]:
        """What a preset changes; nothing for the default one and for what is no preset."""
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
    """The validation errors as sentences a person can act on, with the dotted field name and near misses.

    `method` is the model behind the field of that name, which the annotation alone does not tell.
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
    """The sections among which a field's `name` chooses, by name; none where it is no such field."""
    models = get_args(field.annotation) if field.discriminator == "name" else ()
    return {get_args(model.model_fields["name"].annotation)[0]: model for model in models}


@dataclass
class _Place:
    """Where pydantic found fault: the path as a user would write it, and the model that its last part belongs to."""

    path: list[str]
    model: type[BaseModel]
    others: dict[str, type[BaseModel]]
    """The sections of which the model is one, by name, where a name chooses."""

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
        """What may have been meant by an unknown setting."""
        name = self.path[-1]
        owners = [other for other, model in self.others.items() if name in model.model_fields]
        if owners:
            own = next(other for other, model in self.others.items() if model is self.model)
            return f": {' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} it, but not {own}"
        for section, field in self.model.model_fields.items():
            if any(name in model.model_fields for model in choices(field).values()):
                return f"; did you mean '{'.'.join([*self.path[:-1], section, name])}'?"
        if not get_close_matches(name, self.model.model_fields):
            for section, field in self.model.model_fields.items():
                below = field.annotation
                if isinstance(below, type) and issubclass(below, BaseModel):
                    for close in get_close_matches(name, below.model_fields, n=1):
                        return f"; did you mean '{'.'.join([*self.path[:-1], section, close])}'?"
        return near_misses(name, self.model.model_fields)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
