"""The figures of a report, by setting, with captions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gatf.bench.tables import aggregate
from gatf.data.listing import some
from gatf.report import costs, figures
from gatf.report.load import Run, by_row, last_task

BASELINES = ("joint", "finetune")
TASKS, CLASSES, PAIRS = "Accuracy per task", "Accuracy per class", "Confusion matrix"
WHY, PLANE = "Why it forgets", "Movement of class means"
COSTS, TRAINING = "Cost", "Training"
GROUPS = {
    TASKS: "Read down a column: the accuracy on one task, in percent, after each later task.",
    CLASSES: "Read along a row: the method forgets a class whose colour fades.",
    PAIRS: "Rows are true classes, columns predicted ones, in the order of learning. Errors are off the diagonal.",
    WHY: "Measured on images of old classes, which the method itself cannot access.",
    PLANE: "The last task in two dimensions. An arrow goes from the old to the new mean of a class; a cross is "
    "the transported mean. The shorter the dotted line, the better the transport.",
    COSTS: "Up and to the left is better. Seconds depend on machine and threads, which the top of the page names.",
    TRAINING: "From the log of each method's first run. If a loss still falls when a task ends, train longer. "
    "Losses of different methods are not comparable.",
}
"""Groups of figures shown side by side, and how to read them."""


@dataclass(frozen=True)
class FigureSpec:
    """A figure that can be drawn, with its title and caption."""

    name: str
    """Also its file name."""
    title: str
    sentence: str
    """The caption."""
    draw: Callable[[], Figure]
    group: str = ""
    """Figures of one group are small and shown side by side."""
    values: str = ""
    """The most important numbers, which the figure shows and the caption does not have."""

    @property
    def alt(self) -> str:
        """Alternative text for screen readers."""
        return " ".join(filter(None, (f"{self.group}: {self.title}." if self.group else f"{self.title}.", self.values)))


@dataclass(frozen=True)
class Section:
    """One setting: runs that may be compared."""

    setting: str
    runs: Sequence[Run]
    figures: Sequence[FigureSpec]


def build_sections(runs: Sequence[Run]) -> list[Section]:
    """The sections of a report, a setting each."""
    groups = {setting: [run for run in runs if run.setting == setting] for setting in {run.setting: 0 for run in runs}}
    sections = []
    for setting, group in groups.items():
        specs, prefix = figures_of(group), f"{slug(setting)}-" if len(groups) > 1 else ""
        sections.append(Section(setting, group, [replace(spec, name=prefix + spec.name) for spec in specs]))
    return sections


def figures_of(runs: Sequence[Run]) -> list[FigureSpec]:
    """Every figure that the runs of one setting have data for."""
    rows = by_row(run for run in runs if not run.reference)
    specs = [_accuracy(runs)]
    if explained := at_the_end_explained(runs):
        specs.append(_gaps(explained))
    if any(run.old_to_new for run in runs):
        specs.append(_confusion(runs))
    specs += [_matrix(row, group) for row, group in rows.items()]
    specs += [_classes(row, group) for row, group in rows.items() if group[0].summary.accuracy_by_class[-1]]
    for row, group in rows.items():
        if all(run.confusion for run in group) and len({frozenset(run.summary.class_names) for run in group}) == 1:
            specs.append(_pairs(row, group))
    if len(by_row(runs)) == 1:  # nothing to compare: the group's name becomes the title
        specs = [
            replace(spec, title=spec.group, sentence=f"{GROUPS[spec.group]} {spec.sentence}", group="")
            if spec.group
            else spec
            for spec in specs
        ]
    training = [spec for row, group in rows.items() for spec in _training(row, group[0])]
    return specs + diagnostic_figures(runs) + _costs(runs) + training


def _seeds(runs: Sequence[Run]) -> str:
    count = max(len(group) for group in by_row(runs).values())
    return f" Bands: one standard deviation over {count} seeds." if count > 1 else ""


def slug(text: str) -> str:
    """A name that is valid for files and anchors."""
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower()).strip("-")


def _accuracy(runs: Sequence[Run]) -> FigureSpec:
    table = aggregate(run.result for run in runs)
    if len(table) == 1:
        start, end = runs[0].summary.accuracy_seen[0], table[0]["a_last"]
        sentence = (
            f"Accuracy over all seen classes falls from {start:.0f} % to {end:.0f} %. Some of it would fall "
            "without forgetting, because more classes are harder to distinguish."
        )
    else:
        best = best_of(table)
        sentence = f"Higher is better: {best['row']} ends at {best['a_last']:.1f} %{_distance(best, table)}."
    return FigureSpec(
        "accuracy", "Accuracy over tasks", sentence + _seeds(runs), lambda: figures.accuracy_over_tasks(runs),
        values=f"Last values: {listed({row['row']: row['a_last'] for row in table}, ' %', '.1f')}.",
    )  # fmt: skip


def best_of(table: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row with the highest A_last; a baseline only if nothing else is compared."""
    contenders = [row for row in table if row["method"] not in BASELINES] or table
    return max(contenders, key=lambda row: row["a_last"])


