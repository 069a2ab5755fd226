"""The plan of a bench: settings × rows × seeds, read from a bench recipe."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from gatf.config import BENCH_RECIPES, ELSEWHERE, RunConfig, load_config, read_recipe
from gatf.errors import UserError, near_misses
from gatf.io.text import rejoined
from gatf.methods import is_outside
from gatf.settings import Strict, explain

HARMLESS = ELSEWHERE | {"precision"}
"""Settings that do not change a protocol. A bench that overrides others is not compared with published numbers."""


class Row(Strict):
    """A table row: a method, possibly with changed settings."""

    row: str
    """Its name."""
    method: str
    """Its method."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings that this row changes, by dotted path."""
    seeds: tuple[int, ...] | None = None
    """Seeds of this row if they differ from the bench's."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"row": value, "method": value} if isinstance(value, str) else value


class BenchRecipe(Strict):
    """The content of a bench recipe."""

    title: str | None = None
    """Heading of the plan that `--dry-run` prints. Default: the recipe's name."""
    recipe: str | None = None
    """The run recipe, if there is one."""
    recipes: tuple[str, ...] = ()
    """Several run recipes: each is a setting."""
    methods: tuple[Row, ...]
    """Table rows, in order."""
    seeds: tuple[int, ...]
    """Seeds of every row and setting; a row may have its own."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings for every run, by dotted path."""

    @model_validator(mode="after")
    def _some_recipe(self) -> "BenchRecipe":
        if (self.recipe is None) == (not self.recipes):
            raise ValueError("needs either recipe (one) or recipes (several)")
        return self

    @property
    def settings(self) -> tuple[str, ...]:
        return self.recipes if self.recipe is None else (self.recipe,)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a bench."""

    name: str
    """Its folder within the bench's."""
    setting: str
    row: str
    config: RunConfig


@dataclass(frozen=True)
class Plan:
    """The runs of a bench."""

    name: str
    title: str
    runs: tuple[PlannedRun, ...]

    def index(self) -> dict[str, Any]:
        """Folder, setting, row and seed of each run, for reports."""
        entries = [
            {"folder": run.name, "setting": run.setting, "row": run.row, "seed": run.config.seed} for run in self.runs
        ]
        return {"name": self.name, "title": self.title, "runs": entries}


def load_plan(
    recipe: str, *, methods: str | None = None, seeds: str | None = None, overrides: dict[str, Any] | None = None
) -> Plan:
    """Read a bench recipe, select rows and seeds, and override settings of all runs."""
    try:
        content = BenchRecipe.model_validate(read_recipe(recipe, BENCH_RECIPES))
    except ValidationError as error:
        raise UserError(f"bench recipe '{recipe}': {explain(error, BenchRecipe)}") from None
    rows = _chosen(content.methods, methods, recipe)
    wanted = parse_seeds(seeds) if seeds else None
    runs = []
    for setting in content.settings:
        base, name = read_recipe(setting), Path(setting).stem
        prefix = f"{name}/" if len(content.settings) > 1 else ""
        label = f"{name}, changed" if set(overrides or {}) - HARMLESS else name
        for row in rows:
            for seed in wanted or (content.seeds if row.seeds is None else row.seeds):
                changes = content.set | row.set | (overrides or {}) | {"seed": seed}
                config = load_config(base, method=row.method, overrides=changes)
                runs.append(PlannedRun(f"{prefix}{_folder(row.row)}-seed{seed}", label, row.row, config))
    return Plan(Path(recipe).stem, content.title or Path(recipe).stem, tuple(runs))


def _chosen(rows: Sequence[Row], wanted: str | None, recipe: str) -> list[Row]:
    """Rows by name; a method's name that is no row selects all rows of that method, and `module:Class` is a row of its
    own."""
    if wanted is None:
        return list(rows)
    chosen = []
    known = {name for row in rows for name in (row.row, row.method)}
    for name in rejoined(wanted.split(","), known):
        found = [row for row in rows if name == row.row] or [row for row in rows if name == row.method]
        if not found and is_outside(name):
            found = [Row(row=name, method=name)]
        if not found:
            hint = near_misses(name, [row.row for row in rows])
            raise UserError(f"the bench '{recipe}' has no method '{name}'{hint}")
        chosen += [row for row in found if row not in chosen]
    return chosen


def _folder(row: str) -> str:
    return "-".join(re.findall(r"[^\W_]+\+*", row))


def parse_seeds(text: str) -> list[int]:
    """`0-4` or `0,3`."""
    try:
        if "-" in text:
            first, last = map(int, text.split("-"))
            seeds = list(range(first, last + 1))
        else:
            seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds takes numbers such as 0-4 or 0,3, not '{text}'") from None
    if not seeds:
        raise UserError(f"--seeds {text} ends before it begins: did you mean {last}-{first}?")
    return seeds
