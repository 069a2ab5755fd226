"""Are accuracy, forecast, calibration, rejection and certificates of an updated classifier correct on real photos?

python experiments/updates.py                     list the series of updates
python experiments/updates.py birds-frozen …      run some and write results/updates/<name>.json (needs GATF_DATA)

After every update: test accuracy on all seen classes and on older ones, the forecast for older ones, the calibration
error, the share of certified predictions, the AUROC of novelty scores for unknown classes, and the rejection rates.
docs/uncertainty.md shows the results.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from common import RESULTS, one_thread, rounded, save
from PIL import Image
from sklearn.metrics import roc_auc_score
from torch import Tensor

from gatf import IncrementalClassifier
from gatf.config import load_config
from gatf.data.sources import open_source
from gatf.evaluation.calibration import expected_calibration_error, reliability
from gatf.geometry import spd
from gatf.geometry.gaussians import Gaussians
from gatf.methods.parts.gaussian import keeps_gaussians_only
from gatf.model.novelty import UNKNOWN_SHRINK, combined_novelty, energy
from gatf.model.predict import forward, predictions_from
from gatf.model.state import ForwardOutput

PROMISED = 0.05
"""The requested rejection rate for known classes."""
NOISE = np.random.default_rng(0).integers(0, 256, (40, 96, 96, 3), dtype=np.uint8)
PLAIN = np.random.default_rng(0).integers(0, 256, (40, 1, 1, 3), dtype=np.uint8).repeat(96, 1).repeat(96, 2)
"""Images without content: noise, and a single colour."""


@dataclass(frozen=True)
class Trial:
    """A series of updates: classes of a benchmark, a few per update."""

    what: str
    recipe: str
    classes: int
    per_update: int
    parameters: dict[str, Any] = field(default_factory=dict)
    first: int | None = None
    """Classes of the first fit, where they are more."""
    most: tuple[int, ...] | None = None
    """Training images per class, in turn; None: all."""
    unknown_classes: int = 20
    """Classes that no update contains."""
    measured: str = "every update"
    """Or "the end"."""
    seed: int = 1


BIRDS: dict[str, Any] = {"image_size": 96, "minutes": 600.0}
"""Enough time to adapt the backbone on a busy machine, so that results do not depend on the clock."""
CIFAR: dict[str, Any] = {"backbone": "resnet18"}
TRIALS = {
    "birds-frozen": Trial("bird photos, adapt=never", "cub200-128px", 20, 2, BIRDS | {"adapt": "never"}),
    "birds-never": Trial("bird photos, adapt=never", "cub200-128px", 20, 5, BIRDS | {"adapt": "never"}),
    "birds-auto": Trial("bird photos, adapt=auto", "cub200-128px", 20, 5, BIRDS),
    "birds-adapted": Trial("bird photos, adapt=always", "cub200-128px", 20, 5, BIRDS | {"adapt": "always"}),
    "birds-finetune": Trial("bird photos, fine-tuning", "cub200-128px", 20, 5, BIRDS | {"method": "finetune"}),
    "birds-singles": Trial(
        "bird photos, one species per update, adapt=auto", "cub200-128px", 30, 1, BIRDS, first=2, measured="the end"
    ),
    "birds-singles-frozen": Trial(
        "the same, adapt=never", "cub200-128px", 30, 1, BIRDS | {"adapt": "never"}, first=2, measured="the end"
    ),
    "birds-three": Trial("bird photos, three images per class, adapt=auto", "cub200-128px", 20, 5, BIRDS, most=(3,)),
    "birds-one": Trial("bird photos, one image per class, adapt=auto", "cub200-128px", 20, 5, BIRDS, most=(1,)),
    "birds-three-frozen": Trial(
        "the same, adapt=never", "cub200-128px", 20, 5, BIRDS | {"adapt": "never"}, most=(3,)
    ),
    "birds-one-frozen": Trial(
        "the same, adapt=never", "cub200-128px", 20, 5, BIRDS | {"adapt": "never"}, most=(1,)
    ),
    "cifar": Trial("CIFAR-100 photos of 32 pixels, a network from scratch", "cifar100-t10", 20, 2, CIFAR, most=(200,)),
    "cifar-imbalance": Trial(
        "CIFAR-100 enlarged to 96 pixels, classes of 500 and of 10 images in turn, adapt=auto", "cifar100-t10", 10, 2,
        BIRDS | {"backbone": "efficientnet_lite0"}, most=(500, 10),
    ),
    "cifar-imbalance-frozen": Trial(
        "the same, adapt=never", "cifar100-t10", 10, 2,
        BIRDS | {"backbone": "efficientnet_lite0", "adapt": "never"}, most=(500, 10),
    ),
}  # fmt: skip


class Photos:
    """Images of a benchmark's classes as PIL images."""

    def __init__(self, trial: Trial) -> None:
        config = load_config(trial.recipe, method="finetune")
        self.source = open_source(config.data)
        self.order = np.random.default_rng(trial.seed).permutation(len(self.source.class_names)).tolist()
        self.trial = trial

    def of(self, classes: list[int], *, train: bool) -> tuple[list[Image.Image], np.ndarray]:
        part = self.source.train if train else self.source.test
        labels = part.labels.numpy()
        chosen = []
        for number in classes:
            places = np.flatnonzero(labels == number)
            if train and self.trial.most is not None:
                places = places[: self.trial.most[self.order.index(number) % len(self.trial.most)]]
            chosen.append(places)
        wanted = torch.from_numpy(np.concatenate(chosen))
        pixels = torch.cat(list(part.stream(wanted.split(256)))).numpy().transpose(0, 2, 3, 1)
        images = [Image.fromarray(each) for each in pixels]
        names = np.array([self.source.class_names[number] for number in labels[wanted.numpy()]])
        return images, names


