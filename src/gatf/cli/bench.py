"""`gatf bench`: many runs, one table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gatf.cli.report import report_of_run
from gatf.cli.terminal import print_plain
from gatf.errors import ExitCode, UserError
from gatf.io.text import duration, harmless

if TYPE_CHECKING:
    from rich.console import Console

    from gatf.bench.plan import Plan


def bench(
    recipe: Annotated[str, typer.Argument(help="Bench recipe: a shipped name or a YAML file.")] = "digits",
    out: Annotated[Path | None, typer.Option(help="Folder of the bench. [default: runs/bench-RECIPE]")] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these rows, comma-separated; a method's name selects all its rows.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Only these seeds, e.g. 0-4 or 0,3.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="A setting of every run, e.g. device=cuda.")
    ] = None,
    data_root: Annotated[str | None, typer.Option(help="Local copy of the data; nothing is downloaded.")] = None,
    diagnostics: Annotated[bool, typer.Option("--diagnostics", help="Also measure why methods forget.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and its estimated duration, then stop.")
    ] = False,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="Run every row with its real network, batch and image size, but two short tasks, each in a process of "
            "its own; print the estimated hours and peak memory, and errors.",
        ),
    ] = False,
    executor: Annotated[Literal["local", "ray"], typer.Option(help="Where to execute runs.")] = "local",
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, metavar="N", help="local: parallel runs; they share threads and GPUs.")
    ] = 1,
    address: Annotated[str | None, typer.Option(help="ray: the cluster, e.g. auto. [default: start one here]")] = None,
    cpus: Annotated[float, typer.Option(help="ray: cores per run.")] = 1,
    gpus: Annotated[
        float | None,
        typer.Option(help="ray: GPUs per run; 0.25 puts four runs on one. [default: 1 if the cluster has GPUs]"),
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.html into the folder.")] = False,
) -> None:
    """Run methods × settings × seeds and write one table. Finished runs are not repeated; interrupted ones continue."""
    from rich.console import Console

    from gatf.bench.plan import load_plan
    from gatf.bench.suite import run_plan
    from gatf.config import parse_overrides
    from gatf.training.loop import Interrupted

    console = Console()
    changes: dict[str, Any] = parse_overrides(settings or [])
    changes |= {"data.root": data_root} if data_root is not None else {}
    changes |= {"diagnostics": True} if diagnostics else {}
    plan = load_plan(recipe, methods=methods, seeds=seeds, overrides=changes)
    folder = out or Path("runs") / f"bench-{plan.name}"
    if dry_run:
        print_plan(plan, folder, jobs, console)
        return
    if rehearse:
        raise typer.Exit(ExitCode.FAILED if print_rehearsal(plan, console) else ExitCode.DONE)
    try:
        failures = run_plan(plan, folder, console, _executor(executor, jobs, address, cpus, gpus))
    except Interrupted:
        console.print("stopped and saved; run the same command to continue", highlight=False)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if len(failures) < len(plan.runs) and not no_report:
        report_of_run(folder, console)
    if failures:
        console.print(f"{len(failures)} of {len(plan.runs)} runs failed; run the same command to retry them")
        raise typer.Exit(ExitCode.FAILED)


def _executor(name: str, jobs: int, address: str | None, cpus: float, gpus: float | None) -> Any:
    from gatf.bench import executors

    if name == "ray":
        if jobs != 1:
            raise UserError("--jobs is for --executor local; a Ray cluster runs as many as its cores allow (--cpus)")
        return executors.RayCluster(address=address, cpus=cpus, gpus=gpus)
    if address is not None or gpus is not None:
        raise UserError("--address and --gpus are for --executor ray")
    return executors.InProcess() if jobs == 1 else executors.Processes(jobs)


def print_plan(plan: "Plan", folder: Path, jobs: int, console: "Console") -> None:
    """The planned runs and an estimate of their duration."""
    from rich.table import Table
    from rich.text import Text

    from gatf.bench.probe import estimate

    with console.status("timing a few steps of every method"):
        estimates = estimate(plan)
    table = Table(title=Text(harmless(plan.title)), title_justify="left", header_style="bold")
    for name in ("setting", "method", "runs", "per run", "total"):
        table.add_column(name, justify="left" if name in ("setting", "method") else "right")
    for one in estimates:
        times = ("?", "?") if one.seconds is None else (duration(one.seconds), duration(one.seconds * one.runs))
        table.add_row(*(Text(harmless(text)) for text in (one.setting, one.row, one.runs, *times)))
    console.print(table)
    for why in dict.fromkeys(one.why for one in estimates if one.why):
        print_plain(console, f"no estimate: {harmless(why)}")
    known = [one.seconds * one.runs for one in estimates if one.seconds is not None]
    total = f", about {duration(sum(known))} sequentially" if known else ""
    total += f" ({jobs} at once share this machine)" if known and jobs > 1 else ""
    print_plain(console, f"{len(plan.runs)} run{'s' * (len(plan.runs) != 1)} into {folder}{total}")


def print_rehearsal(plan: "Plan", console: "Console") -> int:
    """Print time and memory estimates per row; returns the number of rows that fail or do not fit."""
    from gatf.bench.probe import Estimate, rehearse

    def finished(one: Estimate) -> None:
        row = f"{one.setting}, {one.row}"
        if one.seconds is None or one.memory_mb is None:
            print_plain(console, harmless(f"{row}: failed after {duration(one.probed)}: {one.why}"))
            return
        each = f"{duration(one.seconds)} per run, peak memory {one.memory_mb / 1024:.1f} GB"
        smaller = f", does not fit here: estimated with 1/{one.part} of the batch" if one.part > 1 else ""
        spent = f"rehearsed in {duration(one.probed)}, {one.processor:.0f} CPU-s"
        print_plain(console, harmless(f"{row}: {each}{smaller} ({spent})"))

    found = rehearse(plan, finished)
    known = [one.seconds * one.runs for one in found if one.seconds is not None]
    failed, large = len(found) - len(known), sum(one.part > 1 for one in found)
    summary = f"{len(found)} rows rehearsed in {duration(sum(one.probed for one in found))}, {failed} failed"
    summary += f", {large} do not fit into memory" if large else ""
    if known:
        runs = sum(one.runs for one in found if one.seconds is not None)
        summary += f"; {runs} runs would take about {duration(sum(known))} one after the other"
    print_plain(console, summary)
    return failed + large
