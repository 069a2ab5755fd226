"""Images per second of GATF's training after the first task: student, teacher, residual, distiller, augmentation.

    python benchmarks/training.py [--quick] [--out benchmarks/results/training.json]

A turn is one epoch of a task of random 32 × 32 images, width-16 ResNet-18, batch 128. Ours is the loop that runs use.
The reference is reference/gatf_run.py. The limit is what the networks alone take: forward and backward of the student,
forward of the teacher, on a batch that lies ready. What a step frees stays with the process (gatf.training.memory); the
last row says what that alone gains. Each side is a process of its own, for this is a setting of the process.
"""

from functools import partial

import numpy as np
import torch
from harness import Apart, Report, options, processor_time, take_turns
from lightning_fabric import Fabric
from reference.gatf_run import MEAN, STD, Reference
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from gatf.config import load_config
from gatf.data.augment import Pipeline, parse_augmentation
from gatf.data.base import ImageSet
from gatf.data.loader import TaskData, TaskInfo
from gatf.session import build_method
from gatf.training.loop import Position, train_phase
from gatf.training.memory import keep_freed_memory

BATCH, WIDTH, DIM, CLASSES, WORKERS = 128, 16, 64, 10, 2
AUGMENT = ("crop:4", "flip", "trivial")


def random_images(count: int) -> tuple[Tensor, Tensor]:
    """uint8 [N, 3, 32, 32] and labels."""
    draws = torch.Generator().manual_seed(0)
    return torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=draws), torch.arange(count) % CLASSES


class Ours:
    """A method in its second task, with everything a run would hand it."""

    def __init__(self, count: int, keep: bool = True, **overrides: object) -> None:
        """`keep`: what a step frees stays with the process, as in a run."""
        if keep:
            keep_freed_memory()
        stage = {"epochs": 1, "batch_size": BATCH}
        settings = {f"optimisation.{part}.{name}": value for part in ("first", "next") for name, value in stage.items()}
        settings |= {"backbone.width": WIDTH, "backbone.bottleneck": DIM, "data.augment": list(AUGMENT)}
        self.config = load_config("cifar100-cpu", method="gatf", overrides=settings | overrides)
        self.fabric = Fabric(accelerator="cpu", devices=1)
        self.method = build_method(self.config, (3, 32, 32))
        self.images = random_images(count)
        self.learn(0)
        self.data = self.task(1)
        self.method.begin_task(self.data.info)
        self.phase = self.method.phases(self.data.info)[0]
        self.phase.on_epoch_start(0, self.data)  # type: ignore[misc]

    def task(self, number: int) -> TaskData:
        images, labels = self.images
        numbers = torch.arange(len(images))
        pipeline = Pipeline(parse_augmentation(AUGMENT), MEAN, STD)
        info = TaskInfo(number, number * CLASSES, CLASSES, len(images))
        return TaskData(
            info, ImageSet(images, labels), (numbers, labels + info.old), pipeline=pipeline, seed=0,
            device=torch.device("cpu"),
        )  # fmt: skip

    def learn(self, number: int) -> None:
        """A task without training: the statistics are of a random network, which takes as long."""
        data = self.task(number)
        self.method.begin_task(data.info)
        self.method.eval()
        self.method.end_task(data)

    def epoch(self) -> None:
        refresh, self.phase.on_epoch_start = self.phase.on_epoch_start, None  # benchmarks/refresh.py measures that
        train_phase(
            self.phase, self.data, self.fabric, listener=lambda event: None, position=Position(),
            save=lambda *a: None, restore=None, stop=lambda: False, save_every=None,
        )  # fmt: skip
        self.phase.on_epoch_start = refresh

    def networks(self) -> None:
        """The limit: an epoch's steps of the networks alone."""
        method, batch = self.method, self.batch
        method.backbone.train()
        for _ in range(len(self.data) // BATCH):
            with torch.inference_mode():
                method.teacher(batch)
            method.backbone(batch).sum().backward()
            method.backbone.zero_grad(set_to_none=True)

    def processor_seconds(self) -> float:
        """Of this process so far."""
        return processor_time()

    def where_time_goes(self, rows: int = 15) -> list[dict[str, object]]:
        """The operations an epoch spends most time in, by torch's profiler, in per cent of all."""
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            self.epoch()
        events = [event for event in profiled.key_averages() if event.self_cpu_time_total > 0]
        everything = sum(event.self_cpu_time_total for event in events)
        events.sort(key=lambda event: -event.self_cpu_time_total)
        return [
            {"operation": event.key, "percent": 100 * event.self_cpu_time_total / everything, "calls": event.count}
            for event in events[:rows]
        ]

    @property
    def batch(self) -> Tensor:
        return next(iter(self.data.batches("test", batch_size=BATCH))).images


class ReferenceEpochs:
    """The reference loop on the same images."""

    def __init__(self, count: int) -> None:
        self.reference = Reference(width=WIDTH, dim=DIM, batch=BATCH, workers=WORKERS)
        self.reference.means, self.reference.covs = [torch.zeros(DIM)], [torch.eye(DIM)]
        self.reference.begin(CLASSES, 0.01)
        images, labels = random_images(count)
        arrays = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.loader = self.reference.loader(arrays, np.asarray(labels), augment=True)

    def epoch(self) -> None:
        self.reference.epoch(self.loader, CLASSES)


def main() -> None:
    arguments = options("training", __doc__)
    count, repeats = (4 * BATCH, 1) if arguments.quick else (8 * BATCH, 2)
    report = Report(arguments, {"batch": BATCH, "width": WIDTH, "images": count, "reference_workers": WORKERS})
    ours, plain, reference = Apart(Ours, count), Apart(Ours, count, False), Apart(ReferenceEpochs, count)
    epoch, networks = partial(ours.call, "epoch"), partial(ours.call, "networks")
    turns = take_turns(partial(reference.call, "epoch"), epoch, repeats=repeats)
    add(report, "training step, GATF t>0, against the reference loop", turns, count, target=2.0)
    turns = take_turns(networks, epoch, repeats=repeats)
    add(report, "training step, as a part of the networks' own speed", turns, count, target=0.85)
    turns = take_turns(
        partial(plain.call, "epoch"), epoch, repeats=repeats,
        clock=lambda: float(plain.call("processor_seconds") + ours.call("processor_seconds")),
    )  # fmt: skip
    add(report, "training step, freed memory kept against handed back, processor time", turns, count, target=None)
    report.about["profile"] = ours.call("where_time_goes")
    for each in (ours, plain, reference):
        each.close()
    report.write("pillow")


def add(report: Report, what: str, turns: dict[str, float], count: int, target: float | None) -> None:
    speed = {"ours": count / turns["ours"], "reference": count / turns["reference"]}
    report.add(what, unit="images/s", target=target, **(turns | speed))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
