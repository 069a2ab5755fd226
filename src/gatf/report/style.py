"""The style of figures: colours and lines, names beside lines, and inline SVG.

Figures are drawn in the light colours. In the page each colour becomes a CSS variable with a dark variant, so one SVG
serves both themes. Lines also differ in marker, dash and label, not only in colour.
"""

import io
import re
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from html import escape
from pathlib import Path
from typing import Any, ParamSpec
from weakref import WeakKeyDictionary

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch
from matplotlib.transforms import ScaledTranslation, Transform

INK, MUTED, GRID, PAPER = "#1c2128", "#5d6673", "#dfe3e8", "#fdfdfe"
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


def new_figure(height: float) -> tuple[Figure, Axes]:
    """One panel."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


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


THREAD, MARKER = 14, 8
"""Widths, in points, of a connecting line and a marker between an axis and the names beside it."""
NAME_HEIGHT = 0.21
"""Height of a name beside a line, in inches."""


def height_for(names: int) -> float:
    """Height, in inches, of a figure with this number of names beside its lines."""
    return max(3.0, NAME_HEIGHT * names)


def label_ends(
    axes: Axes, ends: Mapping[str, float], styles: Mapping[str, LineStyle], *, markers: bool = False
) -> None:
    """Put names beside the ends of lines, instead of a legend. Names that would overlap are moved apart and connected
    to their lines. If lines have `markers` and some share a colour, names have the markers too.

    `ends` are heights in data coordinates; limits and scale of the axes must be final.
    """
    right = axes.get_xlim()[1]
    to_share = axes.transData + axes.transAxes.inverted()  # of the height of the axes
    shares = [float(to_share.transform((right, height))[1]) for height in ends.values()]
    low, high = 0.03, 1.0
    figure = axes.get_figure(root=True)
    assert figure is not None
    gap = NAME_HEIGHT / figure.get_figheight()
    size = RC["font.size"] * min(1.0, (high - low) / (gap * max(len(ends) - 1, 1)))  # very many are smaller
    places = spread_apart(shares, gap, low, high)
    crowded = any(abs(place - share) > gap / 2 for place, share in zip(places, shares, strict=True))
    marked = markers and len({styles[row].color for row in ends}) < len(ends)
    offset = 6 + THREAD * crowded + MARKER * marked

    def beside(points: float) -> Transform:
        """Axes coordinates, shifted to the right by `points`."""
        return axes.transAxes + ScaledTranslation(points / 72, 0, figure.dpi_scale_trans)

    for row, share, place in zip(ends, shares, places, strict=True):
        style = styles[row]
        if crowded:
            thread = ConnectionPatch(
                (1.0, share), (1.0, place), coordsA=beside(1), coordsB=beside(THREAD), color=style.color, linewidth=0.7
            )
            axes.add_artist(thread)
        if marked:
            axes.plot(
                [1.0], [place], marker=style.marker, color=style.color, markersize=4.5, linestyle="", clip_on=False,
                transform=beside(THREAD * crowded + MARKER / 2),
            )  # fmt: skip
        axes.annotate(
            unread(row), (1.0, place), xycoords="axes fraction", xytext=(offset, 0), textcoords="offset points",
            va="center", color=style.color, weight="bold" if style.width > 2 else "normal", size=size,
            annotation_clip=False,
        )  # fmt: skip


def spread_apart(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights, moved as little as possible, with distances of at least `gap`, between `low` and `high`."""
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


_TIPS: WeakKeyDictionary[Figure, dict[str, Sequence[str]]] = WeakKeyDictionary()
"""Tooltips of each figure, by the id of the artist they belong to."""


MOST_TIPS = 60
"""Points per line that have a tooltip."""


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Evenly spaced points of a line, including the last."""
    step = -(-len(points) // MOST_TIPS)
    return list(points[::-1][::step][::-1])


def tips(axes: Axes, places: Sequence[tuple[float, float]], texts: Sequence[str], *, size: float = 11.0) -> None:
    """Add tooltips at places in data coordinates; limits must be final. They belong to invisible squares of `size`
    points."""
    inside = [(x, y, text) for (x, y), text in zip(places, texts, strict=True) if np.isfinite(x) and np.isfinite(y)]
    if not inside:
        return
    limits = axes.get_xlim(), axes.get_ylim()
    xs, ys, kept = zip(*inside, strict=True)
    squares = axes.scatter(xs, ys, s=size**2, marker="s", color=INK, alpha=0, linewidths=0, zorder=9, clip_on=False)
    squares.set_in_layout(False)
    axes.set(xlim=limits[0], ylim=limits[1])
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    known = _TIPS.setdefault(figure, {})
    name = f"tips{len(known)}"
    squares.set_gid(name)
    known[name] = kept


def _with_tips(svg: str, known: Mapping[str, Sequence[str]]) -> str:
    """Add a title, which browsers show on hover, to each of the squares."""
    for name, texts in known.items():
        begin = svg.index(f'id="{name}"')
        parts = svg[begin:].split("<use ", len(texts))
        for number, text in enumerate(texts, start=1):
            attributes, slash, rest = parts[number].partition("/>")
            if not slash:
                break
            parts[number] = f"{attributes}><title>{escape(text)}</title></use>{rest}"
        svg = svg[:begin] + "<use ".join(parts)
    return svg


def inline_svg(figure: Figure, *, name: str, alt: str) -> str:
    """The figure as one `<svg>` element without a fixed size, with unique ids and colours as CSS variables."""
    text = io.StringIO()
    with matplotlib.rc_context({**RC, "svg.hashsalt": name}), _letters_of_the_browser():
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = _with_tips(svg[svg.index("<svg") :], _TIPS.get(figure, {}))
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
