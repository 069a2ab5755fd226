"""How well one can tell from what a model stores whether an image was trained on.

Writes benchmarks/results/privacy.json.

python tools/membership.py                 digits, and a slice of CIFAR-100 where it is at hand (GATF_DATA)
python tools/membership.py digits          one of them

Members are training images, the others test images of the same classes. Two attackers: one looks how near an image lies
to its class's stored Gaussian, one at the score of its class. The AUC is the chance that a member is ranked above
another image; 0.5 is guessing. Intervals are bootstrapped over images.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatf.config import load_config
from gatf.data.loader import views
from gatf.errors import UserError
from gatf.experiment import Experiment
from gatf.geometry.readout import mahalanobis_readout

OUT = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "privacy.json"
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
NOISE = {"method.noise_epsilon": 8.0, "method.noise_clip": 4.0}


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """The chance that a member's value is above another's; ties count half."""
    ranks = np.searchsorted(np.sort(others), members, "left") + np.searchsorted(np.sort(others), members, "right")
    return float(ranks.mean() / (2 * len(others)))


def interval(members: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    draw = np.random.default_rng(0)
    found = [auc(draw.choice(members, len(members)), draw.choice(others, len(others))) for _ in range(DRAWS)]
    return float(np.quantile(found, 0.025)), float(np.quantile(found, 0.975))


@torch.no_grad()
def suspicions(experiment: Experiment, train: bool) -> dict[str, np.ndarray]:
    """What each attacker sees of every training or test image."""
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


def measure(data: str, images: int, noise: bool) -> tuple[list[dict[str, Any]], float]:
    settings = {**SETTINGS[data], "data.max_per_class": images, "device": "cpu", **(NOISE if noise else {})}
    settings |= {f"optimisation.{stage}.batch_size": 32 for stage in ("first", "next")}
    config = load_config("digits" if data == "digits" else {}, method="gatf", overrides=settings)
    with tempfile.TemporaryDirectory() as place:
        experiment = Experiment(config)
        (Path(place) / "checkpoints").mkdir()
        accuracy = experiment.run(Path(place), ()).a_last
    inside, outside = suspicions(experiment, True), suspicions(experiment, False)
    rows = []
    for what, seen in inside.items():
        low, high = interval(seen, outside[what])
        added = f", noise ε = {NOISE['method.noise_epsilon']:g}" if noise else ""
        row = {"data": data, "what": what + added, "classes": len(experiment.scenario.order), "images": images}
        rows.append({**row, "auc": auc(seen, outside[what]), "low": low, "high": high, "accuracy": accuracy})
    return rows, accuracy


def main(chosen: list[str]) -> int:
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for data in chosen or list(SETTINGS):
        for images, noise in ((20, False), (100, False), (100, True)):
            try:
                found, accuracy = measure(data, images, noise)
            except UserError as error:
                print(f"{data}: {error}")
                break
            rows += found
            print(f"{data}, {images} images per class, noise {noise}: accuracy {accuracy:.1f} %", flush=True)
            for row in found:
                print(f"  {row['what']}: AUC {row['auc']:.3f} ({row['low']:.3f} to {row['high']:.3f})", flush=True)
    OUT.write_text(json.dumps({"attacks": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
