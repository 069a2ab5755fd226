"""Solving the anchor at S = 64 and S = 512, against `scipy.linalg.solve_sylvester` on the same matrices.

    python benchmarks/anchor.py [--quick] [--threads 2] [--out benchmarks/results/anchor.json]

SciPy's routine is for any two matrices (two Schur forms, then a triangular solve); ours knows that covariances are
symmetric. Each uses its own LAPACK: OpenBLAS in SciPy's wheels, MKL in torch's. One thread is measured as well, for
small matrices gain nothing from more. How long the two eigendecompositions take alone is written down beside.
"""

import statistics

import torch
from harness import Report, options, seconds, set_threads, take_turns
from reference import sylvester
from torch import Tensor

from gatf.geometry import PairedMoments, solve_sylvester

RIDGE = 0.01
TARGETS = {64: 5, 512: 10}
REPEATS = {64: 200, 512: 10}


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
    for threads in sorted({1, arguments.threads}):
        set_threads(threads)
        for dim in TARGETS:
            compare(report, dim, threads)
    report.write("scipy")


def compare(report: Report, dim: int, threads: int) -> None:
    """One size: time, and how well the two agree."""
    cov_old, cov_new, cross = make_problem(dim)
    expected = sylvester.solve(cov_old, cov_new, cross, RIDGE)
    got = solve_sylvester(cov_old, cov_new, cross, RIDGE)
    residual = (got @ cov_old + RIDGE * cov_new @ got - cross).norm() / cross.norm()
    repeats = REPEATS[dim] // (5 if report.arguments.quick else 1)
    turns = take_turns(
        lambda: sylvester.solve(cov_old, cov_new, cross, RIDGE),
        lambda: solve_sylvester(cov_old, cov_new, cross, RIDGE),
        repeats=repeats,
    )
    eigen = [seconds(lambda: (torch.linalg.eigh(cov_old), torch.linalg.eigh(cov_new))) for _ in range(repeats)]
    report.add(
        f"anchor of S = {dim}, threads: {threads}",
        **turns,
        target=TARGETS[dim],
        threads=threads,
        eigendecompositions=statistics.median(eigen),
        largest_relative_difference=float((got - expected).abs().max() / expected.abs().max()),
        relative_residual=float(residual),
    )


if __name__ == "__main__":
    main()
