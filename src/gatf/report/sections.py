"""What a report shows and says: for every setting a table, figures, and for each figure one sentence on what to see."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from gatf.bench.tables import aggregate
from gatf.report import plots
from gatf.report.diagnostic_sections import DIAGNOSTIC_GROUPS, diagnostic_figures
from gatf.report.load import Run, by_row, by_setting
from gatf.report.specs import FigureSpec, slug

BASELINES = ("joint", "finetune")
TASKS, CLASSES = "Accuracy on each task", "Accuracy on each class"
GROUPS = {
    TASKS: "Read down a column: the accuracy on one task, in percent, as later ones are learnt.",
    CLASSES: "Read along a row: a class whose colour fades is being forgotten.",
    **DIAGNOSTIC_GROUPS,
}
"""Figures that stand side by side, and how to read them."""


@dataclass(frozen=True)
class Section:
    """One setting: runs that may be compared."""

    setting: str
    runs: Sequence[Run]
    figures: Sequence[FigureSpec]


def build_sections(runs: Sequence[Run]) -> list[Section]:
    """The sections of a report, a setting each."""
    groups = by_setting(runs)
    several = len(groups) > 1
    return [
        Section(setting, group, figures_of(group, slug(setting) + "-" if several else ""))
        for setting, group in groups.items()
    ]


def figures_of(runs: Sequence[Run], prefix: str = "") -> list[FigureSpec]:
    """Every figure that the runs of one setting have data for."""
    rows = by_row(runs)
    specs = [_accuracy(runs, prefix)]
    if any(len(run.summary["old_to_new"]) > 1 for run in runs):
        specs.append(_confusion(runs, prefix))
    specs += [_matrix(row, group, prefix) for row, group in rows.items()]
    specs += [_classes(row, group, prefix) for row, group in rows.items()]
    specs = [_alone(spec) for spec in specs] if len(rows) == 1 else specs
    return specs + diagnostic_figures(runs, prefix)


def _alone(spec: FigureSpec) -> FigureSpec:
    """With one row to show there is nothing to stand beside: the group's name is the title."""
    if not spec.group:
        return spec
    return replace(spec, title=spec.group, sentence=f"{GROUPS[spec.group]} {spec.sentence}", group="")


def _seeds(runs: Sequence[Run]) -> str:
    count = max(len(group) for group in by_row(runs).values())
    return f" Bands: one standard deviation over {count} seeds." if count > 1 else ""


def _accuracy(runs: Sequence[Run], prefix: str) -> FigureSpec:
    table = aggregate(run.result for run in runs)
    ends = ", ".join(f"{row['row']} {row['a_last']:.1f} %" for row in table)
    contenders = [row for row in table if row["method"] not in BASELINES] or table
    if len(table) == 1:
        only = table[0]
        start = runs[0].summary["accuracy_seen"][0]
        sentence = (
            f"Accuracy over all classes so far goes from {start:.0f} % to {only['a_last']:.0f} %; "
            "a flat line would be a learner that forgets nothing."
        )
    else:
        best = max(contenders, key=lambda row: row["a_last"])
        sentence = (
            f"The higher a line ends, the more is remembered: {best['row']} ends at {best['a_last']:.1f} %"
            f"{_distance(best, table)}."
        )
    return FigureSpec(
        f"{prefix}accuracy", "Accuracy over tasks", sentence + _seeds(runs),
        f"Line chart of the accuracy on all classes seen so far after each task. Last values: {ends}.",
        lambda: plots.accuracy_over_tasks(runs),
    )  # fmt: skip


def _distance(best: dict[str, float], table: Sequence[dict[str, float]]) -> str:
    """How far the best lies above the next and below the ceiling."""
    others = [row for row in table if row is not best and row["method"] not in BASELINES]
    parts = []
    if others:
        second = max(others, key=lambda row: row["a_last"])
        parts.append(f"{best['a_last'] - second['a_last']:.1f} points above {second['row']}")
    ceiling = [row for row in table if row["method"] == "joint"]
    if ceiling:
        parts.append(f"{ceiling[0]['a_last'] - best['a_last']:.1f} below training on all images (joint)")
    return ", " + " and ".join(parts) if parts else ""


def _confusion(runs: Sequence[Run], prefix: str) -> FigureSpec:
    ends = {}
    for row, group in by_row(runs).items():
        last = [run.summary["old_to_new"][-1] for run in group if len(run.summary["old_to_new"]) > 1]
        if last:
            ends[row] = sum(last) / len(last)
    told = ", ".join(f"{row} {value:.0f} %" for row, value in ends.items())
    worst = max(ends, key=lambda row: ends[row])
    return FigureSpec(
        f"{prefix}confusion", "Old classes taken for new ones",
        f"Low is good: after the last task {ends[worst]:.0f} % of the old images "
        f"{'go' if len(ends) == 1 else f'of {worst} go'} to the newest classes, the typical way to forget."
        + _seeds(runs),
        f"Line chart of the share of old-class test images taken for a class of the newest task. Last values: {told}.",
        lambda: plots.confusion_over_tasks(runs),
    )  # fmt: skip


def _matrix(row: str, runs: Sequence[Run], prefix: str) -> FigureSpec:
    matrix = runs[0].summary["accuracy_matrix"]
    first = fmean(run.summary["accuracy_matrix"][-1][0] for run in runs)
    start = fmean(run.summary["accuracy_matrix"][0][0] for run in runs)
    return FigureSpec(
        f"{prefix}matrix-{slug(row)}", row,
        f"Of task 1, {first:.0f} % is right at the end; it was {start:.0f} % when it was new.",
        f"Heat map of {row}: accuracy in percent on each task's test images (columns) after each task (rows). "
        f"Last row: {', '.join(f'{value:.0f}' for value in matrix[-1])}.",
        lambda: plots.accuracy_matrix(runs), group=TASKS,
    )  # fmt: skip


def _classes(row: str, runs: Sequence[Run], prefix: str) -> FigureSpec:
    last = [
        sum(values) / len(runs) for values in zip(*(run.summary["accuracy_by_class"][-1] for run in runs), strict=True)
    ]
    names = runs[0].summary["class_names"]
    worst = min(range(len(last)), key=lambda number: last[number])
    best = max(range(len(last)), key=lambda number: last[number])
    end = f"At the end “{names[worst]}” is lowest with {last[worst]:.0f} %, “{names[best]}” highest with "
    end += f"{last[best]:.0f} %."
    return FigureSpec(
        f"{prefix}classes-{slug(row)}", row, end,
        f"Heat map of {row}: accuracy in percent on each class (rows) after each task (columns). {end}",
        lambda: plots.accuracy_by_class(runs), group=CLASSES,
    )  # fmt: skip
