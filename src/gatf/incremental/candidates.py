"""Trains the candidates of an update and returns the better one.

With a pretrained backbone there are two. First the backbone stays frozen and gets a closed-form classifier: one forward
pass over the images, and nothing is forgotten. Then, if time allows, the backbone is adapted to the new images and the
statistics of older classes are transported. The adapted model wins if its expected accuracy over all classes is clearly
higher. The frozen model is stored with it, so that a later update can return to it.
"""

import math
import time
from dataclasses import replace

import numpy as np
import torch

from gatf.config import RunConfig
from gatf.data.inputs import ImageInput
from gatf.errors import UserError
from gatf.geometry.gaussians import Gaussians
from gatf.incremental.strategy import Strategy
from gatf.incremental.update import update_model, with_own_weights
from gatf.methods.parts.bottleneck import keep_axes, wider_than_read
from gatf.methods.parts.gaussian import carries_gaussians
from gatf.methods.slda import SLDA
from gatf.model.calibration import NO_CALIBRATION
from gatf.model.record import UpdateRecord
from gatf.model.state import Model
from gatf.session import build_method
from gatf.training.context import RunContext

MARGIN = 2.0
"""Points of expected accuracy by which an adapted network must win, in addition to one standard error."""
COST_OF_TRAINING = 9.0
"""Cost of training on an image, in forward passes of the frozen network: forward and backward passes of a network that
is not folded, and forward passes of the old network and for the anchor. Updates of birds with EfficientNet-Lite0 at 96
and 128 pixels took 9 to 11."""
TIMED_IMAGES = 16
"""Images of the forward pass that is timed to predict how long training takes."""


def train_candidates(strategy: Strategy, images: ImageInput, labels: np.ndarray, context: RunContext) -> Model:
    """Train what the strategy lists and return the better model. Its record tells which one was chosen, and why."""
    if strategy.frozen is None:
        assert strategy.trained is not None
        start, config = strategy.trained
        assert start is not None
        return update_model(start, images, labels, config=config, held_out=strategy.held_out, context=context)
    base, config = strategy.frozen
    aside = replace(context, checkpoints=None)  # it takes seconds; checkpoints belong to the training below
    frozen = update_model(base, images, labels, config=config, held_out=strategy.held_out, context=aside)
    frozen = replace(frozen, adapts=strategy.adapts)
    if strategy.trained is None:
        return with_record(frozen, "frozen")
    start, config = strategy.trained
    if reason := _reason_to_stay_frozen(strategy, frozen, images):
        return with_record(frozen, "frozen", reason=reason)
    try:
        start = start or trainable(base, config)
        adapted = update_model(start, images, labels, config=config, held_out=strategy.held_out, context=context)
    except UserError as error:  # the frozen model is valid whatever is wrong with the other's settings
        return with_record(frozen, "frozen", reason=f"training failed ({error})")
    old = len(base.labels)
    if expected_accuracy(adapted.history[-1], old) > _accuracy_to_beat(frozen.history[-1], old):
        return replace(with_record(adapted, "adapted", frozen.history[-1]), adapts=strategy.adapts, frozen=frozen)
    return with_record(frozen, "frozen", adapted.history[-1])


def _reason_to_stay_frozen(strategy: Strategy, frozen: Model, images: ImageInput) -> str | None:
    """Why the backbone is not worth adapting; None: it is trained and compared."""
    assert strategy.frozen is not None
    assert strategy.trained is not None
    record, old = frozen.history[-1], len(strategy.frozen[0].labels)
    if record.accuracy_new is None:
        return "no images were held out to measure whether it helps"
    if cannot_be_beaten(record, old):
        count, accuracy = record.measured[0], expected_accuracy(record, old)
        return f"with {count:.0f} held-out images, no gain over {accuracy:.0f} % would be significant"
    epochs = strategy.trained[1].optimisation.stage(min(old, 1)).epochs
    seconds = COST_OF_TRAINING * epochs * len(images) * _seconds_per_forward_pass(frozen, images)
    if seconds > 60 * strategy.minutes:
        return f"it would take about {math.ceil(seconds / 60)} minutes, more than the {strategy.minutes:g} allowed"
    return None


def _accuracy_to_beat(frozen: UpdateRecord, old: int) -> float:
    """The expected accuracy that an adapted network must exceed."""
    return expected_accuracy(frozen, old) + MARGIN + standard_error(frozen)


def cannot_be_beaten(frozen: UpdateRecord, old: int) -> bool:
    """Whether not even an accuracy of 100 % would win, so that no other network need be trained."""
    return _accuracy_to_beat(frozen, old) >= 100


def _seconds_per_forward_pass(model: Model, given: ImageInput) -> float:
    """Per image, reading it included."""
    images = model.preprocessing.images(given)
    some = images.take(torch.linspace(0, len(images) - 1, min(TIMED_IMAGES, len(images))).long())
    model.forward(some.take(torch.arange(1)))  # the first forward pass prepares the network
    started = time.monotonic()
    model.forward(some)
    return (time.monotonic() - started) / len(some)


def with_record(model: Model, chosen: str, other: UpdateRecord | None = None, reason: str | None = None) -> Model:
    """The model with its choice recorded: the other candidate's figures, or the reason why there was none."""
    found: dict[str, str | float | None] = {"chosen": chosen, "not_adapted": reason}
    if other is not None:
        found |= {"other_accuracy_new": other.accuracy_new, "other_expected_old": other.expected_old}
        found |= {"other_seconds": other.seconds}
    record = model.history[-1].model_copy(update=found)
    return replace(model, history=(*model.history[:-1], record))


def expected_accuracy(record: UpdateRecord, old: int) -> float:
    """Expected accuracy over all classes in percent, each class with the same weight; `old` classes are forecast."""
    new = record.classes_added
    measured = record.measured[1] or 0.0
    return (old * (record.expected_old or 0.0) + new * measured) / max(old + new, 1)


def standard_error(record: UpdateRecord) -> float:
    """One standard error of the difference of two expected accuracies, from the number of held-out images. The forecast
    of older classes is scaled by their accuracy, so their error is the error of all classes."""
    images, accuracy = record.measured
    share = min(max((accuracy or 0.0) / 100, 0.1), 0.9)
    return 100 * math.sqrt(2 * share * (1 - share) / max(images, 1))


def trainable(frozen: Model, config: RunConfig) -> Model:
    """The frozen model in the form of the adapting method: its backbone with a bottleneck, and in the bottleneck's
    features one Gaussian per class with the frozen classifier's common covariance.

    The bottleneck keeps the principal axes of all features, from the frozen classifier's sums, if it is no wider than
    the features. A model without classes has no axes yet; its first task will set them.
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
