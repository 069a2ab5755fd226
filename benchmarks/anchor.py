"""Solving the anchor at S = 64 and S = 512, against `scipy.linalg.solve_sylvester` on the same matrices.

    python benchmarks/anchor.py [--quick] [--threads 2] [--out benchmarks/results/anchor.json]

SciPy's routine is for any two matrices (two Schur forms, then a triangular solve); ours knows that covariances are
symmetric. Each uses its own LAPACK: OpenBLAS in SciPy's wheels, MKL in torch's. How long the two eigendecompositions
take alone is written down beside.
"""

import statistics

import torch
from harness import Report, options, seconds, take_turns
from reference import sylvester
from torch import Tensor

from gatf.geometry import PairedMoments, solve_sylvester

RIDGE = 0.01
TARGETS = {64: 5, 512: 10}
TURNS = {64: (9, 50), 512: (5, 3)}
"""How many turns, and calls in each."""


def make_problem(dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Σ_o, Σ_n and K of features that drift: a random rotation, a shift of scale and noise."""
    generator = torch.Generator().manual_seed(dim)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    old = normal(10 * dim, dim) @ torch.diag(torch.logspace(0, -2, dim, dtype=torch.float64))
    new = old @ torch.linalg.qr(normal(dim, dim)).Q + 0.1 * normal(10 * dim, dim)
    pairs = PairedMoments.of(old, new)
    return pairs.cov_old.contiguous(), pairs.cov_new.contiguous(), pairs.cross.contiguous()


def main() -> None:
    arguments = options("anchor", __doc__)
    report = Report(arguments, {"ridge": RIDGE})
    for dim in TARGETS:
        compare(report, dim)
    report.write("scipy")


def compare(report: Report, dim: int) -> None:
    """One size: time, and how well the two agree."""
    cov_old, cov_new, cross = make_problem(dim)
    expected = sylvester.solve(cov_old, cov_new, cross, RIDGE)
    got = solve_sylvester(cov_old, cov_new, cross, RIDGE)
    residual = (got @ cov_old + RIDGE * cov_new @ got - cross).norm() / cross.norm()
    repeats, calls = (2, 1) if report.arguments.quick else TURNS[dim]
    turns = take_turns(
        lambda: sylvester.solve(cov_old, cov_new, cross, RIDGE),
        lambda: solve_sylvester(cov_old, cov_new, cross, RIDGE),
        repeats=repeats,
        calls=calls,
        rest=0.2,
    )
    eigen = [
        seconds(lambda: (torch.linalg.eigh(cov_old), torch.linalg.eigh(cov_new)), calls=calls) for _ in range(repeats)
    ]
    report.add(
        f"anchor of S = {dim}",
        **turns,
        target=TARGETS[dim],
        eigendecompositions=statistics.median(eigen),
        largest_relative_difference=float((got - expected).abs().max() / expected.abs().max()),
        relative_residual=float(residual),
    )


if __name__ == "__main__":
    main()
