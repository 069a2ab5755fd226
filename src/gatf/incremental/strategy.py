"""The strategy of an update: which models it trains, from where and with which settings. It is chosen once, before
training, from the classifier's parameters, the model and the images."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from gatf.config import RunConfig
from gatf.data.decode import SMALL
from gatf.data.inputs import ImageInput, Shape
from gatf.errors import UserError
from gatf.incremental import defaults
from gatf.incremental.update import new_model
from gatf.methods import method_class
from gatf.methods.parts.features import FeatureMethod
from gatf.methods.parts.gaussian import GaussianMethod
from gatf.model.state import FROZEN_METHOD, Model
from gatf.nets import TIMM
from gatf.nets.foreign import constructor_name, probe_dim
from gatf.settings import HUB, INSIDE, PYTHON

TIMED_IMAGES = 4
"""Images of the forward pass that is timed to predict how long an update takes."""


PATHS = {
    "backbone": ("backbone.name",),
    "width": ("backbone.width",),
    "feature_dim": ("backbone.bottleneck",),
    "augment": ("data.augment",),
    "epochs": ("optimisation.first.epochs", "optimisation.next.epochs"),
    "batch_size": ("optimisation.first.batch_size", "optimisation.next.batch_size"),
}
"""Parameters and the settings they set."""
ELSEWHERE = {"unknown", "unknown_label", "verbose"}
"""Parameters of `IncrementalClassifier` that do not affect training."""


@dataclass(frozen=True)
class Strategy:
    """What an update trains. With `frozen` alone the pretrained backbone stays frozen; with `trained` alone the network
    is trained; with both the update compares them and keeps the better one (`candidates.train_candidates`)."""

    shape: Shape
    """Channels, height and width of the images."""
    held_out: float
    minutes: float
    """Time for training beside a frozen pretrained backbone."""
    seconds: float
    """Expected time of training, or of the frozen model where nothing is trained."""
    frozen: tuple[Model, RunConfig] | None
    """The model on the frozen backbone, and its settings."""
    trained: tuple[Model | None, RunConfig] | None
    """The model to train, and its settings; None for the model: it is made from the frozen one."""
    adapts: str | None
    """The method that adapts a pretrained backbone, where updates compare."""
    adapt: str
    """The choice that the model file keeps."""
    description: str
    """One line for users."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of `IncrementalClassifier` that decide the strategy."""

    method: str = "gatf"
    backbone: str | nn.Module = "auto"
    adapt: str | None = None
    minutes: float = 5.0
    image_size: int | str = "auto"
    held_out: float = 0.1
    device: str = "auto"
    random_state: Any = 0
    overrides: dict[str, Any] = field(default_factory=dict)
    """Settings by dotted path, those of the other parameters included."""

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None = None, **given: Any) -> "Parameters":
        """From the parameters of `IncrementalClassifier`; those that set a setting override `settings`."""
        overrides = dict(settings or {})
        for name, paths in PATHS.items():
            value = given.get(name, "auto")
            if isinstance(value, nn.Module):
                value = PYTHON + constructor_name(value)
            if not isinstance(value, str) or value != "auto":
                overrides |= dict.fromkeys(paths, value)
        own = {each.name for each in fields(cls)}
        unknown = sorted(given.keys() - own - PATHS.keys() - ELSEWHERE)
        if unknown:
            raise TypeError(f"unknown parameters: {', '.join(unknown)}")
        return cls(**{name: value for name, value in given.items() if name in own}, overrides=overrides)

    @cached_property
    def seed(self) -> int:
        return drawn_seed(self.random_state)

    def shape(self, images: ImageInput, model: Model | None) -> Shape:
        """Channels, height and width in which the model learns these images; for a new model, chosen from them."""
        if model is not None:
            return model.preprocessing.shape
        if self.image_size == "auto":
            natural = images.natural_shape()
            if isinstance(self.backbone, nn.Module):
                return natural
            overrides = self.first_overrides(images, natural)
            if defaults.is_pretrained(overrides):
                return defaults.pretrained_shape(overrides.get("backbone.name", ""), images)
            return natural
        if not isinstance(self.image_size, (int, np.integer)) or images.are_pixels:
            raise UserError(
                "image_size is a number of pixels and for files and PIL images only; resize arrays yourself"
            )
        return 3, int(self.image_size), int(self.image_size)

    def first_overrides(self, images: ImageInput, shape: Shape) -> dict[str, Any]:
        """The overrides for a new model, with the backbone that suits these images where the user named none."""
        overrides = self.overrides
        if isinstance(self.backbone, nn.Module):
            return {**overrides, "backbone.pretrained": INSIDE if getattr(self.backbone, "pretrained", False) else None}
        if overrides.get("backbone.name", "").startswith(TIMM):
            return {"backbone.pretrained": HUB, **overrides}
        free = not any(name in overrides for name in ("backbone.name", "backbone.width", "backbone.pretrained"))
        if self.asks_training and images.shorter_side < SMALL:
            free = False
        chosen = defaults.backbone_for(images) if free else None
        return overrides if chosen is None else {**overrides, "backbone.name": chosen}

    @property
    def asks_training(self) -> bool:
        """Whether some parameter matters only where a network is trained."""
        return any(path.startswith(defaults.TRAINING) for path in self.overrides)

    def adaptation(self, model: Model | None) -> str:
        """ "never", "auto" or "always": as asked, else as the model keeps it, else whether parameters need training."""
        if self.adapt is not None:
            return self.adapt
        if model is not None and model.adapt == "auto":
            return "auto"
        another = model is None and self.method != Parameters.method
        return "auto" if self.asks_training or another else "never"

    def first_config(self, method: str, images: ImageInput, shape: Shape) -> RunConfig:
        """The settings of a new model."""
        return defaults.first_config(
            method=method, shape=shape, images=len(images), device=self.device, seed=self.seed,
            overrides=self._for_method(self.first_overrides(images, shape), method),
            features=probe_dim(self.backbone, shape) if isinstance(self.backbone, nn.Module) else None,
        )  # fmt: skip

    def next_config(self, model: Model, images: ImageInput, *, compares: bool) -> RunConfig:
        """The settings of an update of this model."""
        own = compares or model.adapts is not None
        overrides = self._for_method(self.overrides, model.config.method.name) if own else self.overrides
        config = defaults.next_config(model.config, images=len(images), overrides=overrides)
        return config.model_copy(update={"device": self.device, "seed": model.config.seed})

    def _for_method(self, overrides: dict[str, Any], method: str) -> dict[str, Any]:
        """Overrides for one of two candidates: those meant for the requested method do not apply to another one."""
        if method == self.method:
            return overrides
        own = ("method.", "backbone.bottleneck", "optimisation.")
        return {path: value for path, value in overrides.items() if not path.startswith(own)}


