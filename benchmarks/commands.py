"""How an update and a report grow with the number of classes that are known already.

    python benchmarks/commands.py [--quick] [--threads 1] [--out benchmarks/results/commands.json]

Processor seconds for C = 10 … 10 000 known classes. An *update* is what `gatf learn` does but for reading pictures: the
model is read, learns two classes more from 20 tiny images each in one epoch, and is saved, which reads it back. So
nearly all of it is what is done per known class. Models are of random classes. A *report* is `gatf report` of a run of
ten tasks with five test images per class, of which one is taken for the next class. A size that would take longer than
`LIMIT`, by what the size before it took, is left out. The exponent of C is fitted over the larger sizes, where constant
costs no longer show.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from growth import CLASSES, growth, make_gaussians
from harness import Report, measured, options

from gatf.data.loader import TaskInfo
from gatf.incremental.classifier import IncrementalClassifier
from gatf.io.run_folder import RunFolder, Summary
from gatf.methods.parts.closed_form import MomentMemory
from gatf.methods.parts.gaussian import transports_gaussians
from gatf.methods.slda import SLDA
from gatf.report.page import write_report
from gatf.seeding import generator

LIMIT = 30.0
SIDE, IMAGES = 8, 20
FEATURES = 3
"""Of each class that the frozen network knows, as if of an image each."""
TASKS, TESTED = 10, 5
FITTED_FROM = 1_000
"""Classes from which on the exponent is fitted: below, most of the time is what every update and report takes."""
UPDATES = {"update, frozen network": ("slda", 64), "update, gatf": ("gatf", 32)}
"""Method, and dimension of the features."""


def images(classes: int) -> np.ndarray:
    """Noise, as many grey images of each class."""
    draws = np.random.default_rng(classes)
    return draws.integers(0, 256, (classes * IMAGES, SIDE, SIDE), dtype=np.uint8)


def write_model(path: Path, method: str, dim: int, classes: int) -> None:
    """A model that knows so many random classes: one that learnt two, in which others are put."""
    settings = {"optimisation.first.epochs": 1, "optimisation.next.epochs": 1, "backbone.bottleneck": dim}
    two = IncrementalClassifier(method=method, width=4, batch_size=40, settings=settings)
    model = two.fit(images(2), np.repeat(["a", "b"], IMAGES)).model_
    known = make_gaussians(classes, dim)
    if isinstance(model.method, SLDA):
        model.method.memory = MomentMemory(dim)
        labels = torch.arange(classes).repeat(FEATURES)
        noise = 0.1 * torch.randn(len(labels), dim, generator=generator(0, "known", classes))
        model.method.learn(known.means[labels] + noise, labels, TaskInfo(0, 0, classes, len(labels)))
    else:
        assert transports_gaussians(model.method)
        model.method.keep(known)
    two.model_ = replace(
        model, labels=tuple(f"class {number}" for number in range(classes)),
        counts=torch.full((classes,), IMAGES), errors=torch.zeros(classes, dtype=torch.float64),
        measured=torch.zeros(0, 3, dtype=torch.float64),
    )  # fmt: skip
    two.save(path)


def update(path: Path) -> Callable[[], object]:
    """Two classes more for the model at the path."""
    new, names = images(2), np.repeat(["new", "newer"], IMAGES)

    def learn() -> None:
        classifier = IncrementalClassifier.load(path)
        classifier.set_params(epochs=1, batch_size=40).partial_fit(new, names).save(path)

    return learn


def write_run(folder: Path, classes: int) -> None:
    """The folder of a run with so many classes, as far as a report needs it."""
    draws = generator(0, "report", classes)
    size = classes // TASKS
    by_class = [(100 * torch.rand((task + 1) * size, generator=draws)).tolist() for task in range(TASKS)]
    matrix = [[float(np.mean(row[at : at + size])) for at in range(0, len(row), size)] for row in by_class]
    seen = [float(np.mean(row)) for row in by_class]
    names = [f"class {number}" for number in range(classes)]
    summary = Summary(
        method="gatf", dataset="random", tasks=TASKS, seed=0, class_order=list(range(classes)), class_names=names,
        a_last=seen[-1], a_inc=float(np.mean(seen)), a_last_task_weighted=seen[-1],
        a_inc_task_weighted=float(np.mean(seen)), forgetting=0.0, accuracy_matrix=matrix, accuracy_seen=seen,
        task_aware=matrix, accuracy_by_class=by_class, old_to_new=[None, *[10.0] * (TASKS - 1)],
        seconds=[1.0] * TASKS, total_seconds=float(TASKS), peak_memory_mb=[1.0] * TASKS, bytes_per_class=1,
        versions={},
    )  # fmt: skip
    run = RunFolder(folder)
    folder.mkdir(exist_ok=True)
    run.write_summary(summary)
    pairs = [(name, name, TESTED - 1) for name in names]
    run.write_confusion(pairs + [(name, names[(at + 1) % classes], 1) for at, name in enumerate(names)])


def commands(classes: int, place: Path) -> dict[str, Callable[[], Callable[[], object]]]:
    """By name, what prepares a call and returns it."""

    def updating(method: str, dim: int) -> Callable[[], object]:
        path = place / f"{method}-{classes}.gatf"
        write_model(path, method, dim, classes)
        return update(path)

    def reporting() -> Callable[[], object]:
        folder = place / f"run-{classes}"
        write_run(folder, classes)
        return lambda: write_report([folder], folder / "report.html")

    updates = {f"{name}, S = {dim}": partial(updating, method, dim) for name, (method, dim) in UPDATES.items()}
    return {**updates, "report": reporting}


def main() -> None:
    arguments = options("commands", __doc__, threads=1)
    report = Report(arguments, {"images_a_class": IMAGES, "tasks": TASKS, "limit_seconds": LIMIT})
    found: dict[str, dict[int, float]] = {}
    peaks: dict[str, dict[int, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for classes in CLASSES[:2] if arguments.quick else CLASSES:
            for name, prepare in commands(classes, Path(folder)).items():
                times = found.setdefault(name, {})
                if times and max(times.values()) * classes / max(times) > LIMIT:
                    continue
                if not times:
                    prepare()()  # imports what is imported on first use
                call = prepare()
                times[classes], peaks.setdefault(name, {})[classes] = measured(call, time.process_time)
                told = f"{times[classes]:8.3f} s, {peaks[name][classes] / 1e6:7.1f} MB"
                print(f"{name:32s} C = {classes:6d}: {told}", flush=True)
    report.about |= {
        "seconds": found, "peak_bytes": peaks,
        "exponents": {name: growth(list(times), list(times.values()), FITTED_FROM) for name, times in found.items()},
    }  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
