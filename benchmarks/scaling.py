"""A cost model of a GATF run, fitted to this machine: seconds and memory from counts of operations and bytes.

    python benchmarks/scaling.py [--quick] [--threads 2] [--out benchmarks/results/scaling.json]

Each part of a run is measured at a few sizes and fitted as a + b·operations + c·bytes (costs.py), coefficients not
negative. How far to trust that: the largest size is predicted from the others, and a whole run from all of them. What
the model says for ImageNet-1k and for 100 000 classes (outlook.py) is written down, too.
"""

import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import costs
import numpy as np
import outlook
import torch
from costs import Component, Network, Work
from harness import Call, Report, options, peak_memory, seconds
from torch import Tensor
from training import Ours

from gatf.config import load_config
from gatf.experiment import start
from gatf.geometry import Affine, PairedMoments, QuadraticReadout, fit_anchor
from gatf.geometry.compact import fit_low_rank
from gatf.geometry.gaussians import pack
from gatf.geometry.spd import condition_number
from gatf.methods.gatf import GATFConfig
from gatf.methods.parts.memory import GaussianMemory
from gatf.nets.mlp import feature_mlp
from gatf.training import checkpoint

NEW = 10
"""Classes of a task in benchmarks/training.py."""
STEPS = 2
"""Steps of an epoch that is timed."""
TESTED = 10
"""Test images per class of the run that checks the model."""
MANY = {"full": 16_000, "lowrank": 80_000, "diag": 400_000, "shared": 400_000}
"""Classes whose readout takes 200 to 500 MB, more than caches hold."""


def quickest(call: Call, repeats: int) -> float:
    """Seconds of the quickest call after one to warm up: other programs can only make it slower."""
    call()
    return min(seconds(call) for _ in range(repeats))


def table(name: str, unit: str, rows: Iterable[tuple[str, Work, float]]) -> Component:
    labels, works, measured = zip(*rows, strict=True)
    return Component(name, unit, list(labels), list(works), list(measured))


def networks(sizes: Iterable[tuple[int, int]], repeats: int) -> list[Component]:
    """Training steps, passes of a refresh, and class statistics, at widths and batches."""
    step, refresh, learn = [], [], []
    for width, batch in sizes:
        settings = {f"optimisation.{part}.batch_size": batch for part in ("first", "next")}
        ours = Ours(STEPS * batch, **{"backbone.width": width}, **settings)
        net, images = Network(width), STEPS * batch
        label = f"width {width}, batch {batch}"
        each = quickest(ours.epoch, repeats) / STEPS
        step.append((label, costs.step_work(net, batch=batch, new_classes=NEW), each))
        once = quickest(lambda ours=ours: ours.phase.on_epoch_start(0, ours.data), repeats)
        label = f"width {width}, {images} images"
        refresh.append((label, costs.refresh_work(net, images=images), once))
        ours.method.eval()
        once = quickest(lambda ours=ours: ours.method.memory.learn(ours.method.backbone, ours.data), repeats)
        learn.append((label, costs.statistics_work(net, images=images), once))
    return [
        table("training step", "s", step),
        table("anchor refresh, pass", "s", refresh),
        table("class statistics", "s", learn),
    ]


def solving(dims: Iterable[int], repeats: int) -> Component:
    """The anchor from moments, with the condition number that is noted."""
    rows = []
    for dim in dims:
        draws = torch.Generator().manual_seed(dim)
        old, new = (torch.randn(4 * dim, dim, generator=draws, dtype=torch.float64) for _ in range(2))
        pairs = PairedMoments.of(old, old + new)

        def call(pairs: PairedMoments = pairs) -> None:
            condition_number(pairs.cov_old)
            fit_anchor(pairs, 0.01)

        rows.append((f"S = {dim}", costs.solve_work(dim), quickest(call, 3 * repeats)))
    return table("anchor refresh, solution", "s", rows)


