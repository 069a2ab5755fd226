"""`gatf report` and `gatf explain run`. The commands import Matplotlib only when they run."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatf.cli.terminal import print_plain
from gatf.io.text import harmless

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gatf.evaluation.accuracy_gap import Explained


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN_OR_BENCH…", help="Run folders and bench folders.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Output file. [default: report.html in the first folder]")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Also save figures here as PDF and PNG.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these methods, comma-separated, in order.")] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="RESULTS", help="Also show the rows of this folder, e.g. results/cifar100-16px-v2."),
    ] = None,
) -> None:
    """Compare runs in one self-contained HTML file with tables and figures."""
    from gatf.bench.tables import aggregate
    from gatf.io.run_folder import RunFolder
    from gatf.report.page import write_report

    target = out or RunFolder(paths[0]).report
    rows = methods.split(",") if methods else None
    runs = write_report(paths, target, figures=figures, rows=rows, against=against or ())
    typer.echo(f"report of {len(runs)} run{'s' if len(runs) > 1 else ''}: {target}")
    for setting in {run.setting: None for run in runs} if against else ():
        ranked = aggregate(run.result for run in runs if run.setting == setting)
        ranked.sort(key=lambda row: -row["a_last"])
        own = {run.row for run in runs if not run.reference}
        for place, row in enumerate(ranked, start=1):
            if row["row"] in own:
                typer.echo(
                    f"{setting}: {row['row']} is number {place} of {len(ranked)} with A_last {row['a_last']:.1f} %"
                )
    if figures is not None:
        typer.echo(f"figures: {figures}")


def explain_run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    every_task: Annotated[
        bool, typer.Option("--every-task", help="After every task (of a run with keep_networks=true).")
    ] = False,
    joint: Annotated[Path | None, typer.Option(help="Folder of a joint run. [default: one beside RUN, if any]")] = None,
    data_root: Annotated[str | None, typer.Option(help="Local copy of the data; nothing is downloaded.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda. [default: the run's]")] = None,
) -> None:
    """Decompose a run's accuracy gap into transport, readout and representation."""
    from rich.console import Console

    from gatf.report import accuracy_gap

    console = Console()
    settings = {"data.root": data_root, "device": device}
    rows = accuracy_gap.explain_run(
        folder, every_task=every_task, joint=joint,
        overrides={path: value for path, value in settings.items() if value is not None},
        report=lambda text: print_plain(console, text),
    )  # fmt: skip
    console.print(_explained_table(rows))
    for sentence in rows[-1].sentences():
        print_plain(console, sentence)


def _explained_table(rows: list["Explained"]) -> "Table":
    from rich.table import Table

    table = Table(header_style="bold", title="accuracy in % over all seen classes", title_justify="left")
    shown = {
        "task": "after_task", "own": "own", "stored": "stored", "re-estimated": "reestimated", "linear probe": "probe",
        "joint": "joint",
    }  # fmt: skip
    if all(row.stored is None or row.stored == row.own for row in rows):
        del shown["stored"]
    for name in shown:
        table.add_column(name, justify="right")
    for row in rows:
        values = [getattr(row, field) for field in list(shown.values())[1:]]
        table.add_row(str(row.after_task + 1), *("–" if value is None else f"{value:.1f}" for value in values))
    return table


def report_of_run(folder: Path, console: "Console") -> None:
    """Write the report of `gatf run` or `gatf bench`. An error here does not lose the results."""
    from gatf.io.run_folder import RunFolder

    target = RunFolder(folder).report
    try:
        from gatf.report.page import write_report

        write_report([folder], target)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        again = f"gatf report {shlex.quote(str(folder))}"
        print_plain(console, f"the report could not be written ({harmless(reason)}); try again with: {again}")
    else:
        print_plain(console, f"report: {target}")
