"""The style of figures: colours and lines, legends, and inline SVG.

Figures are drawn in the light colours. In the page each colour becomes a CSS variable with a dark variant, so one SVG
serves both themes. Lines also differ in marker, dash and label, not only in colour.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from html import escape
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

INK, MUTED, GRID, PAPER, GREY = "#1c2128", "#5d6673", "#dfe3e8", "#fdfdfe", "#bcc3cd"
SERIES = ("#1a66d6", "#c4510a", "#0f7f5b", "#8446d8", "#b8327f", "#0b7285", "#8a6200")
HEAT = (
    "#f2f6fb", "#e0ebf8", "#cbdff5", "#b2d0f0", "#95bdea", "#76a8e2", "#5891d8", "#3d79c9", "#2862b3", "#184b97",
    "#0b3675",
)  # fmt: skip
"""From 0 to 100 %."""
DEEP = 7
"""Steps of HEAT from here on have numbers in the light colour."""
ON_PALE, ON_DEEP = "#1d2229", "#fefeff"
"""Numbers on the steps before DEEP, and from it on."""

DARK = {
    INK: "#e8ebf0", MUTED: "#9aa4b2", GRID: "#333a44", PAPER: "#14181d", GREY: "#4d5663",
    **dict(zip(SERIES, ("#6fa8ff", "#ff9a56", "#45c594", "#b893ff", "#f47fbd", "#4cc5dc", "#ddb04a"), strict=True)),
    **dict(zip(HEAT, ("#1b222b", "#1c2938", "#1d3148", "#1e3a5a", "#20446d", "#245083", "#2b5f9b", "#4480c6", "#5691d8",
                      "#6ca5e8", "#97c5fb"), strict=True)),
    ON_PALE: "#dfe5ec", ON_DEEP: "#0b1118",
}  # fmt: skip
NAMES = {
    INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper", GREY: "grey",
    **{colour: f"series{number}" for number, colour in enumerate(SERIES)},
    **{colour: f"heat{number}" for number, colour in enumerate(HEAT)},
    ON_PALE: "on-pale", ON_DEEP: "on-deep",
}  # fmt: skip

RC: Any = {
    "font.family": "DejaVu Sans", "font.size": 9.5, "axes.titlesize": 9.5, "axes.labelsize": 9.5,
    "xtick.labelsize": 9, "ytick.labelsize": 9, "xtick.major.size": 0, "ytick.major.size": 0,
    "lines.linewidth": 1.8, "lines.markersize": 5, "grid.linewidth": 0.7, "axes.grid": True, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.facecolor": "none", "figure.facecolor": "none", "savefig.transparent": True, "svg.fonttype": "none",
    "pdf.fonttype": 42, "text.color": INK,
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), MUTED),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), GRID),
}  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "p", "*")
WIDTH = 4.5
"""Inches: about the width of a phone's column, so that letters keep their size there."""

P = ParamSpec("P")
_NUMBER = re.compile(r"(-?\d+\.\d{3,})")


@dataclass(frozen=True)
class LineStyle:
    """The style of one method in every figure."""

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
    "gatf plus": LineStyle(SERIES[0], "D", "--", 2.6),
    "adagauss": LineStyle(SERIES[1], "s"),
}
"""Upper and lower bounds are grey. The two methods that are compared most, and rows named after them, have the same
colour in every report."""


def line_styles(rows: Iterable[str]) -> dict[str, LineStyle]:
    """A style for every row of a comparison."""
    rows = list(rows)
    styles = {row: LANDMARKS[row] for row in rows if row in LANDMARKS}
    for landmark in ("gatf", "adagauss"):
        called_after = (row for row in rows if row not in LANDMARKS and re.match(rf"{landmark}\b", row))
        for number, row in enumerate(called_after):
            marker = MARKERS[(number + 4) % len(MARKERS)]
            styles[row] = LineStyle(LANDMARKS[landmark].color, marker, ("-.", ":", "--")[number % 3])
    free = [color for color in SERIES if color not in {style.color for style in styles.values()}]
    for number, row in enumerate(row for row in rows if row not in styles):
        dash = ("-", "--", "-.")[number // len(free) % 3]
        styles[row] = LineStyle(free[number % len(free)], MARKERS[(number + 2) % len(MARKERS)], dash)
    return styles


def css_variables(dark: bool) -> str:
    """`--ink: #1c2128; …`, for one of the two themes."""
    return " ".join(f"--{name}: {DARK[colour] if dark else colour};" for colour, name in NAMES.items())


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in the project's style, independent of the user's Matplotlib settings."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **RC}), _letters_of_the_browser():
            return draw(*args, **kwargs)

    return inside


@contextmanager
def _letters_of_the_browser() -> Iterator[None]:
    """Ignore warnings about missing glyphs: browsers draw a page's text with their own fonts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def new_figure(height: float, *, x: str = "", title: str = "") -> tuple[Figure, Axes]:
    """One panel, with the label of its x axis; the title says what is on the y axis."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_title(title, loc="left", color=MUTED)
    return figure, axes


def whole_ticks(first: int, last: int) -> list[int]:
    """All integers if few, else the first and multiples of five or more."""
    if last - first < 12:
        return list(range(first, last + 1))
    step = 5 * max(1, round((last - first) / 40))
    return [first, *(number for number in range(step, last + 1, step) if number - first > step / 2)]


def short(name: str) -> str:
    """A name shortened for figures."""
    return unread(name if len(name) <= 14 else name[:13] + "…")


def unread(name: str) -> str:
    """A name with dollar signs escaped, which Matplotlib would read as mathematics."""
    return name.replace("$", r"\$")


NAME_HEIGHT = 0.21
"""Height of a line of the legend, in inches."""


def height_for(names: int) -> float:
    """Height, in inches, of a figure with this number of lines in its legend."""
    return max(3.0, NAME_HEIGHT * names)


def label_ends(axes: Axes, ends: Mapping[str, float], styles: Mapping[str, LineStyle]) -> None:
    """A legend to the right of the axes, in the order of the lines' last values, the highest first; none for one line,
    which the heading names."""
    if len(ends) < 2:
        return
    order = sorted(ends, key=lambda row: -ends[row])
    handles = [Line2D([], [], **styles[row].line(), label=unread(row)) for row in order]
    axes.legend(
        handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, labelcolor="linecolor",
        fontsize=RC["font.size"], labelspacing=0.3, handlelength=1.8, handletextpad=0.5,
    )  # fmt: skip


def inline_svg(figure: Figure, *, name: str, alt: str) -> str:
    """The figure as one `<svg>` element without a fixed size, with unique ids and colours as CSS variables."""
    text = io.StringIO()
    with matplotlib.rc_context({**RC, "svg.hashsalt": name}), _letters_of_the_browser():
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r' xmlns:xlink="[^"]*"| xmlns="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    svg = _NUMBER.sub(lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda match: f"var(--{NAMES[match[0]]})" if match[0] in NAMES else match[0], svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    label = escape(alt, quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Save as PDF, and as PNG on paper colour at 200 dots per inch."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.pdf", folder / f"{name}.png"]
    with matplotlib.rc_context({**RC, "savefig.transparent": False}):
        figure.savefig(paths[0], metadata={"CreationDate": None, "Creator": None, "Producer": None}, facecolor="none")
        figure.savefig(paths[1], dpi=200, facecolor=PAPER, edgecolor=INK, metadata={"Software": None})
    return paths
