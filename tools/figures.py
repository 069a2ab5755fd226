"""Figures of the documentation that are drawn from recorded results: `python tools/update_docs.py --figures`."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pages import (
    BENCHMARKS,
    EXPERIMENTS,
    FIRST,
    MAIN,
    MAIN_UPGRADE,
    RESULTS,
    ROOT,
    collected,
    curves,
    encoder_counts,
    first_gaps,
    read,
)

IMAGES = ROOT / "docs" / "img"
MAPS = {"none", "translation", "Sylvester", "MLP alone", "anchor + residual", "refreshed"}
"""Maps in the figure of transport errors; the other anchors lie on the line of `Sylvester`."""


def main() -> None:
    from gatf.report.style import save_figure

    figures: dict[str, Callable[[], Any]] = {
        MAIN: accuracies,
        f"{FIRST}-gaps": gaps,
        f"{FIRST}-transports": transport_errors,
        f"{FIRST}-epochs": training_curves,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, draw in figures.items():
            _, png = save_figure(draw(), Path(folder), name)
            shutil.copy(png, IMAGES / png.name)
    noise = {kind: {int(count): 100 * one["cov"] for count, one in by_count.items()}
             for kind, by_count in curves()["0.3"].items()}  # fmt: skip
    log_log(IMAGES / "pushforward.svg", noise, "samples per class", "error of covariances, %")
    seconds = {part: {int(count): value for count, value in dims.get("64", {}).items()}
               for part, dims in read(BENCHMARKS, "growth")["seconds"].items()}  # fmt: skip
    log_log(IMAGES / "growth.svg", seconds, "classes (S = 64)", "CPU seconds")
    upgrades()


def upgrades() -> None:
    """Accuracy over the number of pairs, for data sets where upgrades were run with at least three numbers."""
    for data in ("cub200", "cifar100"):
        found = {one["count"]: one for one in encoder_counts()
                 if (one["data"], one["of"], one["old"], one["new"]) == (data, "mixture", *MAIN_UPGRADE)}  # fmt: skip
        if len(found) < 3:
            continue
        shown = {
            "embedded again": {count: one["reembedded"] for count, one in found.items()},
            "gatf upgrade": {count: one["upgraded"]["accuracy"] for count, one in found.items()},
            "best of Drift-Adapter": {count: max(one["drift_adapter"].values()) for count, one in found.items()},
            "relabelled": {count: one["relabelled"] for count, one in found.items()},
        }
        log_log(IMAGES / f"encoders-{data}.svg", shown, "pairs", f"accuracy on {data}, %", up_scale="linear")


def accuracies() -> Any:
    """Accuracy over tasks of every row of the leaderboard."""
    from gatf.report.figures import accuracy_over_tasks

    return accuracy_over_tasks([each.run for each in collected(MAIN)])


def gaps() -> Any:
    """The accuracy gap of each method to joint training, version 1."""
    from gatf.report.figures import accuracy_gaps

    return accuracy_gaps(first_gaps())


def transport_errors() -> Any:
    """The cumulated transport error T(k) of every map."""
    rows = read(RESULTS / FIRST, "transports")["rows"]
    shown = {row["map"]: row["tail"] for row in rows if row["map"] in MAPS}
    return lines(shown, "cumulated transport error, in units of variance", "directions, widest first", log=True)


def training_curves() -> Any:
    """Training accuracy after every epoch of the first two tasks."""
    shown = {
        f"{count} epochs, task {task + 1}": [row["train"] for row in found["rows"] if row["task"] == task]
        for count, found in read(EXPERIMENTS, "convergence").items()
        for task in (0, 1)
    }
    return lines(shown, "accuracy on the training images of the task, %", "epoch")


def lines(shown: dict[str, list[float]], title: str, along: str, *, log: bool = False) -> Any:
    """A labelled line per name."""
    from gatf.report.style import MUTED, label_ends, line_styles, new_figure, styled

    @styled
    def figure() -> Any:
        drawing, axes = new_figure(3.2)
        styles = line_styles(shown)
        for name, values in shown.items():
            style = styles[name]
            axes.plot(range(1, len(values) + 1), values, color=style.color, linestyle=style.dash, linewidth=style.width)
        if log:
            axes.set_yscale("log")
        axes.set_xlim(1, max(map(len, shown.values())))
        axes.set_xlabel(along)
        axes.set_title(title, loc="left", color=MUTED)
        label_ends(axes, {name: values[-1] for name, values in shown.items()}, styles)
        return drawing

    return figure()


def log_log(path: Path, shown: dict[str, dict[int, float]], along: str, up: str, *, up_scale: str = "log") -> None:
    """A line per name over a logarithmic axis, as SVG without a date."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "gatf"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for name, values in shown.items():
        axes.plot(sorted(values), [values[count] for count in sorted(values)], "o-", label=name)
    axes.set(xlabel=along, ylabel=up, xscale="log", yscale=up_scale)
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
