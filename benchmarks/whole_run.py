"""Wall time of a whole run: five tasks of CIFAR-100, 100 images a class, training to evaluation.

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
from harness import Report, options, seconds
from reference.gatf_run import Reference, run

from gatf.config import load_config
from gatf.data.sources import SOURCES
from gatf.experiment import Experiment, start
from gatf.settings import DataConfig

TASKS, PER_CLASS, BATCH, WIDTH, DIM, WORKERS, REFRESH = 5, 100, 128, 16, 64, 2, 10


def main() -> None:
    arguments = options("whole_run", __doc__)
    epochs = 1
    with tempfile.TemporaryDirectory() as place:
        root, source = data_folder(Path(place), quick=arguments.quick)
        settings = {
            "data.root": root, "data.max_per_class": PER_CLASS, "scenario.tasks": TASKS, "scenario.order": "natural",
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
        summary: dict[str, float] = {}
        ours = seconds(lambda: summary.update(start(config, Path(place) / "run")))
        reference = Reference(width=WIDTH, dim=DIM, batch=BATCH, workers=WORKERS)
        torch.manual_seed(0)
        accuracies: list[float] = []
        theirs = seconds(
            lambda: accuracies.extend(run(reference, train, test, tasks=TASKS, epochs=epochs, refresh=REFRESH))
        )
        report.add(
            "whole run, 5 tasks of CIFAR-100, 100 images a class", ours=ours, reference=theirs, ratio=theirs / ours,
            target=2.5, a_last_ours=summary["a_last"], a_last_reference=accuracies[-1],
        )  # fmt: skip
        report.write("pillow", "scipy")


def data_folder(place: Path, *, quick: bool) -> tuple[str | None, str]:
    """Where CIFAR-100 lies, or a stand-in written there in the layout of its python version; and what it is."""
    root = os.environ.get("GATF_BENCH_CIFAR100")
    if not quick and SOURCES["cifar100"].missing(DataConfig(name="cifar100", root=root)) is None:
        return root, "CIFAR-100"
    import pickle

    folder = place / "cifar-100-python"
    folder.mkdir()
    draws = np.random.default_rng(0)
    for name, per_class in (("train", PER_CLASS), ("test", 10 if quick else 100)):
        labels = np.arange(100).repeat(per_class)
        pixels = draws.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        (folder / name).write_bytes(pickle.dumps({b"data": pixels, b"fine_labels": labels.tolist()}, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [f"class {n}".encode() for n in range(100)]}, 2))
    return str(place), "random images"


if __name__ == "__main__":
    main()