def drawn_seed(random_state: Any) -> int:
    """The seed that a `random_state` of scikit-learn stands for."""
    if random_state is None:
        return secrets.randbelow(2**31)
    if isinstance(random_state, (np.random.RandomState, np.random.Generator)):
        draw = getattr(random_state, "integers", None) or random_state.randint  # type: ignore[union-attr]
        return int(draw(2**31 - 1))
    return int(random_state)


def choose_strategy(parameters: Parameters, model: Model | None, images: ImageInput) -> Strategy:
    """The strategy for learning these images, by a new model (None) or an update of one. Mistakes in the parameters are
    a `UserError` here, before anything is trained."""
    if not 0 <= parameters.held_out < 1:
        raise UserError(f"held_out must be at least 0 and below 1, not {parameters.held_out!r}")
    if model is not None and model.preprocessing.takes_vectors:
        raise UserError("the model takes vectors and cannot learn images; give vectors or begin a new model")
    shape, adapt = parameters.shape(images, model), parameters.adaptation(model)
    trained: tuple[Model | None, RunConfig] | None = None
    if not _stays_pretrained(parameters, model, images, shape):
        if model is None:
            config = parameters.first_config(parameters.method, images, shape)
            module = parameters.backbone if isinstance(parameters.backbone, nn.Module) else None
            trained = new_model(config, images, shape, module), config
        else:
            trained = model, parameters.next_config(model, images, compares=False)
        return _strategy(parameters, shape, model, images, adapt, frozen=None, trained=trained)
    if model is None:
        config = parameters.first_config(FROZEN_METHOD, images, shape)
        frozen = new_model(config, images, shape)
    else:
        frozen = model.frozen or model
        config = parameters.next_config(frozen, images, compares=True)
    if adapt == "auto":
        adapted = model if model is not None and model.frozen is not None else None
        if adapted is not None:
            trained = adapted, parameters.next_config(adapted, images, compares=True)
        elif model is None and _scratch(parameters, images):
            natural = images.natural_shape()
            scratch = replace(parameters, overrides={**parameters.overrides, "backbone.pretrained": None})
            small = scratch.first_config(parameters.method, images, natural)
            trained = new_model(small, images, natural), small
        else:
            trained = None, parameters.first_config(_adapting_method(parameters, model), images, shape)
    return _strategy(parameters, shape, model, images, adapt, frozen=(frozen, config), trained=trained)