def memory_of(kind: str, classes: int, dim: int) -> GaussianMemory:
    """The memory of so many classes; what their covariances are is all the same to the clock."""
    config = GATFConfig.model_validate({"covariance": kind, "covariance_rank": outlook.RANK})
    memory = GaussianMemory(dim, rule="bayes", seed=0, storage=config.storage)
    draws, identity = torch.Generator().manual_seed(dim), pack(torch.eye(dim))
    kept = {
        name: 1 + torch.rand(shape, generator=draws) if kind in ("lowrank", "diag") else identity.expand(shape)
        for name, shape in memory.storage.shapes(classes).items()
    }
    memory._join([(torch.randn(classes, dim, generator=draws), kept)])
    return memory


def transporting(sizes: Iterable[tuple[int, int, int]], repeats: int) -> Component:
    """Anchor and residual carry stored Gaussians, all of whose covariance is kept."""
    rows = []
    for classes, samples, dim in sizes:
        memory, residual, anchor = (
            memory_of("full", classes, dim),
            feature_mlp(dim, costs.EXPANSION),
            Affine.identity(dim),
        )

        def mapping(old: Tensor, residual: Any = residual, anchor: Affine = anchor) -> Tensor:
            return anchor(old) + residual(old)

        def call(memory: GaussianMemory = memory, samples: int = samples, mapping: Any = mapping) -> None:
            memory.transport(mapping, samples=samples, matched=True, task=1)

        label = f"{classes} classes × {samples} samples, S = {dim}"
        work = costs.transport_work(classes, samples=samples, dim=dim)
        rows.append((label, work, quickest(call, repeats)))
    return table("transport", "s", rows)


def fitting(sizes: Iterable[tuple[int, int]], repeats: int) -> Component:
    """What `method.covariance=lowrank` adds to a transport."""
    rows = []
    for classes, dim in sizes:
        roots = torch.randn(classes, dim, 2 * dim, generator=torch.Generator().manual_seed(dim), dtype=torch.float64)
        covs = roots @ roots.mT / (2 * dim)
        call = lambda covs=covs: fit_low_rank(covs, outlook.RANK)  # noqa: E731
        rows.append((f"{classes} classes, S = {dim}", costs.per_class_work(classes, dim=dim), quickest(call, repeats)))
    return table("fitting low rank", "s", rows)


