"""Predictions of a model: labels, probabilities, certificates, and the rejection of unknown classes.

Without scikit-learn, whose import takes longer than a prediction."""

from typing import Any

import numpy as np
import torch

from gatf.data.inputs import from_dataset, read_images
from gatf.data.vectors import as_vectors, checked
from gatf.errors import UserError
from gatf.model.calibration import softmax_with_temperature
from gatf.model.novelty import combined_novelty, rejection_threshold
from gatf.model.predictions import Predictions
from gatf.model.state import ForwardOutput, Label, Model

REJECTION_WARNINGS = {
    "estimated": ("the rate of wrong rejections is estimated, not guaranteed, for classes older than the last update"),
    "withdrawn": (
        "no image is rejected as unknown, because no held-out image shows how far an update moved the older classes; "
        "an update with images of every class restores rejection"
    ),
}
"""Cautions about rejection, by `Model.rejection`."""


def forward(model: Model, images: Any, *, features: bool = False, once: bool = False) -> ForwardOutput:
    """Scores and features of images that `read_images` takes, or of a data set; `features` and `once` as in
    `Model.forward`.

    Raises a `UserError` if scores are not finite.
    """
    vectors = model.preprocessing.takes_vectors
    images, _ = from_dataset(images, vectors=vectors, labelled=False)
    given = read_vectors(images, model) if vectors else read_images(images)
    outputs = model.forward(model.preprocessing.images(given), features=features, once=once)
    if not bool(outputs.scores.isfinite().all()):
        raise UserError(
            "the model's scores are not finite, so it cannot predict; restore an older version (gatf rollback) or "
            "get the file again"
        )
    return outputs


def read_vectors(given: Any, model: Model) -> torch.Tensor:
    """Vectors for prediction, [N, D], checked against the model's dimension."""
    vectors = checked(as_vectors(given))
    check_vectors(model, vectors.shape[1])
    return vectors


def check_vectors(model: Model, dim: int, encoder: str | None = None) -> None:
    """Refuse vectors of another dimension, or that name another encoder than the model's."""
    known, learnt = model.config.backbone.encoder, model.preprocessing.shape[0]
    if dim != learnt:
        raise UserError(
            f"X has {dim} features, but EmbeddingClassifier is expecting {learnt} features as input"
            f"{f', of encoder {known}' if known else ''}; gatf upgrade moves a model to another encoder"
        )
    if encoder is not None and known is not None and encoder != known:
        raise UserError(
            f"the vectors are of encoder '{encoder}', but the model learnt vectors of '{known}'; gatf upgrade moves a "
            "model to another encoder"
        )


def predictions_from(
    model: Model, outputs: ForwardOutput, *, certificate: bool = False, unknown: float | None = None,
    unknown_label: Label | None = None,
) -> Predictions:  # fmt: skip
    """Labels, probabilities and certificates from the outputs of one forward pass.

    With `unknown`, images unlike every class get `unknown_label`, at this rate of wrong rejections.
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
        certified = model.certifier.certificates(_features(outputs, model), numbers).numpy() & ~rejected
    probabilities = softmax_with_temperature(outputs.scores, model.temperature).numpy()
    return Predictions(labels, probabilities, certified, warning)


def _rejected(model: Model, outputs: ForwardOutput, rate: float) -> np.ndarray:
    """Which images have a higher novelty than all but a share `rate` of known ones; none where it is withdrawn."""
    if not 0 < rate < 1:
        raise UserError(f"unknown is the rate of known images that may be rejected, between 0 and 1, not {rate!r}")
    if model.rejection == "withdrawn":
        return np.zeros(len(outputs.scores), dtype=bool)
    known = model.novelty
    threshold = rejection_threshold(combined_novelty(known, known), rate) if len(known) else float("inf")
    if threshold == float("inf"):
        raise UserError(
            f"too few images were held out ({len(model.novelty)}) to reject at a rate of {rate}; raise unknown or "
            "held_out"
        )
    return (combined_novelty(model.novelty_of(outputs), known) > threshold).numpy()


def _with_unknown(
    labels: np.ndarray, rejected: np.ndarray, known: tuple[Label, ...], label: Label | None
) -> np.ndarray:
    text = labels.dtype.kind == "U"
    if label is None:
        label = "unknown" if text else -1
    if label in known:
        raise UserError(f"{label!r} is the name of a class; choose another unknown_label")
    kind = np.result_type(labels, np.array(label)) if isinstance(label, str) == text else object
    mixed = labels.astype(kind)
    mixed[rejected] = label
    return mixed


def _features(outputs: ForwardOutput, model: Model) -> torch.Tensor:
    if outputs.features is None:
        _ = model.stored  # raises the error that names the method
        raise UserError("this method keeps no Gaussians")
    return outputs.features
