"""Transport of 200 class Gaussians through the adapter: seconds and error, against a loop over classes.

    python benchmarks/pushforward.py [--quick] [--threads 2] [--out benchmarks/results/pushforward.json]

The adapter is GATF's, z ↦ P z + b + g(z) with g = Linear(64, 2048) – GELU – Linear(2048, 64) at its usual random init,
its last layer scaled so that g spreads the features of a class by a given fraction of what P does: 0.1, 0.3 and 1.
After training on digits (bottleneck 64) that fraction is 0.09, and 0.27 to 0.30 of g's spread is not affine in the
features; here it is 0.25.

Samples are only a means. Ours come in mirrored pairs with exact mean and covariance, so the affine part of the map
needs none, and by default there are 16 a dimension. The first comparison is of that with 10 000 plain samples, and
their errors are written beside it; then of 10 000 on both sides, where both do the same products and the ratio is that
of caches: no program could reach five; then of the fewest of ours whose errors of mean and covariance are both no
larger than those of 10 000 in the loop. The error of a mean is measured in the spread √tr Σ of its class, that of a
covariance relative to ‖Σ‖, both as root mean squares over classes and draws; the truth is the mean of four transports
with 50 000 mirrored samples.
"""

import itertools
from typing import Any

import torch
from harness import Report, options, take_turns
from reference import pushforward as loop
from torch import Tensor

from gatf.geometry import Affine, Gaussians, push_affine, push_forward, white_noise
from gatf.methods.gatf import GATFConfig
from gatf.nets.mlp import feature_mlp
from gatf.seeding import generator, keyed_init

DIM, CLASSES, SAMPLES = 64, 200, 10_000
TARGET = 5
SIZES = (0.1, 0.3, 1.0)
COUNTS = (100, 200, 500, 1_000, 2_000, 5_000, 10_000)
KINDS = ("loop", "matched", "mirrored")
"""The reference, matched draws without pairs, and ours."""


def make_gaussians(classes: int) -> Gaussians:
    """Random means about as long as a class is wide; covariances with eigenvalues from 1 down to 0.01."""
    draws = generator(0, "gaussians")
    means = 0.4 * torch.randn(classes, DIM, generator=draws, dtype=torch.float64)
    axes = torch.linalg.qr(torch.randn(classes, DIM, DIM, generator=draws, dtype=torch.float64)).Q
    return Gaussians(means, (axes * torch.logspace(0, -2, DIM, dtype=torch.float64)) @ axes.mT)


class Adapter(torch.nn.Module):
    """Anchor plus residual, g of `size` times the spread of the anchor's images."""

    def __init__(self, gaussians: Gaussians, size: float) -> None:
        super().__init__()
        turn = torch.linalg.qr(torch.randn(DIM, DIM, generator=generator(0, "anchor"), dtype=torch.float64)).Q
        self.anchor = Affine((0.9 * turn).float(), torch.full((DIM,), 0.1))
        with keyed_init(0, "residual"):
            self.residual = feature_mlp(DIM)
        noise = white_noise(1_000, DIM, generator=generator(0, "size"), matched=True)
        self.spread = spread(push_affine(gaussians, self.anchor))
        present = spread(push_forward(gaussians, self.residual, noise=noise))
        with torch.no_grad():
            self.residual[-1].weight *= size * self.spread / present

    def forward(self, old: Tensor) -> Tensor:
        return self.anchor(old) + self.residual(old)


def spread(gaussians: Gaussians) -> Tensor:
    """√(mean tr Σ_c)."""
    return gaussians.covs.diagonal(dim1=1, dim2=2).sum(1).mean().sqrt()


def transport(gaussians: Gaussians, adapter: Adapter, kind: str, samples: int, draw: int = 0) -> Gaussians:
    """The reference, or ours with one kind of noise."""
    if kind == "loop":
        with keyed_init(draw, kind, samples):
            return Gaussians(*loop.push_forward(gaussians.means.float(), gaussians.covs.float(), adapter, samples))
    draws = generator(draw, kind, samples)
    noise = white_noise(samples, DIM, generator=draws, matched=True, mirrored=kind == "mirrored")
    return push_forward(gaussians, adapter, noise=noise)


def find_truth(gaussians: Gaussians, adapter: Adapter) -> tuple[Gaussians, dict[str, float]]:
    """The mean of four transports, and their own error by their spread around it."""
    runs = [transport(gaussians, adapter, "mirrored", 50_000, draw) for draw in range(100, 104)]
    means, covs = (torch.stack([getattr(run, name) for run in runs]).mean(0) for name in ("means", "covs"))
    truth = Gaussians(means, covs)
    return truth, {name: error / 3**0.5 for name, error in errors(runs, truth).items()}


