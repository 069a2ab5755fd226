"""`gatf evaluate`: the accuracy and calibration of a model on labelled images that it did not learn from."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gatf.data.class_names import spelled_as_known
from gatf.data.inputs import read_class_folders
from gatf.data.vectors import VectorInput
from gatf.errors import UserError, near_misses
from gatf.evaluation.calibration import ReliabilityBin, confusion, expected_calibration_error, reliability
from gatf.model.predict import check_vectors, forward, predictions_from
from gatf.model.state import Model


@dataclass(frozen=True)
class ClassResult:
    """The result for one class."""

    name: str
    images: int
    accuracy: float
    """Percent."""
    taken_for: str | None
    """The wrong class that its images are most often predicted as."""


@dataclass(frozen=True)
class Assessment:
    """The evaluation of a model on a folder of labelled images."""

    images: int
    accuracy: float
    """Percent of the images that are classified correctly, among all classes of the model."""
    mean_class_accuracy: float
    """The mean of the class accuracies, in percent."""
    calibration_error: float
    """Expected calibration error, in percent."""
    mean_confidence: float
    """Mean probability of the predicted classes, in percent."""
    by_class: tuple[ClassResult, ...]
    """Classes of the folder, in the model's order."""
    confusion: tuple[tuple[int, ...], ...]
    """Row: class of the folder, in that order; column: class of the model."""
    classes: tuple[str, ...]
    """The classes of the model, in the order of the columns."""
    reliability: tuple[ReliabilityBin, ...]
    left_out: dict[str, int]
    """Images of classes the model does not know."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def assess_folder(model: Model, folder: Path, *, skip_bad: bool = False) -> Assessment:
    """Measure a model on a folder with one folder of images per class."""
    given, truth = read_class_folders(folder)
    if skip_bad:
        given, good = given.without_bad(model.preprocessing.shape)
        truth = truth[good]
    return _assess(model, truth, given, str(folder))


def assess_vectors(model: Model, name: str) -> Assessment:
    """Measure a model on a file of labelled vectors."""
    given = VectorInput(name)
    check_vectors(model, given.dim, given.encoder)
    batches = list(given.batches())
    if any(batch.labels is None for batch in batches):
        raise UserError(f"{name} has no labels; evaluation needs a column or array 'label'")
    truth = np.concatenate([batch.labels for batch in batches if batch.labels is not None]).astype(str)
    return _assess(model, truth, torch.cat([batch.vectors for batch in batches]), name)


def _assess(model: Model, truth: np.ndarray, given: Any, where: str) -> Assessment:
    """Measure a model on images or vectors with these labels."""
    names = [str(label) for label in model.labels]
    truth = spelled_as_known(truth, names)
    known = np.isin(truth, names)
    unknown, counts = np.unique(truth[~known], return_counts=True)
    if not known.any():
        raise UserError(
            f"the model knows no class of {where} ({', '.join(unknown[:3])}){near_misses(unknown[0], names)}"
        )
    found = predictions_from(model, forward(model, given)).probabilities
    number = {name: place for place, name in enumerate(names)}
    labels = torch.tensor([number[name] for name in truth[known]])
    probabilities = torch.from_numpy(found[known])
    predicted = probabilities.argmax(1)
    correct, confidence = predicted == labels, probabilities.amax(1)
    table = confusion(predicted, labels, len(names))
    present = torch.nonzero(table.sum(1) > 0).squeeze(1).tolist()
    by_class = tuple(_class_result(names, place, table[place]) for place in present)
    bins = reliability(confidence, correct)
    return Assessment(
        images=len(labels),
        accuracy=100 * float(correct.double().mean()),
        mean_class_accuracy=float(np.mean([each.accuracy for each in by_class])),
        calibration_error=100 * expected_calibration_error(bins),
        mean_confidence=100 * float(confidence.mean()),
        by_class=by_class,
        confusion=tuple(tuple(row) for row in table[present].tolist()),
        classes=tuple(names),
        reliability=tuple(bins),
        left_out=dict(zip(unknown.tolist(), counts.tolist(), strict=True)),
    )


def _class_result(names: list[str], place: int, row: torch.Tensor) -> ClassResult:
    mistakes = row.clone()
    mistakes[place] = 0
    worst = int(mistakes.argmax())
    images = int(row.sum())
    taken_for = names[worst] if int(mistakes[worst]) else None
    return ClassResult(names[place], images, 100 * int(row[place]) / images, taken_for)
