"""Tools that guard the project do what they promise."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "tools")
    return importlib.import_module


def test_every_mutant_applies(load: Load) -> None:
    """Whoever changes a mutated line writes another mutant in tools/mutants.py."""
    mutants = load("mutants").MUTANTS
    assert [mutant for mutant in mutants if mutant.place() is None] == []
    assert [mutant.missing_tests() for mutant in mutants if mutant.missing_tests()] == []
    assert len({mutant.key for mutant in mutants}) == len(mutants)


def test_a_moved_line_is_found_and_a_deleted_one_is_reported(load: Load) -> None:
    mutants = load("mutants")
    moved = mutants.Mutant("geometry/elsewhere.py", "drops = [max(", "drops = [min(", "tests/evaluation")
    assert moved.place() == mutants.PACKAGE / "evaluation" / "metrics.py"
    deleted = mutants.Mutant("geometry/spd.py", "no such line", "", "tests/geometry")
    assert mutants.outcome(deleted, {}) == mutants.STALE


def test_the_guard_covers_every_method_and_preset(load: Load) -> None:
    jobs = load("guard").jobs()
    assert {"run digits gatf", "run glyphs ncm", "run digits gatf preset=plus", "learn gatf"} <= jobs.keys()


def test_the_guard_reports_differences_deletions_and_new_runs(load: Load) -> None:
    before = {"same": {"a": "1"}, "other": {"a": "1", "b": "2"}, "deleted": {"a": "1"}}
    now = {"same": {"a": "1"}, "other": {"a": "1", "b": "3"}, "new": {"a": "1"}}
    lines, differing = load("guard").differences(before, now)
    assert differing == 1
    assert lines == ["other: 1 of 2 differ: b", "new: not in the record", "deleted: no longer exists"]
