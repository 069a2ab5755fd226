"""Published numbers with their sources, and our differences from them."""

import math
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml

from gatf.settings import Strict

OUTSIDE = "≠"
"""Marks a difference of more than two standard deviations."""


class PublishedSource(Strict):
    """The source of published numbers."""

    text: str
    weighting: Literal["tasks", "images"]
    """Whether its averages give equal weights to tasks or to images."""


class Published(Strict):
    """One cell of a published table."""

    a_last: float
    a_inc: float
    a_last_std: float | None = None
    a_inc_std: float | None = None
    source: str
    """Key into `sources`."""


class Elsewhere(Strict):
    """What a method's authors report in a setting that is none of ours; the numbers where they are known."""

    setting: str
    a_last: float | None = None
    a_inc: float | None = None
    source: str
    closing: str
    """What has to be run to compare with it."""


class PublishedFile(Strict):
    """All published numbers: setting → row → cells. Comparisons use the first cell."""

    sources: dict[str, PublishedSource]
    numbers: dict[str, dict[str, list[Published]]]
    elsewhere: dict[str, Elsewhere]
    """By method."""


@cache
def load_published() -> PublishedFile:
    """The validated file of the package."""
    text = files("gatf.bench").joinpath("published.yaml").read_text(encoding="utf-8")
    return PublishedFile.model_validate(yaml.safe_load(text))


def published(setting: str, row: str) -> list[Published]:
    """Published cells of a row in a setting; may be empty."""
    return load_published().numbers.get(setting, {}).get(row, [])


def weighting(cell: Published) -> str:
    """The weighting of the cell's source: `tasks` or `images`."""
    return load_published().sources[cell.source].weighting


def own_column(cell: Published, column: str) -> str:
    """Our column with the cell's weighting: `column`, or its task-weighted variant."""
    return f"{column}_task_weighted" if weighting(cell) == "tasks" else column


def difference(row: dict[str, Any], cell: Published, column: str) -> float | None:
    """Ours minus published, in points."""
    own = row[own_column(cell, column)]
    return None if own is None else own - getattr(cell, column)


def is_outside(row: dict[str, Any], cell: Published, column: str) -> bool:
    """Whether the difference exceeds two standard deviations (ours over seeds combined with the published one, if any).
    False with one seed."""
    gap, own = difference(row, cell, column), row[f"{own_column(cell, column)}_std"]
    if gap is None or own is None:
        return False
    return abs(gap) > 2 * math.hypot(own, getattr(cell, f"{column}_std") or 0.0)
