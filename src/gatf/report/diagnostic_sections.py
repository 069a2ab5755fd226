"""Which diagnostics a report shows, and what it says about them."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from gatf.bench.tables import MISSING
from gatf.report import diagnostic_plots as plots
from gatf.report.load import Run, by_row
from gatf.report.specs import Cell, FigureSpec, Table, slug

WHY, PLANE = "Why it forgets", "Where classes move"
DIAGNOSTIC_GROUPS = {
    WHY: "Measured on old images that the method itself never sees again.",
    PLANE: "The last task in two dimensions: an arrow from where an old class was to where the network now puts it; "
    "a cross where the method believes it is. The shorter the dotted line, the better the transport.",
}


def diagnostic_figures(runs: Sequence[Run], prefix: str = "") -> list[FigureSpec]:
    """The figures that the runs have tables for; runs without any are left out."""
    specs = []
    among = list(by_row(runs))
    drift, tail, margins = (with_table(runs, name) for name in ("drift", "tail", "margins"))
    errors, spectra = with_table(runs, "errors"), with_table(runs, "spectra")
    errors = [run for run in errors if any(row["past_task"] < row["after_task"] for row in run.diagnostics["errors"])]
    with_covs = [run for run in errors if "symmetric_kl" in run.diagnostics["errors"][0]]
    if drift:
        specs.append(_drift(drift, prefix, among))
    if errors:
        specs.append(_errors(errors, prefix, among, "mean_l2", "mean-error", "Means after transport",
                             "distance of stored from true mean, old classes"))  # fmt: skip
    if with_covs:
        specs.append(_errors(with_covs, prefix, among, "symmetric_kl", "kl", "Gaussians after transport",
                             "symmetric KL of stored and true Gaussian"))  # fmt: skip
    if tail:
        specs.append(_tail(tail, prefix, among))
    if margins:
        specs.append(_margins(margins, prefix, among))
    if spectra:
        specs.append(_spectrum(spectra, prefix, among))
    for row, group in by_row(with_table(runs, "plane")).items():
        specs.append(_plane(row, group[0], prefix))
    return specs


def with_table(runs: Sequence[Run], name: str) -> list[Run]:
    return [run for run in runs if run.diagnostics.get(name)]


def best_and_worst(values: dict[str, float]) -> tuple[str, str]:
    """Rows with the smallest and the largest value."""
    return min(values, key=lambda row: values[row]), max(values, key=lambda row: values[row])


def at_the_end(runs: Sequence[Run], table: str, column: str, **where: Any) -> dict[str, float]:
    """Mean of a column over the rows of the last task, by row of the comparison."""
    found: dict[str, list[float]] = {}
    for run in runs:
        rows = run.diagnostics[table]
        last = max(row["after_task"] for row in rows)
        kept = [
            row for row in rows if row["after_task"] == last and all(row[key] == want for key, want in where.items())
        ]
        if table == "errors":
            kept = [row for row in kept if row["past_task"] < last]
        if kept:
            found.setdefault(run.row, []).append(fmean(row[column] for row in kept))
    return {row: fmean(values) for row, values in found.items()}


def diagnostics_table(runs: Sequence[Run]) -> Table | None:
    """How well old classes are followed at the end, a row a method; None where nothing was measured."""
    columns = {
        "mean error": ("distance of stored from true class means, old classes", "errors", "mean_l2", 1),
        "covariance error": ("Frobenius norm of the difference, relative to the true one", "errors", "cov_relative", 1),
        "symmetric KL": ("of stored and true Gaussians", "errors", "symmetric_kl", 1),
        "certified %": ("predictions that Theorem 2 proves safe from these errors", "certified", "certified", 100),
    }
    found: dict[str, dict[str, float]] = {}
    for name, (_, table, column, factor) in columns.items():
        measured = [run for run in with_table(runs, table) if column in run.diagnostics[table][0]]
        for row, value in at_the_end(measured, table, column).items():
            found.setdefault(row, {})[name] = factor * value
    if not found:
        return None
    headings = [("method", ""), *((name, why) for name, (why, *_) in columns.items())]
    rows = []
    for row, values in found.items():
        numbers = [values.get(name) for name in columns]
        rows.append(
            [Cell(row, row), *(Cell(MISSING if v is None else f"{v:.3g}", -1e9 if v is None else v) for v in numbers)]
        )
    return Table("What is stored of old classes against what is true, after the last task", headings, rows)


def told(values: dict[str, float], unit: str = "", digits: str = ".3g") -> str:
    return ", ".join(f"{row} {value:{digits}}{unit}" for row, value in values.items())


def _drift(runs: Sequence[Run], prefix: str, among: Sequence[str]) -> FigureSpec:
    ends = {}
    for row, group in by_row(runs).items():
        tables = [run.diagnostics["drift"] for run in group]
        final = [max(one["epoch"] for one in rows) for rows in tables]
        ends[row] = fmean(
            fmean(one["drift"] for one in rows if one["epoch"] == last)
            for rows, last in zip(tables, final, strict=True)
        )
    best, worst = best_and_worst(ends)
    if len(ends) == 1:
        sentence = f"A line that stays low follows the moving network; at the end the distance is {ends[best]:.2g}."
    else:
        sentence = (
            f"Low is good: what is stored follows the moving network. At the end {best} is off by {ends[best]:.2g}, "
            f"{worst} by {ends[worst]:.2g}."
        )
    return FigureSpec(
        f"{prefix}drift", "Prototype drift", sentence,
        f"Line chart of the distance between stored and true class means over epochs. At the end: {told(ends)}.",
        lambda: plots.drift_over_tasks(runs, among), group=WHY,
    )  # fmt: skip


def _errors(
    runs: Sequence[Run], prefix: str, among: Sequence[str], column: str, name: str, title: str, label: str
) -> FigureSpec:
    ends = at_the_end(runs, "errors", column)
    best, worst = best_and_worst(ends)
    compared = "" if len(ends) == 1 else f", against {ends[worst]:.3g} of {worst}"
    return FigureSpec(
        f"{prefix}{name}", title,
        f"Low is good: after the last task {best} is at {ends[best]:.3g}{compared}.",
        f"Line chart of the {label}, after each task. At the end: {told(ends)}.",
        lambda: plots.error_over_tasks(runs, column, label, among), group=WHY,
    )  # fmt: skip


def _tail(runs: Sequence[Run], prefix: str, among: Sequence[str]) -> FigureSpec:
    return FigureSpec(
        f"{prefix}tail", "Mahalanobis tail",
        "A curve that climbs at its right end makes its errors where classes are thin, which is where a Mahalanobis "
        "distance punishes them most.",
        "Line chart, logarithmic: cumulated error of carried old features in units of variance, over directions from "
        "large to small variance.",
        lambda: plots.tail_curve(runs, among), group=WHY,
    )  # fmt: skip


def _margins(runs: Sequence[Run], prefix: str, among: Sequence[str]) -> FigureSpec:
    wrong = at_the_end(runs, "margins", "wrong", form="score")
    shares = {row: 100 * value for row, value in wrong.items()}
    best, worst = best_and_worst(shares)
    compared = "" if len(shares) == 1 else f", of {worst} {shares[worst]:.0f} %"
    return FigureSpec(
        f"{prefix}margins", "Margins of old classes",
        f"What lies left of zero is misclassified: of {best} {shares[best]:.0f} % of the old images{compared}.",
        f"Density curves of the margin of old images after the last task. Not above zero: {told(shares, ' %', '.0f')}.",
        lambda: plots.margin_densities(runs, among), group=WHY,
    )  # fmt: skip


def _spectrum(runs: Sequence[Run], prefix: str, among: Sequence[str]) -> FigureSpec:
    return FigureSpec(
        f"{prefix}spectrum", "Spectrum of the oldest classes",
        "Where the line leaves the dots, the stored covariance is wider (above) or narrower (below) than the class is.",
        "Line chart, logarithmic: eigenvalues of the stored (line) and true (dotted) covariances of the first task's "
        "classes after the last task.",
        lambda: plots.spectrum(runs, among), group=WHY,
    )  # fmt: skip


def _plane(row: str, run: Run, prefix: str) -> FigureSpec:
    rows = run.diagnostics["plane"]
    last = max(one["after_task"] for one in rows)
    place = {(one["class"], one["kind"]): complex(one["x"], one["y"]) for one in rows if one["after_task"] == last}
    classes = sorted({number for number, _ in place})
    moved = fmean(abs(place[number, "new"] - place[number, "old"]) for number in classes)
    sentence = f"Old classes move by {moved:.2g} on average during the last task"
    if (classes[0], "carried") in place:
        left = fmean(abs(place[number, "new"] - place[number, "carried"]) for number in classes)
        sentence += f"; the map misses where they go by {left:.2g}."
    else:
        sentence += "; this method has no map of features to compare with."
    return FigureSpec(
        f"{prefix}plane-{slug(row)}", f"{row}, seed {run.summary['seed']}", sentence,
        f"Scatter plot of the class means of {row} before and after the last task, with arrows. {sentence}",
        lambda: plots.transport_plane(run), group=PLANE,
    )  # fmt: skip
