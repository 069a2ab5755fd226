"""Wall and processor time of a whole run: five tasks of CIFAR-100, 100 images per class, training to evaluation.

    python benchmarks/whole_run.py [--quick] [--out benchmarks/results/whole_run.json]

CIFAR-100 is taken from the folder in GATF_BENCH_CIFAR100, or from where `gatf data get cifar100` put it; with --quick,
or where there is none, random images of the same number and size stand in, which take as long. One run of each, ours
first.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from harness import Report, options, processor_time, seconds
from reference.gatf_run import Reference, run
from scaling import random_archive

from gatf.config import load_config
from gatf.data.sources import SOURCES
from gatf.experiment import Experiment, start
from gatf.io.run_folder import Summary
from gatf.settings import DataConfig

TASKS, PER_CLASS, BATCH, WIDTH, DIM, WORKERS, REFRESH = 5, 100, 128, 16, 64, 2, 10


def main() -> None:
    arguments = options("whole_run", __doc__)
    epochs = 1
    with tempfile.TemporaryDirectory() as place:
        data, source = data_settings(Path(place), quick=arguments.quick)
        settings = {
            **data, "data.max_per_class": PER_CLASS, "scenario.tasks": TASKS, "scenario.order": "natural",
            "backbone.width": WIDTH, "backbone.bottleneck": DIM, "method.refresh": REFRESH,
        }  # fmt: skip
        for part in ("first", "next"):
            settings |= {f"optimisation.{part}.epochs": epochs, f"optimisation.{part}.batch_size": BATCH}
        config = load_config("cifar100-cpu", method="gatf", overrides=settings)
        parts = Experiment(config).scenario.source
        train, test = (
            (part.images.permute(0, 2, 3, 1).contiguous().numpy(), np.asarray(part.labels))
            for part in (parts.train, parts.test)
        )
        report = Report(arguments, {"data": source, "tasks": TASKS, "epochs": epochs, "images": len(train[0])})
        finished: list[Summary] = []
        before = processor_time()
        ours = seconds(lambda: finished.append(start(config, Path(place) / "run")))
        between = processor_time()
        reference = Reference(width=WIDTH, dim=DIM, batch=BATCH, workers=WORKERS)
        torch.manual_seed(0)
        accuracies: list[float] = []
        theirs = seconds(
            lambda: accuracies.extend(run(reference, train, test, tasks=TASKS, epochs=epochs, refresh=REFRESH))
        )
        after = processor_time()
        what = f"whole run, 5 tasks of {source}, 100 images per class, {epochs} epoch"
        report.add(
            what, ours=ours, reference=theirs, ratio=theirs / ours, target=2.5, a_last_ours=finished[0].a_last,
            a_last_reference=accuracies[-1],
        )  # fmt: skip
        mine, other = between - before, after - between
        report.add(f"{what}, processor time", ours=mine, reference=other, ratio=other / mine, target=2.2)
        report.write("pillow", "scipy")


def data_settings(place: Path, *, quick: bool) -> tuple[dict[str, object], str]:
    """Where CIFAR-100 lies, or random images that stand in for it; and what it is."""
    root = os.environ.get("GATF_BENCH_CIFAR100")
    if not quick and SOURCES["cifar100"].missing(DataConfig(name="cifar100", root=root)) is None:
        return {"data.root": root}, "CIFAR-100"
    archive = random_archive(place / "random.npz", PER_CLASS, 10 if quick else 100)
    return {"data.name": "npz", "data.root": str(archive)}, "random images"


if __name__ == "__main__":
    main()
