"""`gatf tune`: settings chosen by validation images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatf.cli.run import choose_config
from gatf.cli.terminal import print_plain
from gatf.errors import ExitCode
from gatf.io.text import harmless

if TYPE_CHECKING:
    from rich.console import Console

    from gatf.bench.tune import Tried

SHOWN = 5
"""Trials in the table at the end."""


def tune(
    search: Annotated[
        list[str],
        typer.Option(metavar="PATH=VALUES", help="Setting and range: LOW..HIGH, LOW..HIGH:log or [a, b]; repeatable."),
    ],
    dataset: Annotated[str | None, typer.Option(help="Data source; `gatf data` lists them. [default: digits]")] = None,
    method: Annotated[str | None, typer.Option(help="Method; `gatf methods` lists them. [default: gatf]")] = None,
    trials: Annotated[
        int, typer.Option(min=1, metavar="N", help="Total number of trials, including earlier calls.")
    ] = 20,
    learn: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Tasks that a trial learns, each evaluated after learning it; 1: only the first."
        ),
    ] = 1,
    val_fraction: Annotated[
        float, typer.Option(min=0.01, max=0.9, metavar="N", help="Share of the training images used for validation.")
    ] = 0.2,
    seed: Annotated[int | None, typer.Option(help="Seed of the search and of every trial.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs per task.")] = None,
    tasks: Annotated[int | None, typer.Option(help="Number of tasks the classes are split into.")] = None,
    data_root: Annotated[str | None, typer.Option(help="Local copy of the data; nothing is downloaded.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Shipped recipe or YAML file. [default: the data set's]")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="A setting of every trial.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the study. [default: runs/tune-DATA-METHOD]")] = None,
) -> None:
    """Search settings with Optuna (extra `tune`), by accuracy on validation images after learning each task.

    The same command continues where it stopped. Test images and images of older tasks are never used.
    """
    from rich.console import Console

    from gatf.bench import tune as tuning
    from gatf.training.loop import Interrupted

    console = Console(soft_wrap=True, highlight=False)
    given: dict[str, tuple[tuple[str, ...], str | int | None]] = {
        "--dataset": (("data.name",), dataset),
        "--method": ((), method),
        "--recipe": ((), recipe),
        "--seed": (("seed",), seed),
        "--epochs": (("optimisation.first.epochs", "optimisation.next.epochs"), epochs),
        "--tasks": (("scenario.tasks",), tasks),
        "--data-root": (("data.root",), data_root),
    }
    options = {path: value for paths, value in given.values() for path in paths}
    base = choose_config(dataset, method, recipe, options, settings or [])
    what = tuning.Search(base, tuning.parse_space(search), tasks=learn, val_fraction=val_fraction)
    folder = out or Path("runs") / f"tune-{base.data.name}-{base.method.name}".replace(":", ".")
    print_plain(console, f"objective: {what.objective}")
    try:
        found = tuning.search(what, folder, trials, report=lambda tried: _print_trial(tried, trials, console))
    except Interrupted:
        console.print("stopped; run the same command to continue with the next trial")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    print_trials(found, what.defaults, console)
    words = [word for name, (_, value) in given.items() if value is not None for word in (name, str(value))]
    words += [word for each in settings or [] for word in ("--set", each)]
    if len({tried.accuracy for tried in found}) == 1 and len(found) > 1:
        console.print("all trials have the same accuracy: perhaps the settings matter only in later tasks; see --learn")
    if learn > 1:
        console.print("images of new classes do not show forgetting; see the run's report for old classes")
    print_plain(console, f"study: {folder}")
    print_plain(console, tuning.command(words, found[0].settings))


def _print_trial(tried: "Tried", trials: int, console: "Console") -> None:
    chosen = "  ".join(f"{path}={value}" for path, value in tried.settings.items())
    accuracy = "diverged" if tried.diverged else f"{tried.accuracy:.1f} %"
    print_plain(console, f"trial {tried.number}/{trials}: {accuracy}  {harmless(chosen)}")


def print_trials(found: "list[Tried]", defaults: dict[str, object] | None, console: "Console") -> None:
    """The best trials, and the one with the defaults, if there is one."""
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold")
    for name in ("trial", "validation %", *found[0].settings):
        table.add_column(name, justify="right")
    unlike = list({tuple(each.settings.items()): each for each in reversed(found)}.values())[::-1]
    shown = unlike[:SHOWN] + [tried for tried in unlike[SHOWN:] if tried.settings == defaults]
    for tried in shown:
        name = f"{tried.number} (defaults)" if tried.settings == defaults else str(tried.number)
        cells = (name, f"{tried.accuracy:.1f}", *map(str, tried.settings.values()))
        table.add_row(*(Text(harmless(cell)) for cell in cells))
    console.print(table)