def errors(runs: list[Gaussians], truth: Gaussians) -> dict[str, float]:
    """Root mean squares over runs and classes of the two errors."""
    size = truth.covs.diagonal(dim1=1, dim2=2).sum(1)
    norm = truth.covs.square().sum((1, 2))
    mean = torch.stack([(run.means - truth.means).square().sum(1) / size for run in runs])
    cov = torch.stack([(run.covs - truth.covs).square().sum((1, 2)) / norm for run in runs])
    return {"mean": float(mean.mean().sqrt()), "cov": float(cov.mean().sqrt())}


def error_curve(gaussians: Gaussians, adapter: Adapter, truth: Gaussians, draws: int) -> dict[str, dict[int, dict]]:
    """Errors by kind of noise and number of samples; mirrored noise needs 128."""
    curve: dict[str, dict[int, dict]] = {kind: {} for kind in KINDS}
    for kind, count in itertools.product(KINDS, COUNTS):
        if kind != "mirrored" or count >= 2 * DIM:
            runs = [transport(gaussians, adapter, kind, count, draw) for draw in range(draws)]
            curve[kind][count] = errors(runs, truth)
    return curve


def bent_share(gaussians: Gaussians, adapter: Adapter) -> float:
    """How much of the spread of g no affine map of the features explains."""
    noise = white_noise(10_000, DIM, generator=generator(0, "share"), matched=True)
    mapped = push_forward(gaussians, lambda z: torch.cat([z, adapter.residual(z)], dim=1), noise=noise).covs
    old, cross, residual = mapped[:, :DIM, :DIM], mapped[:, :DIM, DIM:], mapped[:, DIM:, DIM:]
    explained = cross.mT @ torch.linalg.solve(old, cross)
    left, whole = ((residual - part).diagonal(dim1=1, dim2=2).sum() for part in (explained, 0 * explained))
    return float((left / whole).sqrt())


def fewest(curve: dict[int, dict], wanted: dict[str, float]) -> int:
    """The least number of samples whose two errors are no larger."""
    return min(count for count, found in curve.items() if all(found[name] <= wanted[name] for name in wanted))


def study(few: Gaussians, adapter: Adapter, draws: int) -> dict[str, Any]:
    """Errors of an adapter's transports, of a few classes."""
    truth, truth_error = find_truth(few, adapter)
    curve = error_curve(few, adapter, truth, draws)
    for kind in KINDS:
        print(f"  {kind:8s} " + "  ".join(f"{count}: {error['cov']:.1e}" for count, error in curve[kind].items()))
    usual = [transport(few, adapter, "mirrored", GATFConfig().draws(DIM), draw) for draw in range(draws)]
    return {
        "curve": curve, "error_of_truth": truth_error, "usual": errors(usual, truth),
        "bent_share": bent_share(few, adapter),
    }  # fmt: skip


def main() -> None:
    arguments = options("pushforward", __doc__)
    classes = CLASSES // 10 if arguments.quick else CLASSES
    repeats, draws = (1, 2) if arguments.quick else (2, 3)
    gaussians = make_gaussians(classes)
    few = gaussians[: 2 if arguments.quick else 5]
    report = Report(arguments, {"dim": DIM, "classes": classes, "classes_of_errors": len(few), "draws": draws})

    def compare(
        some: Gaussians, adapter: Adapter, samples: int, repeats: int, *, warm_up: bool = True
    ) -> dict[str, float]:
        return take_turns(
            lambda: transport(some, adapter, "loop", SAMPLES),
            lambda: transport(some, adapter, "mirrored", samples),
            repeats=repeats,
            warm_up=warm_up,
        )

    usual, part = GATFConfig().draws(DIM), gaussians[: classes // 10]
    found = {size: study(few, Adapter(gaussians, size), draws) for size in SIZES}
    report.add(
        f"transport of {classes} classes, {usual} samples against {SAMPLES}",
        **compare(gaussians, Adapter(gaussians, SIZES[0]), usual, 1, warm_up=False),
        target=TARGET,
        errors={
            size: {"ours": one["usual"], "reference": one["curve"]["loop"][SAMPLES]} for size, one in found.items()
        },
    )
    report.add(
        f"the same of {len(part)}, {SAMPLES} samples both",
        **compare(part, Adapter(gaussians, SIZES[0]), SAMPLES, repeats),
    )
    for size, one in found.items():
        wanted = one["curve"]["loop"][SAMPLES]
        counts = {kind: fewest(one["curve"][kind], wanted) for kind in KINDS[1:]}
        report.add(
            f"the same of {len(part)} at equal error, g = {size}, {counts['mirrored']} samples against {SAMPLES}",
            **compare(part, Adapter(gaussians, size), counts["mirrored"], 1),
            target=TARGET,
            samples_of_equal_error=counts,
            bent_share=one["bent_share"],
            error_curve=one["curve"],
            error_of_truth=one["error_of_truth"],
        )
    report.write()


if __name__ == "__main__":
    main()
