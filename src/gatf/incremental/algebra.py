"""Models as sums: merge models of one frozen encoder, and remove a class from one."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch

from gatf.data.vectors import VectorInput
from gatf.errors import UserError, near_misses
from gatf.geometry.moments import PooledMoments
from gatf.methods.parts.closed_form import ClosedForm
from gatf.model.calibration import NO_CALIBRATION, fitted_temperature
from gatf.model.predict import check_vectors
from gatf.model.record import UpdateRecord, remembered
from gatf.model.state import Label, Model

SAME_MEAN = 1e-6
"""Difference of two means, in deviations of the features, that is rounding."""
OWN = ("memory.", "rule.", "errors")
"""Parts of a closed-form method that come from the items it learnt; all others must be equal to merge."""


def merged(models: Sequence[Model]) -> Model:
    """One model that knows what all of these know. Its classifier is the one that learnt all their items, whatever
    the order. Probabilities and rejection use the held-out items of all models, as each of them measured those."""
    first, *others = models
    _closed_form(first, "merge")
    for other in others:
        _check_alike(first, other)
    labels = list(dict.fromkeys(label for model in models for label in model.labels))
    if len({type(label) for label in labels}) > 1:
        raise UserError("the labels of one model are text and those of another are numbers; they cannot be merged")
    number = {label: place for place, label in enumerate(labels)}
    method = copy.deepcopy(_closed_form(first, "merge"))
    counts = torch.zeros(len(labels), dtype=torch.int64)
    total: PooledMoments | None = None
    for model in models:
        places = torch.tensor([number[label] for label in model.labels])
        own = _closed_form(model, "merge").memory.get().reordered(places, len(labels))
        total = own if total is None else total.merge(own)
        counts.index_add_(0, places, model.counts)
    for name, errors in method.named_buffers():
        if name == "errors":
            errors += sum(dict(other.method.named_buffers())[name] for other in others)
    assert total is not None
    method.solve(method.memory.set(total))
    method.notices.clear()
    sums = torch.stack([model.calibration for model in models]).sum(0)
    known = [model.novelty for model in models if len(model.novelty)] or [first.novelty]
    added = tuple(label for label in labels if label not in first.labels)
    shared = tuple(label for label in first.labels if any(label in other.labels for other in others))
    record = _record(
        first, added=added, revisited=shared, images=int(counts.sum() - first.counts.sum()), merged=len(others),
        bytes_per_class=method.bytes_per_class(), rejection="estimated",
    )  # fmt: skip
    return replace(
        first, method=method, labels=tuple(labels), counts=counts, calibration=sums,
        temperature=fitted_temperature(sums) if sums[0] > 0 else first.temperature,
        errors=torch.zeros(len(labels), dtype=torch.float64),
        novelty=torch.cat([each for each in known if each.shape[1] == known[0].shape[1]]),
        measured=first.measured[:0],
        history=remembered((*first.history, record)),
    )  # fmt: skip


def without(model: Model, label: Label, vectors: Any = None) -> tuple[Model, str]:
    """The model without a class, and a statement of what remains of it.

    Where the model keeps the scatter of each class (`method.keep_scatter`), or with all vectors that the class was
    learnt from, its part in the shared covariance is removed too: means, covariance and scores are then those of a
    model that never learnt the class."""
    if label not in model.labels:
        names = [str(known) for known in model.labels]
        raise UserError(f"the model has no class '{label}'{near_misses(str(label), names)}")
    if len(model.labels) < 3:
        raise UserError("a model needs two classes; delete the file instead of forgetting one of its last two")
    method = copy.deepcopy(_closed_form(model, "forget"))
    place = model.labels.index(label)
    kept = torch.tensor([number for number in range(len(model.labels)) if number != place])
    before = method.memory.get()
    smaller = PooledMoments(before.counts[kept], before.means[kept], before.scatter)
    remains = f"its name, mean and count are removed; nothing of it remains in the classifier{_chosen_with(model)}"
    if before.parts is not None:
        smaller = before.take(kept)
    elif len(before.scatter) and vectors is not None:
        smaller = replace(smaller, scatter=before.scatter - _scatter_of_class(model, place, before, vectors))
    elif len(before.scatter):
        # the covariance stays, and weighs as much as the vectors that are left
        smaller = replace(smaller, scatter=before.scatter * (smaller.freedom() / before.freedom()))
        share = max(0.0, float(before.counts[place]) - 1) / before.freedom()
        remains = (
            f"its name, mean and count are removed; what remains of it is its part in the covariance that all classes "
            f"share, {100 * share:.2g} % of it"
        )
    method.solve(method.memory.set(smaller))
    method.notices.clear()
    record = _record(model, images=0, forgotten=1, bytes_per_class=method.bytes_per_class(), rejection=model.rejection)
    history = (*(_scrubbed(each, label) for each in model.history), record)
    return replace(
        model, method=method, labels=tuple(model.labels[number] for number in kept.tolist()),
        counts=model.counts[kept], errors=model.errors[kept] if len(model.errors) else model.errors,
        measured=model.measured[kept] if len(model.measured) else model.measured,
        calibration=NO_CALIBRATION, history=remembered(history),
    ), f"{remains}; the temperature and the rejection threshold were measured with it"  # fmt: skip


def _chosen_with(model: Model) -> str:
    """What of the classifier was chosen with a class, besides sums."""
    errors = dict(model.method.named_buffers()).get("errors")
    left = ["of the map of an upgrade"] * any(record.upgrade is not None for record in model.history)
    left += ["of the ridge"] * bool(errors is not None and errors.any())
    return f" except in the choice {' and '.join(left)}" if left else ""


def _scatter_of_class(model: Model, place: int, before: PooledMoments, vectors: Any) -> torch.Tensor:
    """The part of a class in the shared scatter, [S, S], from the vectors that it was learnt from."""
    if not model.preprocessing.takes_vectors:
        raise UserError("vectors of the class can be subtracted from a model of vectors only")
    if any(record.upgrade is not None for record in model.history):
        raise UserError("the model was moved to another encoder since, so the vectors of a class cannot be subtracted")
    given = VectorInput(vectors)
    check_vectors(model, given.dim, given.encoder)
    method, own = _closed_form(model, "forget"), None
    with torch.no_grad():
        for batch in given.batches():
            embedded = method.embedded(method.backbone(batch.vectors))
            part = PooledMoments.of(embedded, torch.zeros(len(embedded), dtype=torch.int64), classes=1)
            own = part if own is None else own.merge(part)
    assert own is not None
    scale = (before.scatter.diagonal() / before.freedom()).clamp_min(0).sqrt().max()
    same = int(own.counts[0]) == int(before.counts[place])
    if not same or float((own.means[0] - before.means[place]).abs().max()) > SAME_MEAN * float(scale):
        raise UserError(
            f"these are not the vectors that '{model.labels[place]}' was learnt from: {int(own.counts[0])} instead of "
            f"{int(before.counts[place])}, or with another mean; give all of them, or none"
        )
    return own.scatter


def _closed_form(model: Model, verb: str) -> ClosedForm[Any]:
    """The model's method, if it is solved from moments on a frozen backbone."""
    method = model.method
    if not isinstance(method, ClosedForm) or type(method).learn is not ClosedForm.learn or model.frozen is not None:
        raise UserError(
            f"gatf {verb} needs a classifier that is solved from sums on a frozen backbone (slda, ncm, ranpac, klda or "
            f"acil), and this model's is '{model.config.method.name}' on a backbone that was trained"
        )
    return method


