"""How long must a task of `cifar100-16px` be trained? Training and test accuracy after every epoch of the first tasks.

python experiments/convergence.py 40 60     train GATF's first two tasks with 40 and with 60 epochs per task
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import load, one_thread, save

from gatf.config import load_config
from gatf.data.loader import EVALUATION_BATCH
from gatf.experiment import Experiment
from gatf.io.events import Epoch, Event
from gatf.io.run_folder import CHECKPOINTS

TASKS = 2


class Watcher:
    """Training and test accuracy of the newest task's head after every epoch."""

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
        """Accuracy in percent among the task's own classes, without augmentation."""
        method, scenario = self.experiment.method, self.experiment.scenario
        members, labels = scenario.members(images, task, task)
        was_training = method.backbone.training
        method.backbone.eval()
        right = 0
        batches = members.split(EVALUATION_BATCH)
        for pixels, wanted in zip(images.stream(batches), labels.split(EVALUATION_BATCH), strict=True):
            logits = method.head(method.backbone(self.experiment.session.pipeline(pixels, None)))
            own = logits[:, : scenario.task_sizes[task]]  # the outputs of images that are not rotated come first
            right += int((own.argmax(dim=1) == wanted - scenario.offsets[task]).sum())
        method.backbone.train(was_training)
        return 100 * right / len(members)


def main(epochs: list[int]) -> None:
    one_thread()
    record = load("convergence", {})
    for number in epochs:
        changes = {"seed": 0, "scenario.stop_after": TASKS, "device": "cpu"}
        changes |= {"optimisation.first.epochs": number, "optimisation.next.epochs": number}
        experiment = Experiment(load_config("cifar100-16px", method="gatf", overrides=changes))
        watcher = Watcher(experiment)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / CHECKPOINTS).mkdir()
            summary = experiment.run(Path(folder), (watcher,))
        record[str(number)] = {"rows": watcher.rows, "accuracy_seen": summary.accuracy_seen}
        save("convergence", record)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [40, 60])
