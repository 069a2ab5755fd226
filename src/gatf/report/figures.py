"""The figures of finished runs, each a function from runs to a Matplotlib figure: accuracies, then diagnostics.

Diagnostics come from the tables of runs. `among` has all rows of the comparison, also those without the table, so that
a row has the same style in every figure.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from gatf.report import style
from gatf.report.load import Rows, Run, by_row, last_task
from gatf.report.style import LineStyle, label_ends, line_styles, new_figure, short, styled, unread, whole_ticks

CELLS_WITH_NUMBERS = 144
VECTOR_CELLS = 900
"""Heat maps with more cells are stored as pixels."""
KERNEL = np.exp(-0.5 * np.linspace(-3, 3, 25) ** 2)
KERNEL /= KERNEL.sum()
"""Smooths a histogram over a fifth of a unit."""
MOST_LINES = 500
"""Rows and columns of the confusion matrix; more would not be distinguishable on a screen."""
MOST_LABELLED = 8
"""Lines over tasks with a name and a colour."""
MOST_NAMED = 25
"""Classes whose names fit into the plane or beside a heat map."""
Curve = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""x values, means over seeds, standard deviations."""


def over_seeds(series: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray | None]:
    """Mean and sample standard deviation of equally long series; None for one of them."""
    values = np.asarray(series, dtype=float)
    return values.mean(0), values.std(0, ddof=1) if len(values) > 1 else None


def accuracy_over_tasks(runs: Sequence[Run]) -> Figure:
    """acc_t against the number of learnt tasks: one line per row, a band of one standard deviation over seeds. A run
    with one task is a horizontal line."""
    most = max(run.summary.tasks for run in runs)
    series = {
        row: [run.summary.accuracy_seen * (most if run.summary.tasks == 1 else 1) for run in group]
        for row, group in by_row(runs).items()
    }
    own = {run.row for run in runs if not run.reference} if any(run.reference for run in runs) else ()
    return lines_over_tasks(series, first=1, label="accuracy over all seen classes, %", named=own)


def confusion_over_tasks(runs: Sequence[Run]) -> Figure:
    """Share of old-class test images predicted as a class of the newest task; runs with one task are omitted."""
    several = [run for run in runs if run.old_to_new]
    series = {row: [run.old_to_new for run in group] for row, group in by_row(several).items()}
    return lines_over_tasks(series, first=2, label="old images predicted as a new class, %")


