"""Can an attacker tell from a model whether an image was in the training set (membership inference)?

python experiments/membership.py             digits, and a part of CIFAR-100 if it is available (GATF_DATA)
python experiments/membership.py digits      one of them

Members are training images; the others are test images of the same classes. One attacker uses the distance of an image
to the stored Gaussian of its class, the other the score of its class. The AUC is the probability that a member ranks
above a non-member; 0.5 is chance. Intervals are bootstrapped over images.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import one_thread, save
from torch import Tensor

from gatf.config import load_config
from gatf.data.loader import views
from gatf.errors import UserError
from gatf.experiment import Experiment
from gatf.geometry.readout import mahalanobis_readout

DRAWS = 1000
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {
        "backbone.bottleneck": 16, "backbone.width": 16,
        "optimisation.first.epochs": 30, "optimisation.next.epochs": 20,
    },
    "cifar100": {
        "data.name": "cifar100", "data.image_size": 16, "data.augment": ["flip"], "scenario.order": list(range(10)),
        "scenario.tasks": 2, "backbone.name": "small", "backbone.bottleneck": 16, "backbone.width": 16,
        "optimisation.first.epochs": 20, "optimisation.next.epochs": 15,
    },
}  # fmt: skip
NOISE = {"method.noise.epsilon": 8.0, "method.noise.clip": 4.0}


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """The probability that a member has a higher value than a non-member; ties count half."""
    ranks = np.searchsorted(np.sort(others), members, "left") + np.searchsorted(np.sort(others), members, "right")
    return float(ranks.mean() / (2 * len(others)))


def interval(members: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    draw = np.random.default_rng(0)
    found = [auc(draw.choice(members, len(members)), draw.choice(others, len(others))) for _ in range(DRAWS)]
    return float(np.quantile(found, 0.025)), float(np.quantile(found, 0.975))


@torch.no_grad()
def attack_scores(experiment: Experiment, train: bool) -> dict[str, np.ndarray]:
    """The value that each attacker computes for every training or test image."""
    scenario, method = experiment.scenario, experiment.method.eval()
    images = scenario.source.train if train else scenario.source.test
    members, labels = scenario.members(images, 0, len(scenario) - 1)
    batches = views(images, members, experiment.session.pipeline, experiment.session.device)
    features = torch.cat([method.backbone(batch) for batch in batches])
    stored = method.stored()
    near = mahalanobis_readout(stored, 0.1).scores(features)
    scores = method.feature_scores(features).double().log_softmax(1)

    def own(values: Tensor) -> np.ndarray:
        return values.gather(1, labels[:, None])[:, 0].double().numpy()

    return {"the stored Gaussians": own(near), "the scores": own(scores)}


def measure(data: str, images: int, noise: bool) -> list[dict[str, Any]]:
    settings = {**SETTINGS[data], "data.max_per_class": images, "device": "cpu", **(NOISE if noise else {})}
    settings |= {f"optimisation.{stage}.batch_size": 32 for stage in ("first", "next")}
    config = load_config("digits" if data == "digits" else {}, method="gatf", overrides=settings)
    with tempfile.TemporaryDirectory() as place:
        experiment = Experiment(config)
        (Path(place) / "checkpoints").mkdir()
        accuracy = experiment.run(Path(place), ()).a_last
    inside, outside = attack_scores(experiment, True), attack_scores(experiment, False)
    rows = []
    for what, seen in inside.items():
        low, high = interval(seen, outside[what])
        added = f", noise ε = {NOISE['method.noise.epsilon']:g}" if noise else ""
        row = {"data": data, "what": what + added, "classes": len(experiment.scenario.order), "images": images}
        rows.append({**row, "auc": auc(seen, outside[what]), "low": low, "high": high, "accuracy": accuracy})
    return rows


def main(chosen: list[str]) -> None:
    one_thread()
    rows: list[dict[str, Any]] = []
    for data in chosen or list(SETTINGS):
        for images, noise in ((20, False), (100, False), (100, True)):
            try:
                found = measure(data, images, noise)
            except UserError as error:
                print(f"{data}: {error}")
                break
            rows += found
            for row in found:
                print(f"{data}, {row['what']}: AUC {row['auc']:.3f}, accuracy {row['accuracy']:.1f} %", flush=True)
    save("membership", {"attacks": rows})


if __name__ == "__main__":
    main(sys.argv[1:])