def _distance(best: dict[str, float], table: Sequence[dict[str, float]]) -> str:
    """The gaps from the best row to the second and to joint training."""
    others = [row for row in table if row is not best and row["method"] not in BASELINES]
    parts = []
    if others:
        second = max(others, key=lambda row: row["a_last"])
        parts.append(f"{best['a_last'] - second['a_last']:.1f} points above {second['row']}")
    joint = [row for row in table if row["method"] == "joint"]
    if joint:
        parts.append(f"{joint[0]['a_last'] - best['a_last']:.1f} below training on all images (joint)")
    return ", " + " and ".join(parts) if parts else ""


def at_the_end_explained(runs: Sequence[Run]) -> dict[str, dict[str, float | None]]:
    """The decomposition after the last task by row, mean over the runs that have one."""
    found = {}
    for row, group in by_row(run for run in runs if run.explained).items():
        last = [run.explained[-1] for run in group]
        known = {name: [one[name] for one in last if one[name] is not None] for name in last[0]}
        found[row] = {name: fmean(values) if values else None for name, values in known.items()}
    return found


def _gaps(explained: dict[str, dict[str, float | None]]) -> FigureSpec:
    ends = {row: values["representation"] for row, values in explained.items() if values["representation"] is not None}
    sentence = "Each bar starts with the accuracy of the method and ends at joint training."
    if ends:
        least = min(ends, key=lambda row: ends[row])
        sentence += f" {least} has the smallest representation gap, {ends[least]:.1f} points."
    return FigureSpec(
        "gaps", "Accuracy gap to joint training", sentence, lambda: figures.accuracy_gaps(explained),
        values="Stacked: accuracy, then the gaps by transport, readout and representation.",
    )  # fmt: skip


def _confusion(runs: Sequence[Run]) -> FigureSpec:
    groups = by_row(run for run in runs if run.old_to_new)
    ends = {row: fmean(run.old_to_new[-1] for run in group) for row, group in groups.items()}
    worst = max(ends, key=lambda row: ends[row])
    share = f"{ends[worst]:.0f} % of the old images"
    last = f"{share} are predicted" if len(ends) == 1 else f"{worst} predicts {share}"
    return FigureSpec(
        "confusion", "Old classes predicted as new ones",
        f"Lower is better: after the last task {last} as one of the newest classes.{_seeds(runs)}",
        lambda: figures.confusion_over_tasks(runs), values=f"Last values: {listed(ends, ' %', '.0f')}.",
    )  # fmt: skip


def _matrix(row: str, runs: Sequence[Run]) -> FigureSpec:
    start, end = (fmean(run.summary.accuracy_matrix[task][0] for run in runs) for task in (0, -1))
    last = ", ".join(f"{value:.0f}" for value in runs[0].summary.accuracy_matrix[-1])
    return FigureSpec(
        f"matrix-{slug(row)}", row, f"Accuracy on task 1: {start:.0f} % after learning it, {end:.0f} % at the end.",
        lambda: figures.accuracy_matrix(runs), group=TASKS, values=f"Last row: {last}.",
    )  # fmt: skip


def _classes(row: str, runs: Sequence[Run]) -> FigureSpec:
    last = [fmean(values) for values in zip(*(run.summary.accuracy_by_class[-1] for run in runs), strict=True)]
    names = runs[0].summary.class_names
    worst, best = (choose(range(len(last)), key=lambda number: last[number]) for choose in (min, max))
    end = f"At the end “{names[worst]}” has the lowest accuracy, {last[worst]:.0f} %, and “{names[best]}” the highest, "
    end += f"{last[best]:.0f} %."
    if len(names) > figures.MOST_NAMED:
        end += " Sorted by final accuracy."
    return FigureSpec(f"classes-{slug(row)}", row, end, lambda: figures.accuracy_by_class(runs), group=CLASSES)


