"""Figures of training and cost: losses, learning rates, accuracy against memory and time."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from gatf.bench.tables import aggregate
from gatf.io.events import Epoch
from gatf.io.run_folder import RunFolder
from gatf.report.load import Run, by_row
from gatf.report.style import SERIES, LineStyle, label_ends, line_styles, new_figure, styled, whole_ticks

MOST_TERMS = len(SERIES)
"""Terms of a loss that have a distinct colour."""
Line = tuple[list[float], list[float]]
"""x and y values."""


def epochs_of(run: Run) -> list[Epoch]:
    """The epochs in a run's log, in order; empty without a log."""
    folder = RunFolder(run.folder)
    if not folder.events.is_file():
        return []
    return [event for event in folder.read_events() if isinstance(event, Epoch)]


def over_time(epochs: Sequence[Epoch], values: Sequence[float | None]) -> Line:
    """Values against the number of learnt tasks; all epochs of a task span one unit."""
    counts: dict[int, int] = {}
    for epoch in epochs:
        counts[epoch.task] = counts.get(epoch.task, 0) + 1
    done = dict.fromkeys(counts, 0)
    places, heights = [], []
    for epoch, value in zip(epochs, values, strict=True):
        done[epoch.task] += 1
        if value is not None:
            places.append(epoch.task + done[epoch.task] / counts[epoch.task])
            heights.append(value)
    return places, heights


def losses(run: Run) -> dict[str, Line]:
    """The first terms of the loss of one run."""
    epochs = epochs_of(run)
    names = list(dict.fromkeys(name for epoch in epochs for name in epoch.losses))[:MOST_TERMS]
    return {name: over_time(epochs, [epoch.losses.get(name) for epoch in epochs]) for name in names}


def rates(run: Run) -> dict[str, Line]:
    """The learning rate of one run."""
    epochs = epochs_of(run)
    return {"rate": over_time(epochs, [epoch.lr for epoch in epochs])} if epochs else {}


@styled
def training_lines(lines: Mapping[str, Line], label: str, *, log: bool = False) -> Figure:
    """One line per name, over the tasks."""
    figure, axes = new_figure(3.0, x="tasks learnt", title=label)
    if log:
        axes.set_yscale("log")
    styles = {name: LineStyle(SERIES[number], "") for number, name in enumerate(lines)}
    for name, (places, heights) in lines.items():
        axes.plot(places, heights, color=styles[name].color, linewidth=1.3)
    last = int(np.ceil(max(places[-1] for places, _ in lines.values())))
    axes.set_xlim(0, last)
    axes.set_xticks(whole_ticks(0, last))
    label_ends(axes, {name: heights[-1] for name, (_, heights) in lines.items()}, styles)
    return figure


@styled
def against(runs: Sequence[Run], column: str, label: str) -> Figure:
    """A_last of each row against its cost, on a logarithmic scale; up and to the left is better."""
    figure, axes = new_figure(3.2, x=label, title="A_last, %")
    styles = line_styles(by_row(runs))
    axes.set_xscale("log")
    table = aggregate(run.result for run in runs)
    for row in table:
        style = styles[row["row"]]
        axes.errorbar(
            row[column], row["a_last"], yerr=row["a_last_std"], color=style.color, marker=style.marker or "o",
            markersize=7, linewidth=1,
        )  # fmt: skip
    axes.margins(x=0.2)
    costs = {row[column] for row in table}
    if len(costs) == 1:
        axes.set_xlim(min(costs) / 2, 2 * min(costs))
    axes.set_xlim(axes.get_xlim())  # settles the scale, from which places follow
    axes.set_ylim(axes.get_ylim())
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(
        LogLocator(subs=(1, 2, 3, 5, 7) if high < 10 * low else (1, 2, 5) if high < 100 * low else (1,))
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    label_ends(axes, {row["row"]: row["a_last"] for row in table}, styles)
    return figure


def on_threads(runs: Sequence[Run]) -> str:
    """`, 2 threads` if all runs had the same number, else empty."""
    counts = {run.summary.machine.get("threads") for run in runs}
    threads = counts.pop() if len(counts) == 1 else None
    return "" if threads is None else f", {threads} thread{'s' if threads != '1' else ''}"
