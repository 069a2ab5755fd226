"""What a model says of images: labels, probabilities, which answers are certified, which images are of no class it
knows. Without scikit-learn, whose import would take longer than the answer."""

from typing import Any

import numpy as np
import torch

from gatf.data.inputs import read_images
from gatf.errors import UserError
from gatf.model.judge import combined_novelty, rejection_threshold, softmax_with_temperature
from gatf.model.said import Answers
from gatf.model.state import ForwardOutput, Label, Model

REJECTION_WARNINGS = {
    "estimated": (
        "the rate at which images of known classes are called unknown is estimated, not promised, for classes older "
        "than the last update"
    ),
    "withdrawn": (
        "nothing is rejected as unknown: nothing shows how far an update moved the images of older classes; an update "
        "with images of every class brings it back"
    ),
}
"""What is said of rejections, by `Model.rejection`."""


def forward(model: Model, images: Any, *, features: bool = False, once: bool = False) -> ForwardOutput:
    """Scores and features of images in any form that `read_images` takes; `features` and `once` as `Model.forward` has
    them. A model whose scores are not finite has no answer, which is a `UserError`."""
    outputs = model.forward(model.preprocessing.images(read_images(images)), features=features, once=once)
    if not bool(outputs.scores.isfinite().all()):
        raise UserError(
            "the model's scores are not finite, so it cannot answer: its numbers are not what training leaves; put an "
            "older version back (gatf rollback), or get the file again"
        )
    return outputs


def answer(
    model: Model, outputs: ForwardOutput, *, certificate: bool = False, unknown: float | None = None,
    unknown_label: Label | None = None,
) -> Answers:  # fmt: skip
    """Everything there is to say about images from one look at them.

    With `unknown`, images unlike every class are answered with `unknown_label`, at this rate of wrong rejections.
    """
    numbers = outputs.scores.argmax(1)
    names = np.array(model.labels)
    labels: np.ndarray = names[numbers.numpy()]
    rejected = certified = np.zeros(len(labels), dtype=bool)
    warning = None
    if unknown is not None:
        rejected = _rejected(model, outputs, unknown)
        labels = _with_unknown(labels, rejected, model.labels, unknown_label)
        warning = REJECTION_WARNINGS.get(model.rejection)
    if certificate:
        certified = model.judge.certificates(_features(outputs, model), numbers).numpy() & ~rejected
    return Answers(labels, softmax_with_temperature(outputs.scores, model.temperature).numpy(), certified, warning)


def _rejected(model: Model, outputs: ForwardOutput, rate: float) -> np.ndarray:
    """Which images are stranger than all but a share `rate` of known ones; none where that is no longer known."""
    if not 0 < rate < 1:
        raise UserError(f"unknown is the rate of known images that may be rejected, between 0 and 1, not {rate!r}")
    if model.rejection == "withdrawn":
        return np.zeros(len(outputs.scores), dtype=bool)
    known = model.novelty
    threshold = rejection_threshold(combined_novelty(known, known), rate) if len(known) else float("inf")
    if threshold == float("inf"):
        raise UserError(
            f"too few images were kept back ({len(model.novelty)}) to reject at a rate of {rate}; raise unknown "
            "or held_out"
        )
    return (combined_novelty(model.novelty_of(outputs), known) > threshold).numpy()


def _with_unknown(
    answers: np.ndarray, rejected: np.ndarray, known: tuple[Label, ...], label: Label | None
) -> np.ndarray:
    text = answers.dtype.kind == "U"
    if label is None:
        label = "unknown" if text else -1
    if label in known:
        raise UserError(f"{label!r} is the name of a class; choose another unknown_label")
    kind = np.result_type(answers, np.array(label)) if isinstance(label, str) == text else object
    mixed = answers.astype(kind)
    mixed[rejected] = label
    return mixed


def _features(outputs: ForwardOutput, model: Model) -> torch.Tensor:
    if outputs.features is None:
        _ = model.judge  # says what is missing
        raise UserError("this method keeps no Gaussians")
    return outputs.features