def _scratch(parameters: Parameters, images: ImageInput) -> bool:
    """Whether small images are also learnt by a network from scratch, in place of an adapted pretrained one."""
    return parameters.backbone == "auto" and images.shorter_side < SMALL and "backbone.name" not in parameters.overrides


def _stays_pretrained(parameters: Parameters, model: Model | None, images: ImageInput, shape: Shape) -> bool:
    """Whether this update leaves a pretrained backbone frozen, or compares it with an adapted one."""
    adapt = parameters.adapt
    if adapt not in (None, "auto", "never", "always"):
        raise UserError(f"adapt is 'auto', 'never' or 'always', not {adapt!r}")
    if adapt == "always":
        return False
    if model is not None:
        return model.adapts is not None
    named = not isinstance(parameters.backbone, nn.Module)
    pretrained = named and defaults.is_pretrained(parameters.first_overrides(images, shape))
    can_adapt = issubclass(method_class(parameters.method), GaussianMethod)
    if adapt == "never" and can_adapt and not pretrained:
        raise UserError("adapt='never' needs a pretrained network: one with random weights has to be trained")
    return pretrained and can_adapt


def _adapting_method(parameters: Parameters, model: Model | None) -> str:
    return parameters.method if model is None or model.adapts is None else model.adapts


def _strategy(
    parameters: Parameters, shape: Shape, model: Model | None, images: ImageInput, adapt: str, *,
    frozen: tuple[Model, RunConfig] | None, trained: tuple[Model | None, RunConfig] | None,
) -> Strategy:  # fmt: skip
    choice = ""
    if frozen is not None:
        choice = "; the pretrained backbone stays frozen"
        if trained is not None:
            choice = "; the result replaces the frozen backbone only if it is expected to be better (adapt=auto)"
    candidate = trained or frozen
    assert candidate is not None
    start = candidate[0] or (frozen or candidate)[0]
    assert start is not None
    seconds = len(images) * seconds_per_forward_pass(start)
    fixed = candidate[0] is not None and isinstance(start.method, FeatureMethod) and start.method.network_is_fixed
    if trained is not None and not fixed:
        seconds *= defaults.COST_OF_TRAINING * trained[1].optimisation.stage(0 if model is None else 1).epochs
    seconds += defaults.FIXED_COST
    description = defaults.describe(
        candidate[1], shape=start.preprocessing.shape, images=len(images), first=model is None, seconds=seconds,
        trains=trained is not None,
    )  # fmt: skip
    return Strategy(
        shape, float(parameters.held_out), parameters.minutes, seconds, frozen, trained,
        None if frozen is None else _adapting_method(parameters, model), adapt, description + choice,
    )  # fmt: skip


@torch.no_grad()
def seconds_per_forward_pass(model: Model) -> float:
    """Of an image, measured on a few blank ones; the second of two passes, because the first prepares the network."""
    backbone = model.method.backbone.eval()
    images = torch.zeros(TIMED_IMAGES, *model.preprocessing.shape, device=model.method.device)
    for _ in range(2):
        started = time.monotonic()
        backbone(images)
    return (time.monotonic() - started) / TIMED_IMAGES
