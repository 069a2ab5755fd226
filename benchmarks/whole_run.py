"""Wall and processor time of a whole run: three tasks of CIFAR-100, 20 images per class, training to evaluation.

    python benchmarks/whole_run.py [--quick] [--out benchmarks/results/whole_run.json]

CIFAR-100 is taken from the folder in GATF_BENCH_CIFAR100, or from where `gatf data get cifar100` put it; with --quick,
or where there is none, random images of the same number and size stand in, which take as long. One run of each, ours
first, in a process of its own.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from harness import Apart, Report, options, processor_time, seconds
from reference.gatf_run import Reference, run

from gatf.config import RunConfig, load_config
from gatf.data.sources import SOURCES
from gatf.experiment import Experiment, start
from gatf.settings import DataConfig

TASKS, PER_CLASS, BATCH, WIDTH, DIM, WORKERS, REFRESH = 3, 20, 128, 16, 64, 2, 10
Images = tuple[np.ndarray, np.ndarray]


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
        mine = Apart(Ours, config, Path(place) / "run").call("run")
        theirs = Apart(Theirs, train, test, epochs).call("run")
        what = f"whole run, {TASKS} tasks of {source}, {PER_CLASS} images per class, {epochs} epoch"
        for kind, target in (("", 2.5), (", processor time", 2.2)):
            clock = "processor" if kind else "wall"
            report.add(
                what + kind, ours=mine[clock], reference=theirs[clock], ratio=theirs[clock] / mine[clock],
                target=target, a_last_ours=mine["a_last"], a_last_reference=theirs["a_last"],
            )  # fmt: skip
        report.write("pillow", "scipy")


class Ours:
    """A run as `gatf run` does it."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder

    def run(self) -> dict[str, float]:
        return timed(lambda: start(self.config, self.folder).a_last)


class Theirs:
    """The reference loop over the same images."""

    def __init__(self, train: Images, test: Images, epochs: int) -> None:
        self.train, self.test, self.epochs = train, test, epochs

    def run(self) -> dict[str, float]:
        torch.manual_seed(0)
        reference = Reference(width=WIDTH, dim=DIM, batch=BATCH, workers=WORKERS)
        found = run(reference, self.train, self.test, tasks=TASKS, epochs=self.epochs, refresh=REFRESH)
        return timed(lambda: list(found)[-1])


def timed(call: Callable[[], float]) -> dict[str, float]:
    """Seconds of the clock and of the processors, and the accuracy that comes out."""
    found: list[float] = []
    before = processor_time()
    wall = seconds(lambda: found.append(call()))
    return {"wall": wall, "processor": processor_time() - before, "a_last": found[0]}


def data_settings(place: Path, *, quick: bool) -> tuple[dict[str, object], str]:
    """Where CIFAR-100 lies, or random images that stand in for it; and what it is."""
    root = os.environ.get("GATF_BENCH_CIFAR100")
    if not quick and SOURCES["cifar100"].missing(DataConfig(name="cifar100", root=root)) is None:
        return {"data.root": root}, "CIFAR-100"
    archive = random_archive(place / "random.npz", PER_CLASS, 10 if quick else 100)
    return {"data.name": "npz", "data.root": str(archive)}, "random images"


def random_archive(path: Path, per_class: int, tested: int) -> Path:
    """100 classes of random 32 × 32 images."""
    draws, arrays = np.random.default_rng(0), {}
    for part, count in (("train", per_class), ("test", tested)):
        arrays[f"x_{part}"] = draws.integers(0, 256, (100 * count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(100).repeat(count)
    np.savez(path, **arrays)
    return path


if __name__ == "__main__":
    main()
