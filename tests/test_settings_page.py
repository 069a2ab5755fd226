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
    """Which one."""
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


def test_an_entry_for_every_field_that_is_no_section(tool: ModuleType) -> None:
    assert tool.setting_list(Outer, "run.").splitlines() == [
        "- `run.name` (required, text): Which one.",
        "- `run.sizes` (`null`, list of int > 0): Of every task.",
        "- `run.kind` (`b`, `a`, `c`): Which kind.",
    ]
    inline = tool.setting_list(Outer, "method.").splitlines()[-2:]
    assert inline == ["- `method.first.rate` (`0.5`, > 0): How fast.", "- `method.next.rate` (`2.0`, > 0): How fast."]


def test_sections_carry_their_own_defaults(tool: ModuleType) -> None:
    assert list(tool.sections(Outer)) == [("first", Inner(rate=0.5)), ("next", Inner(rate=2.0))]
    assert tool.setting_list(Inner, "next.", {"rate": 2.0}) == "- `next.rate` (`2.0`, > 0): How fast."
    assert tool.setting_list(Inner, "next.", {}) == ""


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (bool, "bool"),
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


def test_changes_of_a_preset_are_those_that_change_something(tool: ModuleType) -> None:
    first, later = "optimisation.first", "optimisation.next"
    values = {f"{first}.lr": 0.1, f"{first}.clip": None, f"{later}.clip": None, f"{later}.lr": 0.5}
    before = {f"{first}.lr": 0.1, f"{first}.clip": 1.0, f"{later}.clip": 1.0, f"{later}.lr": 0.1}
    assert tool.changed(values, before) == "`optimisation.{first,next}.clip=null`, `optimisation.next.lr=0.5`"


def test_a_field_without_a_description_is_named(tool: ModuleType) -> None:
    class Silent(Strict):
        width: int = 3

    with pytest.raises(SystemExit, match=r"net\.width of Silent has no description"):
        tool.setting_list(Silent, "net.")
