"""The result of a run on the terminal, as detailed as its width allows."""

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from gatf.bench.tables import fits
from gatf.evaluation.metrics import few_shot_balance
from gatf.io.run_folder import REPORT, SUMMARY, Summary
from gatf.io.text import harmless


def print_summary(summary: Summary, console: Console) -> None:
    """The accuracy matrix of a run and its headline numbers.

    A narrow terminal gets the matrix without decimals and long headings, or no matrix.
    """
    run = f"{summary.method} on {summary.dataset}, seed {summary.seed}"
    console.print(f"{harmless(run)}: accuracy in % on each task's test images", markup=False, highlight=False)
    matrix = [
        matrix_table(
            summary, heading=lambda task: summary.domains[task - 1] if summary.domains else f"task {task}", decimals=1
        ),
        matrix_table(summary, heading=lambda task: f"t{task}", decimals=1),
        matrix_table(summary, heading=str, decimals=0),
    ]
    fitting = [table for table in matrix if fits(table, console)]
    console.print(fitting[0] if fitting else seen_table(summary))
    if not fitting:
        console.print(f"accuracy on every task: accuracy_matrix in {SUMMARY}, or {REPORT}", highlight=False)
    forgetting = "–" if summary.forgetting is None else f"{summary.forgetting:.1f}"
    console.print(
        f"A_last [bold]{summary.a_last:.1f} %[/]  A_inc [bold]{summary.a_inc:.1f} %[/]  "
        f"forgetting [bold]{forgetting}[/]  after learning {summary.accuracy_new:.1f} %  "
        f"{summary.total_seconds:.0f} s",
        highlight=False,
    )
    sizes = [len(row) for row in summary.accuracy_by_class]
    if len(sizes) > 1 and sizes[0] >= 2 * (sizes[1] - sizes[0]) > 0:
        base, later, mean = few_shot_balance(summary.accuracy_by_class[-1], sizes[0])
        console.print(
            f"classes of the larger first task {base:.1f} %, of later tasks {later:.1f} %, harmonic mean {mean:.1f} %",
            highlight=False,
        )
    if summary.returning:
        last = summary.accuracy_by_class[-1]
        again = [last[number] for number in summary.returning]
        once = [value for number, value in enumerate(last) if number not in summary.returning]
        console.print(
            f"returning classes {sum(again) / len(again):.1f} %, classes that came once {sum(once) / len(once):.1f} %",
            highlight=False,
        )


def matrix_table(summary: Summary, *, heading: Callable[[int], str], decimals: int) -> Table:
    """One row per learnt task, one column per task's test images; tasks count from 1."""
    matrix = summary.accuracy_matrix
    names = [heading(task + 1) for task in range(len(matrix))]
    table = _table("after task" if decimals else "after", *names, "all seen" if decimals else "all", "seconds")
    for task, row in enumerate(matrix):
        cells = [f"{value:.{decimals}f}" for value in row] + [""] * (len(matrix) - len(row))
        table.add_row(str(task + 1), *cells, *_ends(summary, task))
    return table


def seen_table(summary: Summary) -> Table:
    """Only the accuracies over all seen classes, on the first and on the newest task."""
    table = _table("after task", "task 1", "newest", "all seen", "seconds")
    for task, row in enumerate(summary.accuracy_matrix):
        table.add_row(str(task + 1), f"{row[0]:.1f}", f"{row[-1]:.1f}", *_ends(summary, task))
    return table


def _table(*names: str) -> Table:
    table = Table(header_style="bold")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True, style="bold" if name.startswith("all") else None)
    return table


def _ends(summary: Summary, task: int) -> tuple[str, str]:
    seconds = summary.seconds[task]
    return f"{summary.accuracy_seen[task]:.1f}", f"{seconds:.1f}" if seconds < 1000 else f"{seconds:.0f}"
