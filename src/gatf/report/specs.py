"""What a report is put together from: figures with their words, and tables that can be sorted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from gatf.bench.tables import spread


@dataclass(frozen=True)
class FigureSpec:
    """A figure that can be drawn, with the words that go with it."""

    name: str
    """Also its file name."""
    title: str
    sentence: str
    """What to see in it."""
    alt: str
    """For those who cannot see it."""
    draw: Callable[[], Figure]
    group: str = ""
    """Figures of one group are small and stand side by side."""


@dataclass(frozen=True)
class Cell:
    """A table cell: what is shown, and what it is sorted by."""

    text: str
    key: float | str


@dataclass(frozen=True)
class Table:
    caption: str
    headings: Sequence[tuple[str, str]]
    """Name and explanation."""
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    """Lines below it."""


def number_cell(mean: float | None, std: float | None = None) -> Cell:
    """Missing numbers sort below all others."""
    return Cell(spread(mean, std), -1e9 if mean is None else mean)


def slug(text: str) -> str:
    """A name that files and anchors can have."""
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower()).strip("-")
