"""docs/settings.md: what the generator makes of a model."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, PositiveInt

from gatf.settings import Positive, Strict


class Inner(Strict):
    """Of a section."""

    rate: Positive = 0.5
    """How fast."""


class Outer(Strict):
    """Of a run."""

    name: str
    """Which | one."""
    sizes: tuple[PositiveInt, ...] | None = None
    """Of every
    task."""
    kind: Literal["a", "b", "c"] = "b"
    """Which kind."""
    first: Inner = Inner()
    next: Inner = Inner(rate=2.0)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "tools")
    return importlib.import_module("update_docs")


def test_a_row_for_every_field_that_is_no_section(tool: ModuleType) -> None:
    assert tool.settings_table(Outer, "run.").splitlines() == [
        "| setting | type | default | what |",
        "|---|---|---|---|",
        r"| `run.name` | text | required | Which \| one. |",
        "| `run.sizes` | list of int > 0 or `null` | `null` | Of every task. |",
        "| `run.kind` | `a`, `b` or `c` | `b` | Which kind. |",
    ]


def test_sections_carry_their_own_defaults(tool: ModuleType) -> None:
    assert list(tool.sections(Outer)) == [("first", Inner(rate=0.5)), ("next", Inner(rate=2.0))]
    table = tool.settings_table(Inner, "next.", {"rate": 2.0})
    assert table.splitlines()[2:] == ["| `next.rate` | float > 0 | `2.0` | How fast. |"]
    assert tool.settings_table(Inner, "next.", {}) == ""


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (bool, "`true` or `false`"),
        (Annotated[float, Field(ge=0.0, lt=1.0)], "float ≥ 0, < 1"),
        (Positive | None, "float > 0 or `null`"),
        (tuple[int | str, ...], "list of (int or text)"),
        (tuple[PositiveInt, PositiveInt], "list of 2 × int > 0"),
        (Literal["only"], "`only`"),
        (dict[str, Any], "mapping"),
    ],
)
def test_types_in_words(tool: ModuleType, annotation: Any, words: str) -> None:
    assert tool.kind(annotation) == words


def test_a_field_without_a_description_is_named(tool: ModuleType) -> None:
    class Silent(Strict):
        width: int = 3

    with pytest.raises(SystemExit, match=r"net\.width of Silent has no description"):
        tool.settings_table(Silent, "net.")
