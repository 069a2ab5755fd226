"""A report about a model as one HTML file."""

import math
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.ticker import MaxNLocator

from gatf.model.state import Model
from gatf.report.page import write_page
from gatf.report.style import INK, MUTED, SERIES, inline_svg, new_figure, short, styled
from gatf.serve.atlas import chart
from gatf.serve.live import Served

MOST_NAMED = 30
"""Classes whose names a figure has room for."""


def write_model_report(out: Path, served: Served, description: dict[str, Any], before: Model | None) -> None:
    """Write the report; `description` is the response of `GET /v1/model`."""
    figures = []
    if served.keeps_gaussians:
        found = chart(served.model, served.plane, before)
        sentence = (
            f"Class means on their two principal axes, which show {100 * found['share']:.0f} % of their variance."
        )
        if found["moved"]:
            sentence += " Arrows start at the class mean before the last update."
        alt = f"{description['classes']} classes as ellipses on a plane"
        figures.append(("The classes", sentence, inline_svg(draw_chart(found), name="chart", alt=alt)))
    sentence = "Expected accuracy over all classes after every update, with its range."
    alt = "Expected accuracy at each update: " + ", ".join(
        "not measured" if record["expected_all"] is None else f"{record['expected_all']:.0f} %"
        for record in description["history"]
    )
    figures.append(("Accuracy by update", sentence, inline_svg(draw_history(description), name="history", alt=alt)))
    counts = zip(served.model.labels, served.model.counts.tolist(), strict=True)
    write_page(
        out, "model.html.j2", title=f"{description['name']}: {description['classes']} classes",
        description=description, figures=figures, counts=list(counts),
    )  # fmt: skip


@styled
def draw_chart(found: dict[str, Any]) -> Figure:
    figure, axes = new_figure(4.0)
    for number, item in enumerate(found["classes"]):
        colour = SERIES[number % len(SERIES)]
        values, vectors = torch.linalg.eigh(torch.tensor(item["spread"], dtype=torch.float64))
        across, along = (2 * values.clamp_min(0).sqrt()).tolist()  # one standard deviation to each side
        angle = math.degrees(math.atan2(float(vectors[1, 1]), float(vectors[0, 1])))
        axes.add_patch(Ellipse(item["place"], along, across, angle=angle, facecolor="none", edgecolor=colour, lw=1.5))
        if item["from"] is not None:
            arrow = {"arrowstyle": "->", "color": MUTED, "lw": 1.0}
            axes.annotate("", item["place"], item["from"], arrowprops=arrow)
            axes.update_datalim([item["from"]])
        axes.plot(*item["place"], "o", color=colour)
        if len(found["classes"]) <= MOST_NAMED:
            axes.annotate(
                short(str(item["label"])), item["place"], (5, 5), textcoords="offset points", color=INK,
            )  # fmt: skip
    axes.set_aspect("equal", adjustable="datalim")
    axes.autoscale_view()
    axes.tick_params(labelbottom=False, labelleft=False)
    return figure


@styled
def draw_history(description: dict[str, Any]) -> Figure:
    figure, axes = new_figure(2.8, x="update")
    known = [record for record in description["history"] if record["expected_all"] is not None]
    if known:
        numbers = [record["number"] for record in known]
        low, high = ([record[f"expected_all_{end}"] for record in known] for end in ("low", "high"))
        axes.plot(numbers, [record["expected_all"] for record in known], color=SERIES[0], marker="o")
        axes.vlines(numbers, low, high, color=SERIES[0], alpha=0.5)
    axes.set_ylim(0, 104)
    axes.set_ylabel("%")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
