"""A bench: execute the unfinished runs, then write one table. The same command continues an interrupted bench."""

import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from gatf.bench.executors import Executor, InProcess, prepare
from gatf.bench.plan import Plan
from gatf.bench.progress import LiveTable
from gatf.bench.tables import Result, aggregate, comparison, print_table, to_csv, to_latex, to_markdown
from gatf.io.files import remove_leftovers, write_text
from gatf.io.lock import exclusive
from gatf.io.run_folder import LOCK
from gatf.io.text import harmless

INDEX = "bench.json"


def run_plan(plan: Plan, folder: Path, console: Console, executor: Executor | None = None) -> dict[str, str]:
    """Execute the unfinished runs and write the tables; returns the failed runs with reasons.

    An interrupted bench also writes tables, of the finished runs."""
    busy = f"{folder} is in use by another bench; wait until it has ended"
    with exclusive(folder / LOCK, busy=busy, blocked=f"cannot write to {folder}"):
        remove_leftovers(folder)
        for run in plan.runs:
            prepare(run, folder)
        write_text(folder / INDEX, json.dumps(plan.index(), indent=2))
        table = LiveTable(plan.runs, folder, console)
        try:
            with table:
                waiting = [run for run in plan.runs if not table.known(run)]
                if len(waiting) < len(plan.runs):
                    console.print(f"{len(plan.runs) - len(waiting)} of {len(plan.runs)} runs are finished already")
                (executor or InProcess()).execute(waiting, folder, table)
        finally:
            if table.results or table.failures:
                write_tables(plan, table.results, folder, table.failures)
    if table.results:
        print_table(aggregate(table.results), console)
    console.print(harmless(f"bench folder: {folder}"), markup=False, highlight=False, soft_wrap=True)
    return table.failures


def write_tables(plan: Plan, results: list[Result], folder: Path, failures: Mapping[str, str] | None = None) -> None:
    """Write results.csv, results.md and results.tex. results.md also lists failed runs and reused networks."""
    table = aggregate(results)
    beside = comparison(table)
    text = to_markdown(table)
    text += f"\n{len(results)} of {len(plan.runs)} runs are finished.\n" if len(results) < len(plan.runs) else ""
    notes = [f"- failed: {name}: {why}\n" for name, why in (failures or {}).items()]
    notes += [
        f"- {each.row}, seed {each.summary.seed}: reused {each.summary.taken}; its seconds exclude that training\n"
        for each in results
        if each.summary.networks_from
    ]
    text += "".join(["\n", *notes] if notes else [])
    text += f"\nComparison with published numbers:\n\n{beside}" if beside else ""
    write_text(folder / "results.csv", to_csv(table))
    write_text(folder / "results.md", text)
    write_text(folder / "results.tex", to_latex(table))
