"""What makes the network learn more in later tasks? Variants of `gatf plus` under the cosine schedule.

python experiments/later_tasks.py cifar100-16px [--seeds 0 1] [--only WORD ...] [--folder RUNS]
python experiments/later_tasks.py coarse-32px

Accuracy is measured on a fifth of the training images, held out. The first task's network is shared by all variants
that do not change it. Every finished run is written to experiments/results/later_tasks.json.
"""

import argparse
import io
import os
import sys
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from common import load, one_thread, save
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, mse_loss

from gatf.config import load_config
from gatf.experiment import resume
from gatf.io.run_folder import RunFolder
from gatf.methods.base import Batch, TaskData, TaskInfo
from gatf.methods.gatf import GATF, GATFConfig
from gatf.methods.lwf import softened_cross_entropy
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.losses import anti_collapse, has_covariance, task_batch
from gatf.network_reuse import network_source_beside
from gatf.settings import AffectsLaterTasksOnly, Fraction, NotNegative

NAME = "later_tasks"
HELD_OUT = {
    "data.val_fraction": 0.4,
    "data.evaluate_on": "validation",
    "scenario.stop_after": 5,
    "keep_networks": True,
    "precision": "bf16-mixed",
    "method.anchor.refresh": 2,
}
SHORT = {"optimisation.first.epochs": 16, "optimisation.next.epochs": 20}
COARSE_IMAGES = 400
"""Images per superclass of coarse-32px."""


class VariantConfig(GATFConfig):
    name: str = f"{NAME}:Variant"
    merge: AffectsLaterTasksOnly[Fraction] = 0.0
    """Weight of the old network in the average of old and new weights that follows every later task."""
    smoothing: AffectsLaterTasksOnly[Fraction] = 0.0
    """Label smoothing in later tasks."""
    logits: AffectsLaterTasksOnly[NotNegative] = 0.0
    """Weight of LwF's distillation of old logits, whose heads are kept and trained."""
    backward: AffectsLaterTasksOnly[bool] = True
    """Distil features through the map new → old, as GATF does."""


