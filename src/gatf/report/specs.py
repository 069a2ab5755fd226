"""A figure with the words that go with it."""

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure


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


def slug(text: str) -> str:
    """A name that files and anchors can have."""
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower()).strip("-")
