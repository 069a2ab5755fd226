"""Trains the candidates of an update and returns the better one.

With a pretrained backbone there are two. First the backbone stays frozen and gets a closed-form classifier: one forward
pass over the images, and nothing is forgotten. Then, if time allows, the backbone is adapted to the new images and the
statistics of older classes are transported. The adapted model wins if its expected accuracy over all classes is clearly
higher. The frozen model is stored with it, so that a later update can return to it.
"""

import math
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
from gatf.methods.parts.gaussian import transports_gaussians
from gatf.methods.slda import SLDA
from gatf.model.calibration import NO_CALIBRATION
from gatf.model.record import UpdateRecord
from gatf.model.state import Model
from gatf.session import build_method
from gatf.training.context import RunContext

MARGIN = 2.0
"""Points of expected accuracy by which an adapted network must win, in addition to one standard error."""
FEWEST_HELD_OUT = 50
"""Held-out images without which nothing is decided."""


def train_candidates(strategy: Strategy, images: ImageInput, labels: np.ndarray, context: RunContext) -> Model:
    """Train what the strategy lists and return the better model. Its record contains the choice and the reason."""
    if strategy.frozen is None:
        assert strategy.trained is not None
        start, config = strategy.trained
        assert start is not None
        return update_model(start, images, labels, config=config, held_out=strategy.held_out, context=context)
    base, config = strategy.frozen
    aside = replace(context, checkpoints=None)  # it takes seconds; checkpoints belong to the training below
    frozen = update_model(base, images, labels, config=config, held_out=strategy.held_out, context=aside)
    frozen = replace(frozen, adapts=strategy.adapts, adapt=strategy.adapt)
    if strategy.trained is None:
        return with_record(frozen, "frozen")
    start, config = strategy.trained
    planned = round(strategy.held_out * len(images))
    if reason := _reason_to_stay_frozen(strategy, frozen, planned):
        return with_record(frozen, "frozen", reason=reason)
    try:
        start = start or trainable(base, config)
        adapted = update_model(start, images, labels, config=config, held_out=strategy.held_out, context=context)
    except UserError as error:  # the frozen model is valid whatever is wrong with the other's settings
        return with_record(frozen, "frozen", reason=f"training failed ({error})")
    old = len(base.labels)
    if expected_accuracy(adapted.history[-1], old) > _accuracy_to_beat(frozen.history[-1], old, planned):
        if adapted.preprocessing.shape != frozen.preprocessing.shape:
            return with_record(adapted, "trained", frozen.history[-1])
        adapted = with_record(adapted, "adapted", frozen.history[-1])
        return replace(adapted, adapts=strategy.adapts, adapt=strategy.adapt, frozen=frozen)
    return with_record(frozen, "frozen", adapted.history[-1])


def _reason_to_stay_frozen(strategy: Strategy, frozen: Model, planned: int) -> str | None:
    """Why the backbone is not worth adapting; None: it is trained and compared. The frozen classifier was measured on
    all images, each left out in turn; a trained network will be measured on the `planned` held-out ones."""
    assert strategy.frozen is not None
    record, old = frozen.history[-1], len(strategy.frozen[0].labels)
    if record.accuracy_new is None or planned == 0:
        return "no images were held out to measure whether it helps"
    if planned < FEWEST_HELD_OUT:
        return f"only {planned} images are held out, and the choice needs {FEWEST_HELD_OUT}"
    if cannot_be_beaten(record, old, planned):
        gain = f"no gain over {expected_accuracy(record, old):.0f} % would be significant"
        return f"with {planned} held-out images, {gain}"
    if strategy.seconds > 60 * strategy.minutes:
        minutes = math.ceil(strategy.seconds / 60)
        return f"training would take about {minutes} minutes, more than the {strategy.minutes:g} allowed"
    return None


def _accuracy_to_beat(frozen: UpdateRecord, old: int, planned: float) -> float:
    """The expected accuracy that an adapted network, measured on the `planned` images, must exceed."""
    return expected_accuracy(frozen, old) + MARGIN + standard_error(frozen, planned)


def cannot_be_beaten(frozen: UpdateRecord, old: int, planned: float) -> bool:
    """Whether not even an accuracy of 100 % would win, so that no other network need be trained."""
    return _accuracy_to_beat(frozen, old, planned) >= 100


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


def standard_error(record: UpdateRecord, planned: float = math.inf) -> float:
    """One standard error of the difference of two expected accuracies, from the number of images that measured them:
    the record's, or `planned` if that is less. The forecast of older classes is scaled by their accuracy, so their
    error is the error of all classes."""
    images, accuracy = record.measured
    images = min(images, planned)
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
    assert transports_gaussians(method)
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
