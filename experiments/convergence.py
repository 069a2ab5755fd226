"""How long must a task of `cifar100-16px` be trained? Training and test accuracy after every epoch of the first tasks.

python tools/convergence.py 40 60     train GATF with these epochs per task, two tasks each
Writes benchmarks/results/convergence.json, from which docs/protocol.md's figure is drawn.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from update_docs import ROOT

from gatf.config import load_config
from gatf.data.loader import EVALUATION_BATCH
from gatf.experiment import Experiment
from gatf.io.events import Epoch, Event
from gatf.io.files import write_text
from gatf.io.run_folder import CHECKPOINTS

RECORD = ROOT / "benchmarks" / "results" / "convergence.json"
TASKS = 2


class Watcher:
    """After every epoch: how many images of the newest task its own head gets right, in training and in test."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.rows: list[dict[str, Any]] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Epoch):
            source = self.experiment.scenario.source
            parts = {"train": source.train, "test": source.test}
            row = {name: self.accuracy(part, event.task) for name, part in parts.items()}
            self.rows.append({"task": event.task, "epoch": event.epoch + 1, "lr": event.lr, **row})

    @torch.inference_mode()
    def accuracy(self, images: Any, task: int) -> float:
        """Accuracy in % among the task's own classes, images as in a test."""
        method, scenario = self.experiment.method, self.experiment.scenario
        members, labels = scenario.members(images, task, task)
        was_training = method.backbone.training
        method.backbone.eval()
        right = 0
        batches = members.split(EVALUATION_BATCH)
        for pixels, wanted in zip(images.stream(batches), labels.split(EVALUATION_BATCH), strict=True):
            logits = method.head(method.backbone(self.experiment.session.pipeline(pixels, None)))
            own = logits[:, : scenario.task_sizes[task]]  # the upright images' outputs come first
            right += int((own.argmax(dim=1) == wanted - scenario.offsets[task]).sum())
        method.backbone.train(was_training)
        return 100 * right / len(members)


def main(epochs: list[int]) -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    for number in epochs:
        changes = {"seed": 0, "scenario.stop_after": TASKS, "device": "cpu"}
        changes |= {"optimisation.first.epochs": number, "optimisation.next.epochs": number}
        experiment = Experiment(load_config("cifar100-16px", method="gatf", overrides=changes))
        watcher = Watcher(experiment)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / CHECKPOINTS).mkdir()
            summary = experiment.run(Path(folder), (watcher,))
        record[str(number)] = {"rows": watcher.rows, "accuracy_seen": summary.accuracy_seen}
        write_text(RECORD, json.dumps(record, indent=1))


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [40, 60])
