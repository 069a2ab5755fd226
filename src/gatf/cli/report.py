"""Commands that draw: `gatf report` and `gatf explain`. Matplotlib is imported by the command, not before."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN_OR_BENCH…", help="Run folders and bench folders.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file to write. [default: report.html in the first folder]")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Also save every figure there, as PDF and PNG.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these rows, comma-separated, in this order.")] = None,
) -> None:
    """Put runs side by side in one HTML file that needs nothing else: tables, figures, and what to see in them."""
    from gatf.io.run_folder import RunFolder
    from gatf.report.page import write_report

    target = out or RunFolder(paths[0]).report
    count = write_report(paths, target, figures=figures, rows=methods.split(",") if methods else None)
    typer.echo(f"report of {count} run{'s' if count > 1 else ''}: {target}")
    if figures is not None:
        typer.echo(f"figures: {figures}")


def explain(
    topic: Annotated[Literal["anchor"], typer.Argument(help="What to explain.")] = "anchor",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file to write. [default: explain-TOPIC.html]")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Also save every figure there, as PDF and PNG.")] = None,
) -> None:
    """Draw what a part of the method does, on Gaussians small enough to see."""
    from gatf.report.explain import write_anchor_page

    target = out or Path(f"explain-{topic}.html")
    write_anchor_page(target, figures=figures)
    typer.echo(f"explained in {target}")


def report_of_run(folder: Path, console: "Console") -> None:
    """The report that `gatf run` and `gatf bench` leave beside their results, which are safe whatever happens here."""
    from gatf.io.run_folder import RunFolder

    target = RunFolder(folder).report
    try:
        from gatf.report.page import write_report

        write_report([folder], target)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        console.print(
            f"the report could not be written ({reason}); try again with: gatf report {shlex.quote(str(folder))}",
            highlight=False,
        )
    else:
        console.print(f"report: {target}", highlight=False)
