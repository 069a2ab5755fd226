"""Published numbers, from one file with their sources, and how far ours are from them."""

import math
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from gatf.settings import Strict

OUTSIDE = "≠"
"""Marks a difference of more than two standard deviations."""


class PublishedSource(Strict):
    """Where numbers were printed."""

    text: str
    weighting: Literal["tasks", "images"]
    """What weighs the same in its averages."""


class Published(Strict):
    """One cell of a published table."""

    a_last: float
    a_inc: float
    a_last_std: float | None = None
    a_inc_std: float | None = None
    source: str
    """Key into `sources`."""


class PublishedFile(Strict):
    """All of them: setting → row → numbers, the one to compare with first."""

    sources: dict[str, PublishedSource]
    numbers: dict[str, dict[str, list[Published]]]


@cache
def load_published() -> PublishedFile:
    """The shipped file, checked."""
    text = files("gatf.bench").joinpath("published.yaml").read_text(encoding="utf-8")
    try:
        return PublishedFile.model_validate(yaml.safe_load(text))
    except ValidationError as error:  # a mistake of ours, not of the user's
        raise RuntimeError(f"published.yaml is damaged: {error}") from None


def published(setting: str, row: str) -> list[Published]:
    """What was published of a row in a setting; empty where nothing was."""
    return load_published().numbers.get(setting, {}).get(row, [])


def weighting(cell: Published) -> str:
    """What weighs the same in the averages of the cell's source: `tasks` or `images`."""
    return load_published().sources[cell.source].weighting


def own_column(cell: Published, column: str) -> str:
    """Which of our columns is averaged as the cell is: `column` itself or, where tasks weigh the same, its twin."""
    return f"{column}_task_weighted" if weighting(cell) == "tasks" else column


def difference(row: dict[str, Any], cell: Published, column: str) -> float | None:
    """Ours minus theirs, in points."""
    own = row[own_column(cell, column)]
    return None if own is None else own - getattr(cell, column)


def is_outside(row: dict[str, Any], cell: Published, column: str) -> bool:
    """Whether the difference is more than two standard deviations: ours over seeds and theirs, where printed, combined.
    With one seed nothing can be said."""
    gap, own = difference(row, cell, column), row[f"{own_column(cell, column)}_std"]
    if gap is None or own is None:
        return False
    return abs(gap) > 2 * math.hypot(own, getattr(cell, f"{column}_std") or 0.0)