def novelty_scores(outputs: ForwardOutput, stored: Gaussians | None, temperature: float) -> dict[str, Tensor]:
    """Novelty scores other than the classifier's own; higher means more likely unknown."""
    found = {
        "energy": energy(outputs.scores, temperature)[:, 0],
        "probability": -torch.softmax(outputs.scores / temperature, 1).amax(1),
    }
    if stored is None or outputs.features is None:
        return found
    means, within = stored.means.double(), stored.mean_cov().double()
    centre = means.mean(0)
    total = within + (means - centre).T @ (means - centre) / len(means)

    def squares(cov: Tensor, points: Tensor) -> Tensor:
        lower = spd.cholesky(spd.shrink(cov, UNKNOWN_SHRINK)).lower
        features, others = (
            torch.linalg.solve_triangular(lower, each.double().T, upper=False).T for each in (outputs.features, points)
        )
        return torch.cdist(features, others).square()

    nearest = squares(within, means).amin(1)
    return found | {
        "distance": nearest,
        "quotient": nearest / squares(within, centre[None])[:, 0],
        "relative distance": nearest - squares(total, centre[None])[:, 0],
    }


def auroc(known: dict[str, Tensor], unknown: dict[str, Tensor]) -> dict[str, float]:
    """AUROC of each novelty score between known and unknown images."""
    truth = np.r_[np.zeros(len(known["own"])), np.ones(len(unknown["own"]))]
    return {name: float(roc_auc_score(truth, torch.cat([known[name], unknown[name]]))) for name in known}


def measured(learner: IncrementalClassifier, photos: Photos, known: list[int], old: list[int]) -> dict[str, Any]:
    """All measurements after an update."""
    model, trial = learner.model_, photos.trial
    images, names = photos.of(known, train=False)
    outputs = forward(model, images)
    predicted = predictions_from(model, outputs)
    right = torch.from_numpy(predicted.labels == names)
    older = torch.from_numpy(np.isin(names, [photos.source.class_names[number] for number in old]))
    record = model.history[-1]
    row: dict[str, Any] = {
        "classes": len(known),
        "accuracy": 100 * float(right.double().mean()),
        "accuracy_old": 100 * float(right[older].double().mean()) if old else None,
        "expected_old": record.expected_old,
        "expected_old_low": record.expected_old_low,
        "expected_old_high": record.expected_old_high,
        "calibration_error": 100
        * expected_calibration_error(reliability(torch.from_numpy(predicted.probabilities).amax(1), right)),
        "rejection": record.rejection,
        "chosen": record.chosen,
    }
    unknown_classes = photos.order[trial.classes : trial.classes + trial.unknown_classes]
    unknown = forward(model, photos.of(unknown_classes, train=False)[0])
    gaussian = keeps_gaussians_only(model.method)
    stored = model.method.stored() if gaussian else None
    ours, theirs = (novelty_scores(each, stored, model.temperature) for each in (outputs, unknown))
    base = model.novelty if len(model.novelty) else model.novelty_of(outputs)
    ours["own"], theirs["own"] = (combined_novelty(model.novelty_of(each), base) for each in (outputs, unknown))
    row["auroc"] = auroc(ours, theirs)
    for name, blind in (("noise", NOISE), ("plain", PLAIN)):
        seen = forward(model, [Image.fromarray(each).resize(images[0].size) for each in blind])
        other = novelty_scores(seen, stored, model.temperature) | {
            "own": combined_novelty(model.novelty_of(seen), base)
        }
        row[f"auroc_{name}"] = auroc(ours, other)
    if record.rejection != "withdrawn" and len(model.novelty) >= 1 / PROMISED:
        for name, each in (("rejected_known", outputs), ("rejected_strangers", unknown)):
            labels = predictions_from(model, each, unknown=PROMISED, unknown_label="\0").labels
            row[name] = 100 * float((labels == "\0").mean())
    if gaussian:
        certified = torch.from_numpy(predictions_from(model, outputs, certificate=True).certified)
        row["certified"] = 100 * float(certified.double().mean())
        row["accuracy_certified"] = 100 * float(right[certified].double().mean()) if certified.any() else None
    return row


def run(name: str, report: Callable[[str], None]) -> dict[str, Any]:
    trial = TRIALS[name]
    photos = Photos(trial)
    learner = IncrementalClassifier(**trial.parameters, device="cpu", random_state=trial.seed)
    start = trial.first or trial.per_update
    ends = [start, *range(start + trial.per_update, trial.classes + 1, trial.per_update)]
    rows, before = [], 0
    for end in ends:
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            learner.partial_fit(*photos.of(photos.order[before:end], train=True))
            seconds = time.process_time() - began
            if trial.measured == "every update" or end == ends[-1]:
                row = measured(learner, photos, photos.order[:end], photos.order[:before])
                rows.append({"update": len(learner.model_.history) - 1, "cpu_seconds": seconds} | row)
                report(json.dumps(rows[-1]))
        before = end
    adapted = sum(record.chosen == "adapted" for record in learner.model_.history)
    method = learner.model_.config.method.name
    return {"name": name, "what": trial.what, "method": method, "updates_adapted": adapted, "rows": rounded(rows, 4)}


def main(names: list[str]) -> None:
    one_thread()
    if not names:
        print("\n".join(f"{name}: {trial.what}" for name, trial in TRIALS.items()))
    for name in names:
        save(RESULTS / "updates" / f"{name}.json", run(name, lambda line: print(line, flush=True)))


if __name__ == "__main__":
    main(sys.argv[1:])