def _check_alike(first: Model, other: Model) -> None:
    """Refuse models whose sums are over different features."""
    _closed_form(other, "merge")
    mine, its = first.config, other.config
    if first.preprocessing.noun != other.preprocessing.noun:
        raise UserError("a model of images and a model of vectors cannot be merged")
    if mine.backbone.encoder != its.backbone.encoder or first.preprocessing != other.preprocessing:
        raise UserError(
            f"the models have different encoders ({mine.backbone.encoder or first.preprocessing.description} and "
            f"{its.backbone.encoder or other.preprocessing.description}); move one to the other's with gatf upgrade"
        )
    if mine.method != its.method or mine.backbone.unit_length != its.backbone.unit_length:
        raise UserError(
            "the models have different settings (method, or normalize); learn both with the same ones to merge them"
        )
    fixed = [
        {name: value for name, value in model.method.state_dict().items() if not name.startswith(OWN)}
        for model in (first, other)
    ]
    if fixed[0].keys() != fixed[1].keys() or not all(torch.equal(fixed[0][name], fixed[1][name]) for name in fixed[0]):
        raise UserError(
            "the models have different backbones or random features; they can be merged if both are learnt with the "
            "same frozen backbone and the same seed"
        )


def _record(model: Model, **values: Any) -> UpdateRecord:
    """A record of a change that learns no items."""
    usual = {"added": (), "held_out": 0, "epochs": 0, "seconds": 0.0, "accuracy_new": None}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    own = {"number": model.updates, "date": date, "kind": model.preprocessing.noun, "temperature": model.temperature}
    return UpdateRecord(**{**usual, **own, **values})


def _scrubbed(record: UpdateRecord, label: Label) -> UpdateRecord:
    """The record without the name of a class."""
    return record.model_copy(
        update={
            "added": tuple(each for each in record.added if each != label),
            "revisited": tuple(each for each in record.revisited if each != label),
            "warnings": tuple(each for each in record.warnings if str(label) not in each),
        }
    )
