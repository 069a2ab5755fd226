"""How time and memory of what is done per class grow with the number of classes and the dimension of the features.

    python benchmarks/growth.py [--quick] [--threads 1] [--out benchmarks/results/growth.json]

Processor seconds of one call each, and the memory it needs at its peak on top of what was there, for C = 10 … 10 000
classes and S = 64 … 512: statistics of 20 images per class, transport through GATF's map (16 points per dimension, or
as few as will do), building the readout, scoring 256 features, saving. A size that would
take longer than `LIMIT`, by what the sizes before it took, or more than `MEMORY`, is left out. The exponent of C is
fitted over the larger sizes, where constant costs no longer show.
"""

import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from harness import Report, measured, options
from torch import Tensor, nn

from gatf.geometry import Affine, Gaussians
from gatf.geometry.moments import class_moments
from gatf.io import container
from gatf.methods.parts.memory import SAMPLES_PER_DIMENSION, GaussianMemory
from gatf.nets.mlp import feature_mlp
from gatf.seeding import generator, keyed_init

CLASSES, DIMS = (10, 100, 1_000, 10_000), (64, 128, 256, 512)
LIMIT, MEMORY = 6.0, 1e9
"""Seconds, and bytes of all covariances in float64."""
IMAGES, FEATURES = 20, 256
RESIDUAL = 0.3
"""Spread of the residual beside that of the anchor, as in benchmarks/pushforward.py."""
FITTED_FROM = 100
"""Classes from which on the exponent is fitted."""
Parts = dict[str, Callable[[], object]]


def make_gaussians(classes: int, dim: int) -> Gaussians:
    """One random covariance with eigenvalues from 1 down to 0.01, scaled along its coordinates for each class."""
    draws = generator(0, "growth", classes, dim)
    axes = torch.linalg.qr(torch.randn(dim, dim, generator=draws, dtype=torch.float64)).Q
    scales = 0.5 + torch.rand(classes, dim, generator=draws, dtype=torch.float64)
    one = (axes * torch.logspace(0, -2, dim, dtype=torch.float64)) @ axes.mT
    covs = one * scales[:, :, None] * scales[:, None, :]
    return Gaussians(0.4 * torch.randn(classes, dim, generator=draws, dtype=torch.float64), covs)


class Map(nn.Module):
    """z ↦ 0.9 z + g(z), g a random adapter of a given spread."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.anchor = Affine(0.9 * torch.eye(dim), torch.zeros(dim))
        with keyed_init(0, "growth", dim):
            self.residual = feature_mlp(dim)
        with torch.no_grad():
            points = 0.5 * torch.randn(1000, dim, generator=generator(0, "growth", "size"))
            self.residual[-1].weight *= RESIDUAL * 0.45 * dim**0.5 / self.residual(points).std(0).norm()

    def forward(self, points: Tensor) -> Tensor:
        return self.anchor(points) + self.residual(points)


def parts(classes: int, dim: int, folder: Path) -> Parts:
    """What is timed, in the order in which an update does it."""
    memory = GaussianMemory(dim, rule="bayes", seed=0)
    memory.set(make_gaussians(classes, dim))
    draws = generator(0, "growth", "features")
    labels = torch.arange(classes).repeat(IMAGES)
    images = torch.randn(len(labels), dim, generator=draws)
    points = torch.randn(FEATURES, dim, generator=draws)
    mapping = Map(dim)

    def transport() -> object:
        return memory.transport(mapping, samples=SAMPLES_PER_DIMENSION * dim, matched=True, task=1, fewer=True)

    def first_scores() -> Tensor:
        return memory.scores(points[:1])

    return {
        "statistics": lambda: class_moments(images, labels, classes=classes).covariance(),
        "transport": transport,
        "readout": first_scores,
        "scoring": lambda: memory.scores(points),
        "saving": lambda: container.write(folder / "model.gatf", dict(memory.state_dict()), {"history": []}),
    }


def growth(classes: list[int], seconds: list[float], fitted_from: int = FITTED_FROM) -> float | None:
    """Exponent p of seconds ~ classesᵖ, by least squares on logarithms; None where there are not two sizes."""
    pairs = [(math.log(c), math.log(s)) for c, s in zip(classes, seconds, strict=True) if c >= fitted_from]
    if len(pairs) < 2:
        return None
    mean_x, mean_y = (sum(each) / len(pairs) for each in zip(*pairs, strict=True))
    products = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return products / sum((x - mean_x) ** 2 for x, _ in pairs)


def main() -> None:
    arguments = options("growth", __doc__, threads=1)
    report = Report(arguments, {"images_a_class": IMAGES, "features": FEATURES, "limit_seconds": LIMIT})
    found: dict[str, dict[int, dict[int, float]]] = {}
    peaks: dict[str, dict[int, dict[int, int]]] = {}
    kept: dict[int, int] = {}
    sizes = CLASSES[:2] if arguments.quick else CLASSES
    with tempfile.TemporaryDirectory() as folder:
        for dim in DIMS[:1] if arguments.quick else DIMS:
            for classes in sizes:
                if 8.0 * classes * dim**2 > MEMORY:
                    continue
                for name, call in parts(classes, dim, Path(folder)).items():
                    times = found.setdefault(name, {}).setdefault(dim, {})
                    expected = max(times.values()) * classes / max(times) if times else 0.0
                    if expected > LIMIT if name != "transport" else not _bounded(classes, dim):
                        if name == "readout":
                            break  # what follows would have to build it
                        continue
                    times[classes], peak = measured(call, time.process_time)
                    peaks.setdefault(name, {}).setdefault(dim, {})[classes] = peak
                    told = f"{times[classes]:9.4f} s, {peak / 1e6:7.1f} MB"
                    print(f"{name:12s} S = {dim:3d}, C = {classes:6d}: {told}", flush=True)
            kept[dim] = GaussianMemory(dim, rule="bayes", seed=0).bytes_per_class()
    report.about["seconds"], report.about["peak_bytes"] = found, peaks
    report.about["exponents"] = {
        name: {dim: growth(list(times), list(times.values())) for dim, times in by_dim.items()}
        for name, by_dim in found.items()
    }
    report.about["bytes_per_class"] = kept
    report.write()


def _bounded(classes: int, dim: int) -> bool:
    """Whether a transport by the usual number of points stays in the limit, at 50 · 10⁹ operations per second; many
    classes take a quarter of them."""
    points = SAMPLES_PER_DIMENSION * dim * (0.25 if classes > 256 else 1)
    return 4 * 32 * dim**2 * points * classes / 50e9 <= LIMIT


if __name__ == "__main__":
    main()