class Variant(GATF):
    """GATF with options that are not in the package."""

    name = f"{NAME}:Variant"
    Config: ClassVar[type[VariantConfig]] = VariantConfig  # type: ignore[misc]
    config: VariantConfig
    old_head: tuple[Tensor, Tensor] | None = None
    before: dict[str, Tensor] | None = None

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        if task.index > 0 and self.config.merge:
            self.before = deepcopy(self.backbone.state_dict())
        if task.index > 0 and self.config.logits:
            whole = self.make(lambda: nn.Linear(self.feature_dim, task.old + task.new), "head", task.index)
            with torch.no_grad():
                whole.weight[: task.old], whole.bias[: task.old] = self.old_head
            self.head = whole

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        config = self.config
        if task.index == 0:
            return super().loss(batch, task)
        images, labels = task_batch(batch, task, False)
        new, old = self.features(batch, images), frozen_features(self.teacher, images)
        logits = self.head(new)
        terms = {"ce": cross_entropy(logits[:, -task.new :], labels, label_smoothing=config.smoothing)}
        terms["forward"] = config.topology * mse_loss(self.map(old), new.detach())
        if config.backward:
            terms["backward"] = config.topology * mse_loss(self.distiller(new), old)
        if config.logits:
            target = linear(old, *self.old_head)
            terms["logits"] = config.logits * softened_cross_entropy(logits[:, : task.old], target, 2.0)
        if config.anti_collapse and has_covariance(new, batch):
            terms["anti_collapse"] = config.anti_collapse * anti_collapse(new, config.clamp)
        return terms

    def end_task(self, data: TaskData) -> None:
        if self.before is not None:
            self._merge(data)
        if self.config.logits:
            seen = data.info.old + data.info.new  # task 0 also has rotated classes
            self.old_head = self.head.weight[:seen].detach().clone(), self.head.bias[:seen].detach().clone()
        super().end_task(data)

    @torch.no_grad()
    def _merge(self, data: TaskData) -> None:
        """Average old and new weights, then estimate the batch-norm statistics on the new task's images."""
        weight, old = self.config.merge, self.before
        for name, parameter in self.backbone.named_parameters():
            parameter.lerp_(old[name], weight)
        norms = [one for one in self.backbone.modules() if isinstance(one, nn.BatchNorm2d)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
        self.backbone.train()
        for batch in data.batches("train", batch_size=128, purpose="merge"):
            self.backbone(batch.images)
        for norm in norms:
            norm.momentum = 0.1
        self.backbone.eval()


RATE, LOOSE = {"optimisation.next.lr": 0.05}, {"method.topology": 0.3}
LOGITS = {"method.logits": 10.0, "method.backward": False}
VARIANTS: dict[str, dict[str, Any]] = {
    "plus": {},
    "rate 0.05": RATE,
    "rate 0.05, logits": RATE | LOGITS,
    "rate 0.05, 120 dimensions": RATE | {"backbone.bottleneck": 120},
    "rate 0.05, logits, 120 dimensions": RATE | LOGITS | {"backbone.bottleneck": 120},
    "rate 0.05, merge 0.5": RATE | {"method.merge": 0.5},
    "rate 0.05, λ 0.3": RATE | LOOSE,
    "rate 0.05, logits and features": RATE | LOGITS | {"method.backward": True},
    "rate 0.1": {"optimisation.next.lr": 0.1},
    "rate 0.05, smoothing 0.1": RATE | {"method.smoothing": 0.1},
    "rate 0.05, λ 0.3, merge 0.3": RATE | LOOSE | {"method.merge": 0.3},
    "rate 0.05, anti-collapse 0.3": RATE | {"method.anti_collapse": 0.3},
    "rate 0.02": {"optimisation.next.lr": 0.02},
}


def settings(data: str, folder: Path) -> dict[str, Any]:
    if data == "cifar100-16px":
        return HELD_OUT | SHORT
    file = folder / "coarse-32px.npz"
    if not file.is_file():
        write_coarse(file)
    own = {
        "data.name": "npz", "data.root": str(file), "data.image_size": 32,
        "data.augment": ["crop:4", "flip", "trivial"],
        "scenario.tasks": 5, "scenario.order": "seed", "scenario.stop_after": 4, "optimisation.first.epochs": 10,
    }  # fmt: skip
    return HELD_OUT | SHORT | own


def write_coarse(file: Path) -> None:
    """20 superclasses of CIFAR-100 at 32 pixels, the first training images of each."""
    from pyarrow.parquet import read_table

    rows = read_table(Path(os.environ["GATF_DATA"]) / "cifar100" / "train.parquet")
    labels = np.array(rows["coarse_label"])
    chosen = np.concatenate([np.flatnonzero(labels == one)[:COARSE_IMAGES] for one in range(20)])
    encoded = rows["img"].take(chosen).to_pylist()
    images = np.stack([np.asarray(Image.open(io.BytesIO(one["bytes"])).convert("RGB")) for one in encoded])
    np.savez(file, x_train=images, y_train=labels[chosen], x_test=images[:20], y_test=np.arange(20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=("cifar100-16px", "coarse-32px"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), help="variants, by name")
    parser.add_argument("--folder", type=Path, default=None, help="where the runs are kept")
    given = parser.parse_args()
    one_thread()
    folder = given.folder or Path(tempfile.mkdtemp())
    for seed in given.seeds:
        for variant in given.only:
            records = load(NAME, [])
            key = {"data": given.data, "variant": variant, "seed": seed}
            if any(key.items() <= one.items() for one in records):
                continue
            overrides = {"method.preset": "plus", "seed": seed, "device": "cpu"}
            overrides |= settings(given.data, folder) | VARIANTS[variant]
            config = load_config("cifar100-16px-v2", method=f"{NAME}:Variant", overrides=overrides)
            place = folder / f"{given.data}-{seed}-{variant}".replace(" ", "_")
            RunFolder(place).create(config.to_yaml())
            summary = resume(place, networks_from=network_source_beside(place))
            found = {
                "a_last": round(summary.a_last, 2), "a_inc": round(summary.a_inc, 2),
                "after_each_task": [round(one, 2) for one in summary.accuracy_seen],
                "learnt": [round(row[task], 2) for task, row in enumerate(summary.accuracy_matrix)],
                "cpu_minutes": round(sum(summary.processor_seconds or []) / 60, 1),
            }  # fmt: skip
            save(NAME, [*load(NAME, []), key | found])
            sys.stdout.write(f"{key} {found}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
