"""The strategy of an update: which models it trains, from where and with which settings. It is chosen once, before
training, from the classifier's parameters, the model and the images."""

import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from gatf.config import RunConfig
from gatf.data.inputs import ImageInput, Shape
from gatf.errors import UserError
from gatf.incremental import defaults
from gatf.incremental.update import new_model
from gatf.methods import method_class
from gatf.methods.parts.gaussian import GaussianMethod
from gatf.model.state import FROZEN_METHOD, Model
from gatf.nets import TIMM
from gatf.nets.foreign import probe_dim
from gatf.settings import HUB, INSIDE


@dataclass(frozen=True)
class Strategy:
    """What an update trains. With `frozen` alone the pretrained backbone stays frozen; with `trained` alone the network
    is trained; with both the update compares them and keeps the better one (`candidates.train_candidates`)."""

    shape: Shape
    """Channels, height and width of the images."""
    held_out: float
    minutes: float
    """Time for adapting a pretrained backbone."""
    frozen: tuple[Model, RunConfig] | None
    """The model on the frozen backbone, and its settings."""
    trained: tuple[Model | None, RunConfig] | None
    """The model to train, and its settings; None for the model: it is made from the frozen one."""
    adapts: str | None
    """The method that adapts a pretrained backbone, where updates compare."""
    description: str
    """One line for users."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of `IncrementalClassifier` that decide the strategy."""

    method: str
    backbone: str | nn.Module
    adapt: str
    minutes: float
    image_size: int | str
    held_out: float
    device: str
    random_state: Any
    overrides: dict[str, Any]
    """Settings by dotted path, those of the other parameters included."""

    @cached_property
    def seed(self) -> int:
        if self.random_state is None:
            return secrets.randbelow(2**31)
        if isinstance(self.random_state, (np.random.RandomState, np.random.Generator)):
            draw = getattr(self.random_state, "integers", None) or self.random_state.randint  # type: ignore[union-attr]
            return int(draw(2**31 - 1))
        return int(self.random_state)

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
        chosen = defaults.backbone_for(images) if free and shape[1] >= defaults.PHOTO_SIDE else None
        return overrides if chosen is None else {**overrides, "backbone.name": chosen}

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


def choose_strategy(parameters: Parameters, model: Model | None, images: ImageInput) -> Strategy:
    """The strategy for learning these images, by a new model (None) or an update of one. Mistakes in the parameters are
    a `UserError` here, before anything is trained."""
    if not 0 <= parameters.held_out < 1:
        raise UserError(f"held_out must be at least 0 and below 1, not {parameters.held_out!r}")
    shape = parameters.shape(images, model)
    if not _stays_pretrained(parameters, model, images, shape):
        if model is None:
            config = parameters.first_config(parameters.method, images, shape)
            module = parameters.backbone if isinstance(parameters.backbone, nn.Module) else None
            start = new_model(config, images, shape, module)
        else:
            start, config = model, parameters.next_config(model, images, compares=False)
        return _strategy(parameters, shape, model, images, frozen=None, trained=(start, config))
    if model is None:
        config = parameters.first_config(FROZEN_METHOD, images, shape)
        frozen = new_model(config, images, shape)
    else:
        frozen = model.frozen or model
        config = parameters.next_config(frozen, images, compares=True)
    if parameters.adapt == "never":
        return _strategy(parameters, shape, model, images, frozen=(frozen, config), trained=None)
    adapted = model if model is not None and model.frozen is not None else None
    if adapted is not None:
        trained = parameters.next_config(adapted, images, compares=True)
    else:
        trained = parameters.first_config(_adapting_method(parameters, model), images, shape)
    return _strategy(parameters, shape, model, images, frozen=(frozen, config), trained=(adapted, trained))


def _stays_pretrained(parameters: Parameters, model: Model | None, images: ImageInput, shape: Shape) -> bool:
    """Whether this update leaves a pretrained backbone frozen, or compares it with an adapted one."""
    adapt = parameters.adapt
    if adapt not in ("auto", "never", "always"):
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
    parameters: Parameters, shape: Shape, model: Model | None, images: ImageInput, *,
    frozen: tuple[Model, RunConfig] | None, trained: tuple[Model | None, RunConfig] | None,
) -> Strategy:  # fmt: skip
    choice = ""
    if frozen is not None:
        choice = "; the pretrained backbone stays frozen (adapt=never)"
        if trained is not None:
            choice = "; the result replaces the frozen backbone only if it is expected to be better (adapt=auto)"
    candidate = trained or frozen
    assert candidate is not None
    description = defaults.describe(
        candidate[1], shape=shape, images=len(images), first=model is None, trains=trained is not None
    )
    return Strategy(
        shape, float(parameters.held_out), parameters.minutes, frozen, trained,
        None if frozen is None else _adapting_method(parameters, model), description + choice,
    )  # fmt: skip
