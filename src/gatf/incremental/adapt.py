"""An update that chooses between a pretrained network as it is and the network adapted to the new images.

The frozen network with a closed-form classifier comes first: one pass over the images, and nothing is forgotten. Then,
if time allows, the network is trained on the new images and what is stored of older classes is carried along. The
adapted network is taken where it promises clearly more over all classes, and the frozen one is kept beside it, so that
a later update can go back.
"""

import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from gatf.config import RunConfig
from gatf.data.inputs import ImageInput
from gatf.errors import UserError
from gatf.geometry.gaussians import Gaussians
from gatf.incremental import update
from gatf.incremental.update import Conditions, with_own_weights
from gatf.methods import method_class
from gatf.methods.parts.bottleneck import keep_axes, wider_than_read
from gatf.methods.parts.gaussian import GaussianMethod, carries_gaussians
from gatf.methods.slda import SLDA
from gatf.model.judge import NO_CALIBRATION
from gatf.model.record import UpdateRecord
from gatf.model.state import Model
from gatf.session import build_method

MARGIN = 2.0
"""Points of accuracy over all classes that an adapted network must promise more, beside what chance explains."""
COST_OF_TRAINING = 9.0
"""An image in training costs so many looks at it: forwards and backwards by a network that is not folded, the old
network's look, and the anchor's. Updates of birds with EfficientNet-Lite0 at 96 and 128 pixels took 9 to 11."""
LOOKED_AT = 16
"""Images that are looked at to tell how long training would take."""


def can_adapt(method: str) -> bool:
    """Whether a method trains the network and carries what is stored of older classes along."""
    return issubclass(method_class(method), GaussianMethod)


@dataclass(frozen=True)
class Candidates:
    """Where the two answers start, and their settings; the adapted one is None where it is not wanted."""

    frozen: Model
    frozen_config: RunConfig
    adapted_config: RunConfig | None
    adapted: Model | None = None
    """The model as it is, where it is adapted already; None: the frozen one, made ready to be trained."""


def learn(
    candidates: Candidates, given: ImageInput, answers: np.ndarray, *, adapts: str, held_out: float, minutes: float,
    run: Conditions,
) -> Model:  # fmt: skip
    """The better of the frozen and the adapted model after learning these images; its record says which and why."""
    aside = replace(run, checkpoints=None)  # it takes seconds, and what is saved on the way is the training's
    frozen = update.learn(
        candidates.frozen, given, answers, config=candidates.frozen_config, held_out=held_out, run=aside
    )
    frozen = replace(frozen, adapts=adapts)
    config = candidates.adapted_config
    if config is None:
        return _told(frozen, "frozen")
    old = len(candidates.frozen.labels)
    if frozen.history[-1].accuracy_new is None:
        return _told(frozen, "frozen", why="no images were kept back that could show whether it helps")
    if _out_of_reach(frozen.history[-1], old):
        images, _ = frozen.history[-1].measured
        gain = f"no gain over {_promise(frozen.history[-1], old):.0f} % could be told from chance"
        return _told(frozen, "frozen", why=f"with {images:.0f} images kept back, {gain}")
    epochs = config.optimisation.stage(min(old, 1)).epochs
    seconds = COST_OF_TRAINING * epochs * len(given) * _seconds_to_look(frozen, given)
    if seconds > 60 * minutes:
        why = f"it would take about {math.ceil(seconds / 60)} minutes, more than the {minutes:g} allowed"
        return _told(frozen, "frozen", why=why)
    try:
        start = candidates.adapted or _trainable(candidates.frozen, config)
        adapted = update.learn(start, given, answers, config=config, held_out=held_out, run=run)
    except UserError as error:  # the frozen answer stands, whatever is wrong with the settings of the other
        return _told(frozen, "frozen", why=f"it could not be trained ({error})")
    ours, theirs = frozen.history[-1], adapted.history[-1]
    if _promise(theirs, old) > _asked(ours, old):
        return replace(_told(adapted, "adapted", ours), adapts=adapts, frozen=frozen)
    return _told(frozen, "frozen", theirs)


def _asked(frozen: UpdateRecord, old: int) -> float:
    """What an adapted network must promise more than."""
    return _promise(frozen, old) + MARGIN + _chance(frozen)


def _out_of_reach(frozen: UpdateRecord, old: int) -> bool:
    """Whether not even a network that answers everything rightly would be taken, so that none need be trained."""
    return _asked(frozen, old) >= 100


def _seconds_to_look(model: Model, given: ImageInput) -> float:
    """At an image, reading it included."""
    images = model.preprocessing.images(given)
    some = images.take(torch.linspace(0, len(images) - 1, min(LOOKED_AT, len(images))).long())
    model.forward(some.take(torch.arange(1)))  # the first look prepares the network
    started = time.monotonic()
    model.forward(some)
    return (time.monotonic() - started) / len(some)


def _told(model: Model, chosen: str, other: UpdateRecord | None = None, why: str | None = None) -> Model:
    """The model, with a record that says what it was chosen over."""
    found: dict[str, str | float | None] = {"chosen": chosen, "not_adapted": why}
    if other is not None:
        found |= {"other_accuracy_new": other.accuracy_new, "other_expected_old": other.expected_old}
        found |= {"other_seconds": other.seconds}
    record = model.history[-1].model_copy(update=found)
    return replace(model, history=(*model.history[:-1], record))


def _promise(record: UpdateRecord, old: int) -> float:
    """Percent of images of all classes that should be answered rightly, each class weighing the same."""
    new = record.classes_added
    measured = record.measured[1] or 0.0
    return (old * (record.expected_old or 0.0) + new * measured) / max(old + new, 1)


def _chance(record: UpdateRecord) -> float:
    """One standard error of the difference of two promises, from the number of images kept back: the forecast of older
    classes is scaled by what they show, so that their error is that of all classes."""
    images, accuracy = record.measured
    right = min(max((accuracy or 0.0) / 100, 0.1), 0.9)
    return 100 * math.sqrt(2 * right * (1 - right) / max(images, 1))


def _trainable(frozen: Model, config: RunConfig) -> Model:
    """The same knowledge as the adapting method keeps it: the frozen network with a bottleneck, and in its features one
    Gaussian per class, with the covariance that the frozen classifier has for all.

    The bottleneck keeps the principal axes of all features so far, which the frozen classifier's sums tell, if it is no
    wider than the features; a model without classes has no axes yet, and its first task will set it.
    """
    method = build_method(with_own_weights(config), frozen.preprocessing.shape)
    network = frozen.method.backbone.state_dict()
    method.backbone.load_state_dict(network, strict=False)  # all but the bottleneck, which is not in it
    start = replace(
        frozen, config=config, method=method, temperature=1.0, calibration=NO_CALIBRATION,
        novelty=frozen.novelty[:0],
    )  # fmt: skip
    if not frozen.labels:
        return start
    assert isinstance(frozen.method, SLDA)
    assert carries_gaussians(method)
    moments = frozen.method.memory.get()
    layer = method.backbone.bottleneck
    means, cov = moments.means, moments.covariance()
    if isinstance(layer, torch.nn.Linear):
        if not wider_than_read(layer):
            keep_axes(layer, moments.overall())
        weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
        means, cov = means @ weight.mT + bias, weight @ cov @ weight.mT
    method.keep(Gaussians.sharing(means, cov))
    return start
