"""A matrix of runs: methods × seeds over one recipe, resumable, as one table."""

import csv
import io
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gatf import experiment
from gatf.config import BENCH_RECIPES, RunConfig, load_config, read_recipe
from gatf.errors import UserError, near_misses
from gatf.training.events import LiveDisplay
from gatf.training.loop import Interrupted

__all__ = ["Interrupted", "Plan", "load_plan", "run_plan"]

COLUMNS = ("a_last", "a_inc", "forgetting", "total_seconds")


@dataclass(frozen=True)
class PlannedRun:
    name: str
    config: RunConfig


@dataclass(frozen=True)
class Plan:
    """What a bench will run."""

    name: str
    runs: tuple[PlannedRun, ...]


def load_plan(recipe: str, *, methods: str | None = None, seeds: str | None = None) -> Plan:
    """Read a bench recipe: `recipe`, `methods`, `seeds`."""
    content = read_recipe(recipe, BENCH_RECIPES)
    unknown = set(content) - {"recipe", "methods", "seeds"}
    if unknown or not {"recipe", "methods", "seeds"} <= set(content):
        raise UserError(f"bench recipe '{recipe}' must have exactly the keys recipe, methods and seeds")
    names = methods.split(",") if methods else list(content["methods"])
    for name in names:
        if name not in content["methods"]:
            raise UserError(f"the bench '{recipe}' has no method '{name}'{near_misses(name, content['methods'])}")
    numbers = parse_seeds(seeds) if seeds else [int(seed) for seed in content["seeds"]]
    base = read_recipe(content["recipe"])
    runs = [
        PlannedRun(f"{name}-seed{seed}", load_config(base, method=name, overrides={"seed": seed}))
        for name in names
        for seed in numbers
    ]
    return Plan(Path(recipe).stem, tuple(runs))


def parse_seeds(text: str) -> list[int]:
    """`0-4` or `0,3`."""
    try:
        if "-" in text:
            first, last = map(int, text.split("-"))
            return list(range(first, last + 1))
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds takes numbers such as 0-4 or 0,3, not '{text}'") from None


def run_plan(plan: Plan, folder: Path, console: Console) -> list[dict[str, Any]]:
    """Run what is not finished yet, write results.csv and results.md, print the table."""
    summaries = []
    for number, item in enumerate(plan.runs, start=1):
        console.print(f"{number}/{len(plan.runs)} {item.name}", highlight=False)
        summaries.append(_run_one(item, folder / item.name, console))
    table = aggregate(summaries)
    experiment.write_text(folder / "results.csv", to_csv(table))
    experiment.write_text(folder / "results.md", to_markdown(table))
    _print(table, console)
    console.print(f"bench folder: {folder}", highlight=False)
    return table


def _run_one(item: PlannedRun, folder: Path, console: Console) -> dict[str, Any]:
    display = LiveDisplay(console, lines=False)
    try:
        if (folder / experiment.CONFIG).is_file():
            if (folder / experiment.CONFIG).read_text(encoding="utf-8") != item.config.to_yaml():
                raise UserError(f"{folder} holds a run of another config; remove it or choose another --out")
            return experiment.resume(folder, (display,))
        return experiment.start(item.config, folder, (display,))
    finally:
        display.close()


def aggregate(summaries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and sample standard deviation over seeds, a row a method, in the order of the runs."""
    rows = []
    for method in dict.fromkeys(summary["method"] for summary in summaries):
        runs = [summary for summary in summaries if summary["method"] == method]
        row: dict[str, Any] = {"method": method, "seeds": len(runs)}
        for column in COLUMNS:
            values = [run[column] for run in runs if run[column] is not None]
            row[column] = statistics.fmean(values) if values else None
            row[f"{column}_std"] = statistics.stdev(values) if len(values) > 1 else None
        row["bytes_per_class"] = runs[0]["bytes_per_class"]
        rows.append(row)
    return rows


def to_csv(table: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [row["method"], str(row["seeds"])]
    for column in COLUMNS:
        mean, std = row[column], row[f"{column}_std"]
        cells.append("–" if mean is None else f"{mean:.1f}" + ("" if std is None else f" ± {std:.1f}"))
    return [*cells, f"{row['bytes_per_class']:,}"]


HEADINGS = ("method", "seeds", "A_last %", "A_inc %", "forgetting", "seconds", "bytes a class")


def to_markdown(table: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "|".join(["---"] + ["---:"] * (len(HEADINGS) - 1)) + "|"]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in table]
    return "\n".join(lines) + "\n"


def _print(table: list[dict[str, Any]], console: Console) -> None:
    shown = Table(header_style="bold")
    for heading in HEADINGS:
        shown.add_column(heading, justify="left" if heading == "method" else "right")
    for row in table:
        shown.add_row(*_cells(row))
    console.print(shown)


def load_summaries(folder: Path) -> list[dict[str, Any]]:
    """Summaries of the finished runs of a bench."""
    found = sorted(folder.glob(f"*/{experiment.SUMMARY}"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]
