"""Colours and lines. Figures are drawn in the light colours; in the page each becomes a CSS variable that has a dark
twin, so one SVG serves both. No meaning hangs on colour alone: lines also differ in marker, dash and label."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

INK, MUTED, GRID, PAPER = "#1c2128", "#5d6673", "#dfe3e8", "#fdfdfe"
SERIES = ("#1a66d6", "#c4510a", "#0f7f5b", "#8446d8", "#b8327f", "#0b7285", "#8a6200")
HEAT = (
    "#f2f6fb", "#e0ebf8", "#cbdff5", "#b2d0f0", "#95bdea", "#76a8e2", "#5891d8", "#3d79c9", "#2862b3", "#184b97",
    "#0b3675",
)  # fmt: skip
"""From 0 to 100 %."""
DEEP = 7
"""Steps of HEAT from here on carry numbers in the other colour."""
ON_PALE, ON_DEEP = "#1d2229", "#fefeff"
"""Numbers on the steps before DEEP, and from it on."""

DARK = {
    INK: "#e8ebf0", MUTED: "#9aa4b2", GRID: "#333a44", PAPER: "#14181d",
    **dict(zip(SERIES, ("#6fa8ff", "#ff9a56", "#45c594", "#b893ff", "#f47fbd", "#4cc5dc", "#ddb04a"), strict=True)),
    **dict(zip(HEAT, ("#1b222b", "#1c2938", "#1d3148", "#1e3a5a", "#20446d", "#245083", "#2b5f9b", "#4480c6", "#5691d8",
                      "#6ca5e8", "#97c5fb"), strict=True)),
    ON_PALE: "#dfe5ec", ON_DEEP: "#0b1118",
}  # fmt: skip
NAMES = {
    INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper",
    **{colour: f"series{number}" for number, colour in enumerate(SERIES)},
    **{colour: f"heat{number}" for number, colour in enumerate(HEAT)},
    ON_PALE: "on-pale", ON_DEEP: "on-deep",
}  # fmt: skip

RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "savefig.transparent": True,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "p", "*")


@dataclass(frozen=True)
class LineStyle:
    """How one method looks in every figure."""

    color: str
    marker: str
    dash: str = "-"
    width: float = 1.8

    def line(self) -> dict[str, Any]:
        return {"color": self.color, "marker": self.marker, "linestyle": self.dash, "linewidth": self.width}


LANDMARKS = {
    "joint": LineStyle(MUTED, "_", "--", 1.5),
    "finetune": LineStyle(MUTED, ".", ":", 1.5),
    "gatf": LineStyle(SERIES[0], "o", "-", 2.6),
    "adagauss": LineStyle(SERIES[1], "s"),
}
"""The ceiling and the floor are grey; the two that are compared most keep their colour in every report."""


def line_styles(rows: Iterable[str]) -> dict[str, LineStyle]:
    """A style for every row of a comparison."""
    rows = list(rows)
    styles = {row: LANDMARKS[row] for row in rows if row in LANDMARKS}
    free = [color for color in SERIES if color not in {style.color for style in styles.values()}]
    for number, row in enumerate(row for row in rows if row not in LANDMARKS):
        dash = ("-", "--", "-.")[number // len(free) % 3]
        styles[row] = LineStyle(free[number % len(free)], MARKERS[(number + 2) % len(MARKERS)], dash)
    return styles


def css_variables(dark: bool) -> str:
    """`--ink: #1c2128; …`, for one of the two themes."""
    return " ".join(f"--{name}: {DARK[colour] if dark else colour};" for colour, name in NAMES.items())
