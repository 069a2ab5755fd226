"""Results as tables on the terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table


def print_summary(summary: dict[str, Any], console: Console) -> None:
    """The accuracy matrix of a run and its headline numbers."""
    matrix = summary["accuracy_matrix"]
    title = (
        f"{summary['method']} on {summary['dataset']}, seed {summary['seed']}: accuracy in % on each task's test images"
    )
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("after task", justify="right")
    for task in range(len(matrix)):
        table.add_column(f"task {task}", justify="right")
    table.add_column("all seen", justify="right", style="bold")
    table.add_column("seconds", justify="right")
    for task, row in enumerate(matrix):
        cells = [f"{value:.1f}" for value in row] + [""] * (len(matrix) - len(row))
        table.add_row(str(task), *cells, f"{summary['accuracy_seen'][task]:.1f}", f"{summary['seconds'][task]:.1f}")
    console.print(table)
    forgetting = summary["forgetting"]
    console.print(
        f"A_last [bold]{summary['a_last']:.1f} %[/]   A_inc [bold]{summary['a_inc']:.1f} %[/]   "
        f"forgetting [bold]{'–' if forgetting is None else f'{forgetting:.1f}'}[/]   "
        f"{summary['total_seconds']:.1f} s",
        highlight=False,
    )