def _pairs(row: str, runs: Sequence[Run]) -> FigureSpec:
    found = figures.confusion_shares(runs)
    names, wrong = found.names, np.where(found.true != found.predicted, found.percent, 0.0)
    sentence = "No image is misclassified."
    if wrong.any():
        worst = int(wrong.argmax())
        pair = f"“{names[found.true[worst]]}” is predicted as “{names[found.predicted[worst]]}”"
        sentence = f"Most frequent error: {pair} for {wrong[worst]:.0f} % of its images."
        if (together := figures.classes_per_cell(len(names))) > 1:
            sentence += f" A cell covers {together} × {together} classes and shows the largest share among them."
    return FigureSpec(f"pairs-{slug(row)}", row, sentence, lambda: figures.confusion_matrix(runs), group=PAIRS)


def _costs(runs: Sequence[Run]) -> list[FigureSpec]:
    """Accuracy against memory and time, where there are rows to compare."""
    table = aggregate(run.result for run in runs)
    if len(table) < 2:
        return []
    least = min(row["bytes_per_class"] for row in table)
    cheapest = [row["row"] for row in table if row["bytes_per_class"] == least]
    quickest = min(table, key=lambda row: row["total_seconds"])
    return [
        FigureSpec(
            "memory", "Accuracy against memory",
            f"{some(cheapest, 4)} {'stores' if len(cheapest) == 1 else 'store'} least: {least:,} bytes per class.",
            lambda: costs.against(runs, "bytes_per_class", "bytes stored per class"), group=COSTS,
            values=f"Bytes per class: {listed({row['row']: row['bytes_per_class'] for row in table}, digits=',')}.",
        ),
        FigureSpec(
            "time", "Accuracy against time",
            f"{quickest['row']} is fastest with {quickest['total_seconds']:.0f} s.",
            lambda: costs.against(runs, "total_seconds", f"seconds, all tasks{costs.on_threads(runs)}"), group=COSTS,
            values=f"Durations: {listed({row['row']: row['total_seconds'] for row in table}, ' s', '.0f')}.",
        ),
    ]  # fmt: skip


def _training(row: str, run: Run) -> list[FigureSpec]:
    """Losses and learning rates of a row's first run, if it has a log."""
    losses = costs.losses(run)
    if not losses:
        return []
    ends = listed({name: heights[-1] for name, (_, heights) in losses.items()})
    return [
        FigureSpec(
            f"losses-{slug(row)}", f"Loss of {row}", f"In the last epoch: {ends}.",
            lambda: costs.training_lines(losses, "terms of the loss, mean over an epoch"), group=TRAINING,
        ),
        FigureSpec(
            f"rates-{slug(row)}", f"Learning rate of {row}", "Of the last parameter group, in each epoch.",
            lambda: costs.training_lines(costs.rates(run), "learning rate", log=True), group=TRAINING,
        ),
    ]  # fmt: skip


def diagnostic_figures(runs: Sequence[Run]) -> list[FigureSpec]:
    """The figures for which runs have diagnostics tables; other runs are omitted."""
    among = list(by_row(runs))
    drift = [run for run in with_table(runs, "drift") if "floor" in run.diagnostics["drift"][0]]
    tail, margins = (with_table(runs, name) for name in ("tail", "margins"))
    errors, spectra = with_table(runs, "errors"), with_table(runs, "spectra")
    errors = [run for run in errors if any(row["past_task"] < row["after_task"] for row in run.diagnostics["errors"])]
    with_covs = [run for run in errors if "symmetric_kl" in run.diagnostics["errors"][0]]
    makers = ((_drift, drift), (_divergence, with_covs), (_tail, tail), (_margins, margins), (_spectrum, spectra))
    specs = [make(found, among) for make, found in makers if found]
    return specs + [_plane(row, group[0]) for row, group in by_row(with_table(runs, "plane")).items()]


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
        last = last_task(rows)
        kept = [
            row for row in rows if row["after_task"] == last and all(row[key] == want for key, want in where.items())
        ]
        if table == "errors":
            kept = [row for row in kept if row["past_task"] < last]
        if kept:
            found.setdefault(run.row, []).append(fmean(row[column] for row in kept))
    return {row: fmean(values) for row, values in found.items()}


