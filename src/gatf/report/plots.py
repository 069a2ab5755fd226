"""The pictures of finished runs, each a function from runs to a Matplotlib figure."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import ParamSpec

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from gatf.report.load import Run, by_row
from gatf.report.style import DEEP, HEAT, MUTED, ON_DEEP, ON_PALE, PAPER, RC, LineStyle, line_styles

WIDTH = 4.5
"""Inches. A phone's column is about as many pixels as this is points, so letters keep their size there."""
CELLS_WITH_NUMBERS = 144
VECTOR_CELLS = 900
"""Heat maps with more cells are stored as pixels."""


P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in the project's style, whatever the user's own Matplotlib settings are."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **RC}):
            return draw(*args, **kwargs)

    return inside


def new_figure(height: float, *, width: float = WIDTH) -> tuple[Figure, Axes]:
    """One panel."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def over_seeds(series: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray | None]:
    """Mean and sample standard deviation of equally long series; None for one of them."""
    values = np.asarray(series, dtype=float)
    return values.mean(0), values.std(0, ddof=1) if len(values) > 1 else None


def accuracy_over_tasks(runs: Sequence[Run]) -> Figure:
    """acc_t against the number of tasks learnt: a line a row, a band of one standard deviation over seeds."""
    series = {row: [run.summary["accuracy_seen"] for run in group] for row, group in by_row(runs).items()}
    return lines_over_tasks(series, first=1, label="accuracy on all classes so far, %")


def confusion_over_tasks(runs: Sequence[Run]) -> Figure:
    """Share of old-class test images that are taken for a class of the newest task."""
    series = {row: [run.summary["old_to_new"][1:] for run in group] for row, group in by_row(runs).items()}
    return lines_over_tasks(series, first=2, label="old images taken for a new class, %")


@styled
def lines_over_tasks(series: Mapping[str, Sequence[Sequence[float]]], *, first: int, label: str) -> Figure:
    """Percentages after every task, a line a row."""
    figure, axes = new_figure(3.0)
    styles = line_styles(series)
    ends: dict[str, float] = {}
    longest = 0
    for row, values in series.items():
        shortest = min(map(len, values))
        mean, std = over_seeds([one[:shortest] for one in values])
        tasks = np.arange(first, first + shortest)
        axes.plot(tasks, mean, **styles[row].line(), markeredgecolor=PAPER, markeredgewidth=0.6)
        if std is not None:
            axes.fill_between(tasks, mean - std, mean + std, color=styles[row].color, alpha=0.14, linewidth=0)
        ends[row] = float(mean[-1])
        longest = max(longest, int(tasks[-1]))
    axes.set_ylim(0, 102)
    span = max(longest - first, 1)
    axes.set_xlim(first - 0.03 * span, longest + 0.03 * span)
    axes.set_xticks(whole_ticks(first, longest))
    axes.set_xlabel("tasks learnt")
    axes.set_title(label, loc="left", color=MUTED)
    axes.xaxis.grid(False)
    label_ends(axes, ends, styles)
    return figure


def whole_ticks(first: int, last: int) -> list[int]:
    """Every whole number while there are few, else the first and the multiples of five or more."""
    if last - first < 12:
        return list(range(first, last + 1))
    step = 5 * max(1, round((last - first) / 40))
    return [first, *(number for number in range(step, last + 1, step) if number - first > step / 2)]


def label_ends(axes: Axes, ends: Mapping[str, float], styles: Mapping[str, LineStyle]) -> None:
    """Names beside the ends of lines, pushed apart where they would touch, instead of a legend to look up.

    `ends` are heights in data coordinates; limits and scale of the axes must be final.
    """
    right = axes.get_xlim()[1]
    to_share = axes.transData + axes.transAxes.inverted()  # of the height of the axes
    shares = [float(to_share.transform((right, height))[1]) for height in ends.values()]
    for row, height in zip(ends, spread_apart(shares, 0.06, 0.03, 1.0), strict=True):
        axes.annotate(
            row, (1.0, height), xycoords="axes fraction", xytext=(6, 0), textcoords="offset points", va="center",
            color=styles[row].color, weight="bold" if styles[row].width > 2 else "normal", annotation_clip=False,
        )  # fmt: skip


def spread_apart(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights moved as little as possible so that neighbours are `gap` apart and all lie between `low` and `high`."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    gap = min(gap, (high - low) / max(len(order) - 1, 1))
    blocks: list[tuple[float, list[int]]] = []
    for index in order:
        blocks.append((heights[index], [index]))
        while len(blocks) > 1 and _top(blocks[-2], gap) + gap > _bottom(blocks[-1], gap):
            members = blocks[-2][1] + blocks[-1][1]
            blocks[-2:] = [(statistics.fmean(heights[member] for member in members), members)]
    placed = [0.0] * len(heights)
    for block in blocks:
        for position, index in enumerate(block[1]):
            placed[index] = _bottom(block, gap) + position * gap
    for ordered, limit, step in ((order, low, gap), (order[::-1], high, -gap)):
        for index in ordered:
            placed[index] = max(placed[index], limit) if step > 0 else min(placed[index], limit)
            limit = placed[index] + step
    return placed


def _bottom(block: tuple[float, list[int]], gap: float) -> float:
    return block[0] - gap * (len(block[1]) - 1) / 2


def _top(block: tuple[float, list[int]], gap: float) -> float:
    return block[0] + gap * (len(block[1]) - 1) / 2


@styled
def accuracy_matrix(runs: Sequence[Run]) -> Figure:
    """a[t][k] of one row: lines of the matrix are moments, columns are tasks; the mean over seeds."""
    mean = _mean_ragged([run.summary["accuracy_matrix"] for run in runs])
    tasks = len(mean)
    figure, axes = new_figure(min(4.6, 1.2 + 0.36 * tasks))
    heat_cells(axes, mean)
    ticks = [task for task in range(tasks) if tasks <= 12 or (task + 1) % 5 == 0 or task == 0]
    axes.set_xticks(ticks, [str(task + 1) for task in ticks])
    axes.set_yticks(ticks, [str(task + 1) for task in ticks])
    axes.set_xlabel("test images of task")
    axes.set_ylabel("after task")
    return figure


@styled
def accuracy_by_class(runs: Sequence[Run]) -> Figure:
    """Accuracy on every class after every task of one row, classes in the order they were learnt; mean over seeds."""
    mean = _mean_ragged([run.summary["accuracy_by_class"] for run in runs]).T  # [classes, tasks]
    classes, tasks = mean.shape
    figure, axes = new_figure(max(2.2, min(5.2, 1.0 + 0.24 * classes)))
    heat_cells(axes, mean)
    ticks = [task for task in range(tasks) if tasks <= 12 or (task + 1) % 5 == 0 or task == 0]
    axes.set_xticks(ticks, [str(task + 1) for task in ticks])
    names = runs[0].summary["class_names"]
    step = -(-classes // 25)
    axes.set_yticks(range(0, classes, step), [short(names[number]) for number in range(0, classes, step)])
    axes.set_xlabel("after task")
    for size in [len(row) for row in runs[0].summary["accuracy_by_class"]][:-1]:
        axes.axhline(size - 0.5, color=PAPER, linewidth=2.5 if classes <= 30 else 1.2)
    return figure


def short(name: str, length: int = 14) -> str:
    """A name that a figure has room for."""
    return name if len(name) <= length else name[: length - 1] + "…"


def _mean_ragged(matrices: Sequence[Sequence[Sequence[float]]]) -> np.ndarray:
    """Mean of equally shaped ragged matrices; what is not measured yet is NaN."""
    width = max(len(row) for matrix in matrices for row in matrix)
    padded = np.full((len(matrices), len(matrices[0]), width), np.nan)
    for number, matrix in enumerate(matrices):
        for line, row in enumerate(matrix):
            padded[number, line, : len(row)] = row
    return padded.mean(0)


def heat_cells(axes: Axes, values: np.ndarray) -> None:
    """Percentages as coloured cells, the first row on top; numbers in them while they can be read."""
    lines, columns = values.shape
    levels = BoundaryNorm(np.linspace(0, 100 + 1e-9, len(HEAT) + 1), len(HEAT))
    colours = ListedColormap(HEAT)
    masked = np.ma.masked_invalid(values)
    if values.size > VECTOR_CELLS:
        axes.imshow(masked, cmap=colours, norm=levels, aspect="auto", interpolation="none")
    else:
        edge = 1.2 if values.size <= CELLS_WITH_NUMBERS else 0.3
        grid = (np.arange(columns + 1) - 0.5, np.arange(lines + 1) - 0.5)
        axes.pcolormesh(*grid, masked, cmap=colours, norm=levels, edgecolors=PAPER, linewidth=edge)
    axes.set_ylim(lines - 0.5, -0.5)
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    if values.size > CELLS_WITH_NUMBERS or columns > 12:
        return
    for line, column in zip(*np.nonzero(~np.isnan(values)), strict=True):
        value = values[line, column]
        colour = ON_DEEP if levels(value) >= DEEP else ON_PALE
        axes.text(column, line, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=9)
