"""How does a classifier do that gains classes, and is what it says of itself true? On real photos, update by update.

python tools/updates.py                     list the experiments
python tools/updates.py birds-frozen …      run some and write results/updates/<name>.json (GATF_DATA as for `gatf run`)

After every update: accuracy on test images of all classes so far and of older ones, the forecast for the older ones,
the calibration error, the share of certified answers, how well images of classes that were never taught are told from
known ones, and how many known images are called unknown at a promised rate. docs/uncertainty.md is made from it.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score
from torch import Tensor

from gatf import IncrementalClassifier
from gatf.config import load_config
from gatf.data.sources import open_source
from gatf.evaluation.calibration import expected_calibration_error, reliability
from gatf.geometry import spd
from gatf.geometry.gaussians import Gaussians
from gatf.io.files import write_text
from gatf.methods.parts.gaussian import keeps_gaussians_only
from gatf.model.answers import answer, look
from gatf.model.judge import UNKNOWN_SHRINK, energy, strangest
from gatf.model.state import Looks
from results import RESULTS

PROMISED = 0.05
"""The rate of wrong rejections that is asked for."""
NOISE = np.random.default_rng(0).integers(0, 256, (40, 96, 96, 3), dtype=np.uint8)
PLAIN = np.random.default_rng(0).integers(0, 256, (40, 1, 1, 3), dtype=np.uint8).repeat(96, 1).repeat(96, 2)
"""Images of nothing: of noise, and of one colour each."""


@dataclass(frozen=True)
class Trial:
    """Classes of a benchmark, taught a few at a time."""

    what: str
    recipe: str
    classes: int
    per_update: int
    parameters: dict[str, Any] = field(default_factory=dict)
    first: int | None = None
    """Classes of the first fit, where they are more."""
    most: tuple[int, ...] | None = None
    """Training images per class, in turn; None: all."""
    strangers: int = 20
    """Classes that are never taught."""
    measured: str = "every update"
    """Or "the end"."""
    seed: int = 1


BIRDS: dict[str, Any] = {"image_size": 96, "minutes": 600.0}
"""Time enough to adapt the network on a busy machine too, so that not the clock decides what is measured."""
CIFAR: dict[str, Any] = {}
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
    """Images of a benchmark's classes, as anyone would hand them to a classifier."""

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


def strangeness_by(looks: Looks, stored: Gaussians | None, temperature: float) -> dict[str, Tensor]:
    """Ways to tell unknown images, higher is stranger; beside the classifier's own."""
    found = {
        "energy": energy(looks.scores, temperature)[:, 0],
        "probability": -torch.softmax(looks.scores / temperature, 1).amax(1),
    }
    if stored is None or looks.features is None:
        return found
    means, within = stored.means.double(), stored.mean_cov().double()
    centre = means.mean(0)
    total = within + (means - centre).T @ (means - centre) / len(means)

    def squares(cov: Tensor, points: Tensor) -> Tensor:
        lower = spd.cholesky(spd.shrink(cov, UNKNOWN_SHRINK)).lower
        features, others = (
            torch.linalg.solve_triangular(lower, each.double().T, upper=False).T for each in (looks.features, points)
        )
        return torch.cdist(features, others).square()

    nearest = squares(within, means).amin(1)
    return found | {
        "distance": nearest,
        "quotient": nearest / squares(within, centre[None])[:, 0],
        "relative distance": nearest - squares(total, centre[None])[:, 0],
    }


def told_apart(known: dict[str, Tensor], strange: dict[str, Tensor]) -> dict[str, float]:
    """Area under the curve of each way to tell strange images from known ones."""
    truth = np.r_[np.zeros(len(known["own"])), np.ones(len(strange["own"]))]
    return {name: float(roc_auc_score(truth, torch.cat([known[name], strange[name]]))) for name in known}


def measured(learner: IncrementalClassifier, photos: Photos, known: list[int], old: list[int]) -> dict[str, Any]:
    """Everything there is to say after an update."""
    model, trial = learner.model_, photos.trial
    images, names = photos.of(known, train=False)
    looks = look(model, images)
    said = answer(model, looks)
    right = torch.from_numpy(said.labels == names)
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
        * expected_calibration_error(reliability(torch.from_numpy(said.probabilities).amax(1), right)),
        "rejection": record.rejection,
        "chosen": record.chosen,
    }
    strangers = photos.order[trial.classes : trial.classes + trial.strangers]
    strange = look(model, photos.of(strangers, train=False)[0])
    gaussian = keeps_gaussians_only(model.method)
    stored = model.method.stored() if gaussian else None
    ours, theirs = (strangeness_by(each, stored, model.temperature) for each in (looks, strange))
    base = model.strangeness if len(model.strangeness) else model.strangeness_of(looks)
    ours["own"], theirs["own"] = (strangest(model.strangeness_of(each), base) for each in (looks, strange))
    row["auroc"] = told_apart(ours, theirs)
    for name, blind in (("noise", NOISE), ("plain", PLAIN)):
        seen = look(model, [Image.fromarray(each).resize(images[0].size) for each in blind])
        other = strangeness_by(seen, stored, model.temperature) | {"own": strangest(model.strangeness_of(seen), base)}
        row[f"auroc_{name}"] = told_apart(ours, other)
    if record.rejection != "withdrawn" and len(model.strangeness) >= 1 / PROMISED:
        for name, each in (("rejected_known", looks), ("rejected_strangers", strange)):
            labels = answer(model, each, unknown=PROMISED, unknown_label="\0").labels
            row[name] = 100 * float((labels == "\0").mean())
    if gaussian:
        certified = torch.from_numpy(answer(model, looks, certificate=True).certified)
        row["certified"] = 100 * float(certified.double().mean())
        row["accuracy_certified"] = 100 * float(right[certified].double().mean()) if certified.any() else None
    return row


def run(name: str, told: Callable[[str], None]) -> dict[str, Any]:
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
                told(json.dumps(rows[-1]))
        before = end
    adapted = sum(record.chosen == "adapted" for record in learner.model_.history)
    method = learner.model_.config.method.name
    return {"name": name, "what": trial.what, "method": method, "updates_adapted": adapted, "rows": rounded(rows)}


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def main(names: list[str], folder: Path = RESULTS / "updates") -> None:
    torch.set_num_threads(1)
    if not names:
        print("\n".join(f"{name}: {trial.what}" for name, trial in TRIALS.items()))
    for name in names:
        found = run(name, lambda line: print(line, flush=True))
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / f"{name}.json", json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