def scoring_one(kind: str, most: int, repeats: int) -> Component:
    """Distances of one image, which waits for memory: so there are more classes than a cache holds."""
    rows = []
    for classes, dim in [(most // 4, 64), (most // 2, 64), (most // 4, 128), (most, 64)]:
        if kind == "full":  # made as it is, for factorising so many takes long
            centres, whiteners = torch.ones(classes, dim).double(), torch.ones(classes, dim, dim, dtype=torch.float64)
            score = QuadraticReadout(centres, whiteners, normalise=True).distances
        else:
            score = memory_of(kind, classes, dim).scores
        work = costs.scoring_work(kind, images=1, classes=classes, dim=dim, rank=outlook.RANK)
        del work["operations"]
        image = torch.randn(1, dim, generator=torch.Generator().manual_seed(1))
        rows.append((f"{classes} classes, S = {dim}", work, quickest(partial(score, image), 2 * repeats)))
    return table(f"scoring one image, {kind}", "s", rows)


def scoring_many(kind: str, sizes: Iterable[tuple[int, int]], repeats: int) -> Component:
    """Distances of 256 images."""
    rows = []
    for classes, dim in sizes:
        images = torch.randn(256, dim, generator=torch.Generator().manual_seed(1))
        work = costs.scoring_work(kind, images=256, classes=classes, dim=dim, rank=outlook.RANK)
        call = partial(memory_of(kind, classes, dim).scores, images)
        rows.append((f"{classes} classes, S = {dim}", work, quickest(call, 3 * repeats)))
    return table(f"scoring 256 images, {kind}", "s", rows)


def building(sizes: Iterable[tuple[int, int]], repeats: int) -> Component:
    """The readout of whole covariances."""
    rows = []
    for classes, dim in sizes:
        call = memory_of("full", classes, dim)._build
        rows.append((f"{classes} classes, S = {dim}", costs.per_class_work(classes, dim=dim), quickest(call, repeats)))
    return table("building the readout, full", "s", rows)


def saving(megabytes: Iterable[int], repeats: int) -> Component:
    """A checkpoint on the disk of temporary files: digest, write, fsync."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for size in megabytes:
            tensors = {"weights": torch.ones(size * 250_000)}
            call = lambda tensors=tensors: checkpoint.save(Path(place) / "x.safetensors", tensors, {})  # noqa: E731
            rows.append((f"{size} MB", {"once": 1, "bytes": size * 1e6}, quickest(call, repeats)))
    return table("checkpoint", "s", rows)


def one_step(width: int, batch: int) -> tuple[Call, Call]:
    """For `peak_memory`: nothing, and an epoch of one step."""
    settings = {f"optimisation.{part}.batch_size": batch for part in ("first", "next")}
    ours = Ours(batch, **{"backbone.width": width}, **settings)
    return lambda: None, ours.epoch


def step_memory(sizes: Iterable[tuple[int, int]]) -> Component:
    """Peak memory of a step on top of the networks."""
    rows = []
    for width, batch in sizes:
        work = costs.step_memory(Network(width), batch=batch, new_classes=NEW)
        rows.append((f"width {width}, batch {batch}", work, float(peak_memory(one_step, width, batch))))
    return table("memory of a step", "bytes", rows)


def sizes_of(kind: str, dim: int) -> dict[str, Any]:
    """Bytes per class as the code has them, from the tensors of two memories that differ in size."""
    kept, read = [], []
    for classes in (20, 40):
        memory = memory_of(kind, classes, dim)
        memory.scores(torch.zeros(1, dim))
        kept.append(sum(tensor.nbytes for tensor in memory.buffers()))
        read.append(sum(each.nbytes for each in vars(memory.readout()).values() if _counts(each)))
    return {"kind": kind, "dim": dim, "kept": (kept[1] - kept[0]) // 20, "read": (read[1] - read[0]) // 20}


def _counts(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float64


def random_archive(path: Path, per_class: int, tested: int) -> Path:
    """100 classes of random 32 × 32 images."""
    draws, arrays = np.random.default_rng(0), {}
    for part, count in (("train", per_class), ("test", tested)):
        arrays[f"x_{part}"] = draws.integers(0, 256, (100 * count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(100).repeat(count)
    np.savez(path, **arrays)
    return path


def check_run(fitted: dict[str, Work]) -> dict[str, Any]:
    """A run of three tasks on random images, measured and predicted, part by part."""
    width, epochs, batch, samples, tasks, per_class = 8, 2, 128, 2000, 3, 20
    new, net = 20, Network(8)
    settings: dict[str, Any] = {
        "backbone.width": width, "data.max_per_class": per_class, "scenario.tasks": 100 // new,
        "scenario.stop_after": tasks, "scenario.order": "natural", "method.refresh": 1, "method.samples": samples,
        "data.name": "npz",
    }  # fmt: skip
    for part in ("first", "next"):
        settings |= {f"optimisation.{part}.epochs": epochs, f"optimisation.{part}.batch_size": batch}
    with tempfile.TemporaryDirectory() as place:
        settings["data.root"] = str(random_archive(Path(place) / "random.npz", per_class, TESTED))
        summary = start(load_config("cifar100-cpu", method="gatf", overrides=settings), Path(place) / "run")
    images, tested = new * per_class, TESTED * new
    say: Callable[[str, Work], float] = lambda name, work: costs.predict(fitted[name], work)  # noqa: E731
    first = say("training step", costs.step_work(net, batch=batch, new_classes=new, first=True))
    step = say("training step", costs.step_work(net, batch=batch, new_classes=new))
    passed = say("anchor refresh, pass", costs.refresh_work(net, images=images))
    predicted = []
    for task in range(tasks):
        seen = (task + 1) * new
        parts = say("class statistics", costs.statistics_work(net, images=images))
        parts += say("anchor refresh, pass", costs.forward_work(net, images=(task + 1) * tested))
        work = costs.scoring_work("full", images=(task + 1) * tested, classes=seen, dim=net.dim, rank=outlook.RANK)
        parts += say("scoring 256 images, full", work)
        parts += say("building the readout, full", costs.per_class_work(seen, dim=net.dim))
        if task == 0:
            parts += epochs * (4 * images // batch) * first
        else:
            solution = say("anchor refresh, solution", costs.solve_work(net.dim))
            parts += epochs * (images // batch * step + passed + solution)
            parts += say("transport", costs.transport_work(task * new, samples=samples, dim=net.dim))
        predicted.append(parts)
    return {
        "what": f"{tasks} tasks of {new} classes, {images} images and {epochs} epochs each, width {width}",
        "measured": summary.total_seconds, "predicted": sum(predicted),
        "error_percent": 100 * (sum(predicted) / summary.total_seconds - 1),
        "measured_by_task": summary.seconds, "predicted_by_task": predicted,
    }  # fmt: skip


def main() -> None:
    arguments = options("scaling", __doc__)
    quick, began = arguments.quick, time.monotonic()
    repeats = 1 if quick else 2
    components = networks(
        [(4, 128), (8, 128), (4, 256), (16, 128)] if quick else [(8, 128), (8, 256), (16, 128), (16, 256), (32, 128)],
        repeats,
    )
    components.append(solving((32, 64, 128, 256) if quick else (32, 64, 128, 256, 512), repeats))
    sizes = [(10, 1000, 32), (10, 1000, 64), (40, 1000, 32), (10, 1000, 128)]
    components.append(
        transporting(sizes if quick else [*sizes, (40, 1000, 64), (10, 10_000, 64), (40, 2000, 128)], repeats)
    )
    components.append(fitting([(20, 32), (40, 32), (20, 64)] + ([] if quick else [(100, 64), (50, 128)]), repeats))
    for kind, most in MANY.items():
        components.append(scoring_one(kind, most // 8 if quick else most, repeats))
        sizes = [(500, 32), (500, 64), (1000, 32), (250, 128)]
        components.append(scoring_many(kind, sizes if quick else [*sizes, (2000, 64)], repeats))
    sizes = [(500, 32), (500, 64), (1000, 32), (200, 128)]
    components.append(building(sizes if quick else [*sizes, (2000, 64), (1000, 128)], repeats))
    components.append(saving((4, 16, 64) if quick else (4, 16, 64, 256), repeats))
    if not quick:
        components.append(step_memory([(8, 128), (8, 256), (16, 128), (32, 128)]))

    fitted = {component.name: component.coefficients for component in components}
    report = Report(arguments, {"components": [component.report() for component in components]})
    for component in report.about["components"]:
        largest = component["held_out"]
        report.add(
            f"error of predicting the largest: {component['name']}", ours=abs(largest["error_percent"]),
            reference=None, ratio=None, unit="%", worst_of_fit=component["worst_error_percent"],
        )  # fmt: skip
    if not quick:
        checked = check_run(fitted)
        report.about["whole_run"] = checked
        report.add(
            "error of predicting a whole run", ours=abs(checked["error_percent"]), reference=None, ratio=None, unit="%"
        )
    report.about["bytes_a_class"] = [sizes_of(kind, dim) for dim in outlook.DIMS for kind in outlook.KINDS]
    report.about |= outlook.everything(fitted)
    report.about["measuring_seconds"] = round(time.monotonic() - began)
    report.write("scipy")


if __name__ == "__main__":
    main()