@styled
def lines_over_tasks(
    series: Mapping[str, Sequence[Sequence[float]]], *, first: int, label: str, named: Collection[str] = ()
) -> Figure:
    """Percentages after every task, one line per row. At most `MOST_LABELLED` lines have a name and a colour: those in
    `named`, the landmarks, and the highest of the others; the rest is grey."""
    last = {row: fmean(one[-1] for one in values) for row, values in series.items()}
    ranked = sorted(series, key=lambda row: (row not in named, row not in style.LANDMARKS, -last[row]))
    labelled = [row for row in series if row in ranked[:MOST_LABELLED]]
    figure, axes = new_figure(style.height_for(len(labelled)), x="tasks learnt", title=label)
    styles = line_styles(labelled) | {row: LineStyle(style.GREY, "", "-", 1.0) for row in ranked[MOST_LABELLED:]}
    ends: dict[str, float] = {}
    longest, highest = 0, 0.0
    for row, values in series.items():
        shortest = min(map(len, values))
        mean, std = over_seeds([one[:shortest] for one in values])
        tasks = np.arange(first, first + shortest)
        axes.plot(
            tasks, mean, **styles[row].line(), markeredgecolor=style.PAPER, markeredgewidth=0.6,
            zorder=2 + (row in labelled),
        )  # fmt: skip
        if std is not None and row in labelled:
            axes.fill_between(tasks, mean - std, mean + std, color=styles[row].color, alpha=0.14, linewidth=0)
        ends |= {row: float(mean[-1])} if row in labelled else {}
        longest, highest = max(longest, int(tasks[-1])), max(highest, float(mean.max()))
    axes.set_ylim(0, 102 if highest > 80 else 20 * (highest // 20 + 1))
    span = max(longest - first, 1)
    axes.set_xlim(first - 0.03 * span, longest + 0.03 * span)
    axes.set_xticks(whole_ticks(first, longest))
    axes.xaxis.grid(False)
    label_ends(axes, ends, styles)
    return figure


GAPS = {"transport": style.SERIES[1], "readout": style.SERIES[6], "representation": style.GREY}
"""Parts of the accuracy gap to joint training, and their colours."""


@styled
def accuracy_gaps(explained: Mapping[str, Mapping[str, float | None]]) -> Figure:
    """A stacked bar per row: its accuracy, then what transport, readout and representation cost, up to joint training.
    A part that is not above zero, or was not measured, has no width."""
    rows = sorted(explained, key=lambda row: explained[row]["own"] or 0.0)
    figure, axes = new_figure(1.0 + 0.26 * len(rows), x="% of all classes after the last task")
    left = np.zeros(len(rows))
    for name, colour in {"own": style.SERIES[0], **GAPS}.items():
        widths = np.array([max(explained[row].get(name) or 0.0, 0.0) for row in rows])
        label = "accuracy" if name == "own" else name
        axes.barh(range(len(rows)), widths, left=left, color=colour, label=label, height=0.7)
        left += widths
    axes.set_yticks(range(len(rows)), [unread(row) for row in rows])
    axes.yaxis.grid(False)
    figure.legend(
        loc="outside upper left", ncols=4, frameon=False, labelcolor=style.MUTED, handlelength=1.2, columnspacing=1.2
    )
    return figure


@styled
def accuracy_matrix(runs: Sequence[Run]) -> Figure:
    """a[t][k] of one row, mean over seeds: after task t (rows) on task k (columns)."""
    mean = _mean_ragged([run.summary.accuracy_matrix for run in runs])
    tasks = len(mean)
    figure, axes = new_figure(min(4.6, 1.2 + 0.36 * tasks), x="test images of task")
    heat_cells(axes, mean)
    axes.set_xticks(*_task_ticks(tasks))
    axes.set_yticks(*_task_ticks(tasks))
    axes.set_ylabel("after task")
    return figure


@styled
def accuracy_by_class(runs: Sequence[Run]) -> Figure:
    """Accuracy on every class after every task of one row; mean over seeds. Classes are in the order of learning, or,
    if too many to name them all, sorted by final accuracy."""
    mean = _mean_ragged([run.summary.accuracy_by_class for run in runs]).T  # [classes, tasks]
    classes, tasks = mean.shape
    full = list(runs[0].summary.class_names)
    if classes > MOST_NAMED:
        order = np.argsort(-mean[:, -1], kind="stable")
        mean, full = mean[order], [full[number] for number in order]
    names = [short(name) for name in full]
    figure, axes = new_figure(max(2.2, min(5.2, 1.0 + 0.24 * classes)), x="after task")
    heat_cells(axes, mean)
    axes.set_xticks(*_task_ticks(tasks))
    step = -(-classes // MOST_NAMED)
    axes.set_yticks(range(0, classes, step), names[::step])
    if classes <= MOST_NAMED:
        for size in [len(row) for row in runs[0].summary.accuracy_by_class][:-1]:
            axes.axhline(size - 0.5, color=style.PAPER, linewidth=2.5)
    return figure


@styled
def confusion_matrix(runs: Sequence[Run]) -> Figure:
    """Share of each class's images (rows) predicted as each class (columns), over all seeds.

    With very many classes, neighbours share a row and a column, and a cell shows the largest share among them."""
    found = confusion_shares(runs)
    names, block = found.names, classes_per_cell(len(found.names))
    size = -(-len(names) // block)
    cells = np.full((size, size), np.nan)
    for pair in np.argsort(found.percent, kind="stable").tolist():  # the largest last
        cells[found.true[pair] // block, found.predicted[pair] // block] = found.percent[pair]
    figure, axes = new_figure(max(2.6, min(5.2, 1.2 + 0.26 * size)), x="predicted class")
    heat_cells(axes, cells)
    axes.set_xlim(-0.5, size - 0.5)
    step = -(-size // MOST_NAMED)
    shown = [short(name) for name in names[:: step * block]]
    axes.set_yticks(range(0, size, step), shown)
    axes.set_xticks(range(0, size, step), shown, rotation=90 if max(map(len, shown)) > 3 else 0)
    axes.set_ylabel("true class")
    return figure


def classes_per_cell(classes: int) -> int:
    """Number of neighbouring classes that share a row and a column of the confusion matrix."""
    return -(-classes // MOST_LINES)


@dataclass(frozen=True)
class Shares:
    """Predictions per true class, in percent of its images. Pairs that never occur are omitted, so the size grows with
    the number of classes and not with its square."""

    names: list[str]
    """Class names, in the order of the first run."""
    true: np.ndarray
    predicted: np.ndarray
    """Indices into the names, [pairs], ascending."""
    percent: np.ndarray


def confusion_shares(runs: Sequence[Run]) -> Shares:
    """The shares over all seeds."""
    names = list(runs[0].summary.class_names)
    place = {name: number for number, name in enumerate(names)}
    counts: dict[tuple[int, int], int] = {}
    for run in runs:
        own = [place[name] for name in run.summary.class_names]
        for true, predicted, images in run.confusion:
            pair = own[true], own[predicted]
            counts[pair] = counts.get(pair, 0) + images
    pairs = sorted(pair for pair, images in counts.items() if images)
    places = np.array(pairs, dtype=int).reshape(-1, 2)
    seen = np.array([counts[pair] for pair in pairs], dtype=float)
    of_class = np.bincount(places[:, 0], weights=seen, minlength=len(names))[places[:, 0]]
    return Shares(names, places[:, 0], places[:, 1], 100 * seen / np.maximum(of_class, 1))


def _task_ticks(tasks: int) -> tuple[list[int], list[str]]:
    """Positions and names of task ticks: all if few, else the first and every fifth."""
    ticks = [task for task in range(tasks) if tasks <= 12 or (task + 1) % 5 == 0 or task == 0]
    return ticks, [str(task + 1) for task in ticks]


def _mean_ragged(matrices: Sequence[Sequence[Sequence[float]]]) -> np.ndarray:
    """Mean of equally shaped ragged matrices; missing values are NaN."""
    width = max(len(row) for matrix in matrices for row in matrix)
    padded = np.full((len(matrices), len(matrices[0]), width), np.nan)
    for number, matrix in enumerate(matrices):
        for line, row in enumerate(matrix):
            padded[number, line, : len(row)] = row
    return padded.mean(0)


def heat_cells(axes: Axes, values: np.ndarray) -> None:
    """Percentages as coloured cells, the first row on top, with numbers if they are legible."""
    lines, columns = values.shape
    levels = BoundaryNorm(np.linspace(0, 100 + 1e-9, len(style.HEAT) + 1), len(style.HEAT))
    colours = ListedColormap(style.HEAT)
    masked = np.ma.masked_invalid(values)
    if values.size > VECTOR_CELLS:
        axes.imshow(masked, cmap=colours, norm=levels, aspect="auto", interpolation="none")
    else:
        edge = 1.2 if values.size <= CELLS_WITH_NUMBERS else 0.3
        grid = (np.arange(columns + 1) - 0.5, np.arange(lines + 1) - 0.5)
        axes.pcolormesh(*grid, masked, cmap=colours, norm=levels, edgecolors=style.PAPER, linewidth=edge)
    axes.set_ylim(lines - 0.5, -0.5)
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    if values.size > CELLS_WITH_NUMBERS or columns > 12:
        return
    for line, column in zip(*np.nonzero(~np.isnan(values)), strict=True):
        value = values[line, column]
        colour = style.ON_DEEP if levels(value) >= style.DEEP else style.ON_PALE
        axes.text(column, line, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=9)


def curve(tables: Sequence[Rows], at: str, value: str, keep: Callable[[dict[str, Any]], bool]) -> Curve | None:
    """Mean of `value` by `at` over the rows kept, in each table; then mean and spread over tables (seeds)."""
    each = []
    for rows in tables:
        groups: dict[float, list[float]] = {}
        for row in rows:
            if keep(row) and row.get(value) is not None:
                groups.setdefault(row[at], []).append(row[value])
        each.append({place: fmean(values) for place, values in groups.items()})
    places = sorted(set.intersection(*(set(one) for one in each)))
    if not places:
        return None
    return np.array(places, dtype=float), *over_seeds([[one[place] for place in places] for one in each])


def curves(runs: Sequence[Run], table: str, at: str, value: str, keep: Callable[..., bool]) -> dict[str, Curve]:
    """One curve per row, for the rows that have the table."""
    found = {}
    for row, group in by_row(runs).items():
        tables = [run.diagnostics[table] for run in group if table in run.diagnostics]
        one = curve(tables, at, value, keep) if tables else None
        if one is not None:
            found[row] = one
    return found


def draw_curves(axes: Axes, found: Mapping[str, Curve], styles: Mapping[str, LineStyle], *, log: bool = False) -> None:
    """Lines with bands and names at their ends."""
    if log:
        axes.set_yscale("log")
    for row, (places, mean, std) in found.items():
        look = styles[row].line() | ({"marker": ""} if len(places) > 25 else {"markersize": 4})
        axes.plot(places, mean, **look, markeredgecolor=style.PAPER, markeredgewidth=0.5)
        if std is not None:
            low = np.maximum(mean - std, mean / 10) if log else mean - std
            axes.fill_between(places, low, mean + std, color=styles[row].color, alpha=0.14, linewidth=0)
    if not log:
        low, high = min(0.0, *(float(mean.min()) for _, mean, _ in found.values())), axes.get_ylim()[1]
        axes.set_ylim(low, high + 0.05 * (high - low))
    axes.xaxis.grid(False)
    label_ends(axes, {row: float(mean[-1]) for row, (_, mean, _) in found.items()}, styles)


@styled
def drift_over_tasks(runs: Sequence[Run], among: Sequence[str] = ()) -> Figure:
    """Prototype drift within every task, mean over past tasks; with a single row one line per past task.

    The time axis counts tasks, because methods differ in their epochs per task.
    """
    title = "distance of stored from true class means, in std of the class"
    figure, axes = new_figure(3.0, x="tasks learnt", title=title)
    lines: dict[str, Curve | None]
    tables = {
        row: [in_tasks(run.diagnostics["drift"], run.diagnostics.get("errors", [])) for run in group]
        for row, group in by_row(runs).items()
    }
    if len(tables) > 1:
        lines = {row: curve(each, "time", "drift", lambda row: True) for row, each in tables.items()}
    else:
        (only,) = tables.values()
        lines = {
            f"task {task + 1}": curve(only, "time", "drift", lambda row, task=task: row["past_task"] == task)  # type: ignore[misc]
            for task in sorted({row["past_task"] for row in only[0]})[: len(style.SERIES)]
        }
    found = {name: line for name, line in lines.items() if line is not None}
    single = {name: LineStyle(colour, "o") for name, colour in zip(found, style.SERIES, strict=False)}
    styles = line_styles(among or tables) if len(tables) > 1 else single
    last = int(max(places[-1] for places, _, _ in found.values()))
    axes.set_xlim(1, last)
    axes.set_xticks(whole_ticks(1, last))
    draw_curves(axes, found, styles)
    axes.xaxis.grid(True, linestyle=":")
    return figure


def in_tasks(rows: Rows, errors: Sequence[dict[str, Any]] = ()) -> Rows:
    """The drift table with a column `time`: the task plus the finished fraction of its measurements. The last value of
    a task is that after its transport, from the table of errors if there is one, as in captions and tables."""
    after: dict[tuple[int, int], list[float]] = {}
    for row in errors:
        if row["past_task"] < row["after_task"] and "drift" in row:
            after.setdefault((row["after_task"], row["past_task"]), []).append(row["drift"])
    ends = {task for task, _ in after}
    epochs: dict[int, list[int]] = {}
    for row in rows:
        epochs.setdefault(row["task"], []).append(row["epoch"])
    order = {task: sorted(set(values)) for task, values in epochs.items()}
    steps = {task: len(order[task]) + (task in ends) for task in order}
    within = [
        {**row, "time": row["task"] + (order[row["task"]].index(row["epoch"]) + 1) / steps[row["task"]]} for row in rows
    ]
    return within + [
        {"task": task, "past_task": past, "drift": fmean(values), "time": task + 1.0}
        for (task, past), values in after.items()
        if task in order
    ]


@styled
def tail_curve(runs: Sequence[Run], among: Sequence[str] = ()) -> Figure:
    """T(k) after the last task with the method's map, or without transport if it has none."""
    figure, axes = new_figure(
        3.0,
        x="directions, from large to small variance",
        title="cumulative squared error of transported features, in variances",
    )
    last = last_task(runs[0].diagnostics["tail"])
    styles = line_styles(among or by_row(runs))
    without = curves(runs, "tail", "k", "tail", lambda row: row["after_task"] == last and row["map"] == "none")
    found = curves(runs, "tail", "k", "tail", lambda row: row["after_task"] == last and row["map"] == "transported")
    if len(by_row(runs)) == 1:
        found |= {"not transported": next(iter(without.values()))}
        styles |= {"not transported": LineStyle(style.MUTED, "", "--", 1.5)}
    draw_curves(axes, found or without, styles, log=True)
    return figure


@styled
def margin_densities(runs: Sequence[Run], among: Sequence[str] = ()) -> Figure:
    """Density of old-class margins after the last task, in units of each method's median margin."""
    title = "density of the margin of old images"
    figure, axes = new_figure(3.0, x="margin, in medians (left of 0: misclassified)", title=title)
    styles = line_styles(among or by_row(runs))
    axes.axvline(0, color=style.INK, linewidth=0.9)
    for row, group in by_row(runs).items():
        last = last_task(group[0].diagnostics["margins"])
        grid = np.linspace(-4, 4, 161)
        total = np.zeros_like(grid)
        for run in group:
            kept = [one for one in run.diagnostics["margins"] if one["after_task"] == last and one["form"] == "score"]
            unit = kept[0]["unit"] or 1.0
            middles = np.array([(one["low"] + one["high"]) / 2 / unit for one in kept])
            total += np.interp(grid, middles, [one["density"] * unit for one in kept], left=0, right=0) / len(group)
        total = np.convolve(total, KERNEL, mode="same")
        look = styles[row]
        axes.plot(grid, total, color=look.color, linestyle=look.dash, linewidth=look.width, label=unread(row))
    axes.set_ylim(bottom=0)
    axes.set_yticks([])
    axes.set_xlim(-4, 4)
    if len(by_row(runs)) > 1:
        axes.legend(frameon=False, loc="upper left", fontsize=8.5, labelcolor=style.MUTED, handlelength=1.6)
    return figure


@styled
def error_over_tasks(runs: Sequence[Run], column: str, label: str, among: Sequence[str] = ()) -> Figure:
    """An error of the stored Gaussians of old classes, mean over classes, after every task; logarithmic if methods
    differ by more than a factor of thirty."""
    figure, axes = new_figure(3.0, x="tasks learnt", title=label)
    found = curves(runs, "errors", "after_task", column, lambda row: row["past_task"] < row["after_task"])
    shifted = {row: (places + 1, mean, std) for row, (places, mean, std) in found.items()}
    means = np.concatenate([mean for _, mean, _ in shifted.values()])
    draw_curves(
        axes, shifted, line_styles(among or by_row(runs)), log=bool(means.min() > 0 and means.max() > 30 * means.min())
    )
    axes.set_xticks(whole_ticks(2, int(max(places[-1] for places, _, _ in shifted.values()))))
    return figure


@styled
def spectrum(runs: Sequence[Run], among: Sequence[str] = ()) -> Figure:
    """Eigenvalues of the covariances of the first task's classes at the end: stored (line) and true (dashes)."""
    title = "variance of classes of task 1: stored — true ···"
    figure, axes = new_figure(3.0, x="eigenvalue, from large to small", title=title)
    styles = line_styles(among or by_row(runs))

    def kept(of: str) -> Callable[[dict[str, Any]], bool]:
        last = last_task(runs[0].diagnostics["spectra"])
        return lambda row: row["after_task"] == last and row["past_task"] == 0 and row["of"] == of

    for row, (places, mean, _) in curves(runs, "spectra", "rank", "eigenvalue", kept("true")).items():
        axes.plot(places, mean, color=styles[row].color, linestyle=":", linewidth=1.6)
    draw_curves(axes, curves(runs, "spectra", "rank", "eigenvalue", kept("stored")), styles, log=True)
    return figure


@styled
def transport_plane(run: Run) -> Figure:
    """Old class means in the plane during the last task: before it, after it, and transported."""
    rows = run.diagnostics["plane"]
    last = last_task(rows)
    place = {(row["class"], row["kind"]): (row["x"], row["y"]) for row in rows if row["after_task"] == last}
    figure, axes = new_figure(3.6)
    for number in sorted({number for number, _ in place}):
        old, new = place[number, "old"], place[number, "new"]
        arrow = {"arrowstyle": "-|>", "color": style.MUTED, "linewidth": 1.0, "shrinkA": 3, "shrinkB": 3}
        axes.annotate("", new, old, arrowprops=arrow)
        transported = place.get((number, "transported"))
        if len(place) <= 3 * MOST_NAMED:
            right = transported is None or transported[0] <= new[0]  # away from the cross
            axes.annotate(
                short(run.summary.class_names[number]), new, xytext=(5 if right else -5, 4), color=style.MUTED,
                textcoords="offset points", fontsize=8.5, ha="left" if right else "right",
            )  # fmt: skip
        if transported is not None:
            axes.plot(*zip(transported, new, strict=True), color=style.SERIES[1], linewidth=1, linestyle=":")
    looks = {
        "old": ("before", "o", style.MUTED, 5), "new": ("after", "o", style.SERIES[0], 6),
        "transported": ("transported", "x", style.SERIES[1], 6),
    }  # fmt: skip
    for kind, (label, marker, color, size) in looks.items():
        points = [xy for (_, one), xy in place.items() if one == kind]
        if points:
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, marker, color=color, markersize=size, markeredgewidth=1.4, label=label)
    axes.set_aspect("equal", adjustable="datalim")
    axes.tick_params(labelbottom=False, labelleft=False)
    axes.legend(frameon=False, fontsize=8.5, labelcolor=style.MUTED, loc="best", handletextpad=0.2)
    return figure