def plain(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def listed(values: dict[str, float], unit: str = "", digits: str = ".3g") -> str:
    return ", ".join(f"{row} {value:{digits}}{unit}" for row, value in values.items())


def _drift(runs: Sequence[Run], among: Sequence[str]) -> FigureSpec:
    ends = at_the_end(runs, "errors", "drift")
    best, worst = best_and_worst(ends)
    whose = "they are" if len(ends) == 1 else f"the means of {best} are"
    others = ", averaged over classes" if len(ends) == 1 else f", those of {worst} by {100 * ends[worst]:.0f} %"
    sentence = (
        f"Lower is better: the stored means follow the changing network. After the last transport {whose} off by "
        f"{100 * ends[best]:.0f} % of the class's standard deviation{others}."
    )
    return FigureSpec(
        "drift", "Prototype drift", sentence, lambda: figures.drift_over_tasks(runs, among), group=WHY,
        values=f"After the last transport, in spreads of the class: {listed(ends)}.",
    )  # fmt: skip


def _divergence(runs: Sequence[Run], among: Sequence[str]) -> FigureSpec:
    ends = at_the_end(runs, "errors", "symmetric_kl")
    best, worst = best_and_worst(ends)
    compared = "" if len(ends) == 1 else f", against {plain(ends[worst])} of {worst}"
    label = "symmetric KL of stored and true Gaussian"
    return FigureSpec(
        "kl", "Gaussians after transport",
        f"Lower is better: after the last task {best} is at {plain(ends[best])}{compared}.",
        lambda: figures.error_over_tasks(runs, "symmetric_kl", label, among), group=WHY,
        values=f"At the end, {label}: {listed(ends)}.",
    )  # fmt: skip


def _tail(runs: Sequence[Run], among: Sequence[str]) -> FigureSpec:
    return FigureSpec(
        "tail", "Mahalanobis tail",
        "A curve that rises at its right end has errors in directions of small variance, where the Mahalanobis "
        "distance weighs them most.",
        lambda: figures.tail_curve(runs, among), group=WHY,
    )  # fmt: skip


def _margins(runs: Sequence[Run], among: Sequence[str]) -> FigureSpec:
    wrong = at_the_end(runs, "margins", "wrong", form="score")
    shares = {row: 100 * value for row, value in wrong.items()}
    best, worst = best_and_worst(shares)
    compared = "" if len(shares) == 1 else f", {shares[worst]:.0f} % for {worst}"
    return FigureSpec(
        "margins", "Margins of old classes",
        f"Images left of zero are misclassified: {shares[best]:.0f} % of the old images for {best}{compared}.",
        lambda: figures.margin_densities(runs, among), group=WHY,
        values=f"Not above zero: {listed(shares, ' %', '.0f')}.",
    )  # fmt: skip


def _spectrum(runs: Sequence[Run], among: Sequence[str]) -> FigureSpec:
    return FigureSpec(
        "spectrum", "Spectrum of the oldest classes",
        "Where they differ, the stored covariance is larger (above) or smaller (below) than the true one.",
        lambda: figures.spectrum(runs, among), group=WHY,
    )  # fmt: skip


def _plane(row: str, run: Run) -> FigureSpec:
    rows = run.diagnostics["plane"]
    last = last_task(rows)
    place = {(one["class"], one["kind"]): complex(one["x"], one["y"]) for one in rows if one["after_task"] == last}
    classes = sorted({number for number, _ in place})
    sentence = "This method does not transport features."
    if (classes[0], "transported") in place:
        moved = fmean(abs(place[number, "new"] - place[number, "old"]) for number in classes)
        left = fmean(abs(place[number, "new"] - place[number, "transported"]) for number in classes)
        sentence = f"In this plane the transport error is {100 * left / max(moved, 1e-12):.0f} % of the arrows' length."
    title = f"{row}, seed {run.summary.seed}"
    return FigureSpec(f"plane-{slug(row)}", title, sentence, lambda: figures.transport_plane(run), group=PLANE)
