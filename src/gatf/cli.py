"""The command line: parse, call, print. Everything heavy is imported inside the command that needs it."""

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatf import __version__, cli_bench, cli_models, cli_report
from gatf.errors import LostProcess, UserError
from gatf.launch import LAUNCHER, LOST, launch

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    help="Class-incremental learning without keeping old images: GATF and the methods it is compared with.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # rich's own markup would swallow [default: …]
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(
    help="Data sources: list them, look at one.", invoke_without_command=True, rich_markup_mode="markdown"
)
app.add_typer(data_app, name="data")
cli_report.register(app)
cli_bench.register(app)
cli_models.register(app)

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gatf {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """What stands before every command."""


@app.command()
def run(
    dataset: Annotated[str | None, typer.Option(help="Data source; `gatf data` lists them. [default: digits]")] = None,
    method: Annotated[str | None, typer.Option(help="Method; `gatf methods` lists them. [default: gatf]")] = None,
    tasks: Annotated[int | None, typer.Option(help="Number of tasks.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of everything but the class order, unless class_order_seed is null.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs a task.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a step.")] = None,
    data_root: Annotated[str | None, typer.Option(help="Local copy of the data; nothing is downloaded.")] = None,
    on_bad_image: Annotated[str | None, typer.Option(help="An image that cannot be read: fail or skip.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/DATA-METHOD-SEED-TIME]")] = None,
    recipe: Annotated[str | None, typer.Option(help="Shipped recipe or YAML file. [default: the data set's]")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any other setting, e.g. method.ridge=0.1.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
    diagnostics: Annotated[
        bool, typer.Option("--diagnostics", help="Also measure why it forgets, on old images the method cannot reach.")
    ] = False,
    track: Annotated[
        list[str] | None, typer.Option(help="Also log to tensorboard or wandb (extras of these names).")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.html into the run folder.")] = False,
    devices: Annotated[int, typer.Option(min=1, help="Processes on this machine that share each batch.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines; run the same command on each.")] = 1,
) -> None:
    """Learn the classes of a data set task by task, and measure what is remembered."""
    from gatf import experiment
    from gatf.training.events import LiveDisplay
    from gatf.training.loop import Interrupted

    console = _console()
    if resume is not None:
        folder, chosen = resume, None
        _refuse_with_resume(
            dataset=dataset, method=method, tasks=tasks, seed=seed, epochs=epochs, batch_size=batch_size, out=out,
            recipe=recipe, set=settings, data_root=data_root, on_bad_image=on_bad_image, device=device,
            diagnostics=diagnostics,
        )  # fmt: skip
    else:
        options = {
            "data.root": data_root,
            "data.on_bad_image": on_bad_image,
            "scenario.tasks": tasks,
            "seed": seed,
            "optimisation.first.epochs": epochs,
            "optimisation.next.epochs": epochs,
            "optimisation.first.batch_size": batch_size,
            "optimisation.next.batch_size": batch_size,
            "device": device,
            "diagnostics": diagnostics or None,
        }
        chosen = choose_config(dataset, method, recipe, options, settings or [])
        folder = out or _new_folder(chosen)
    if devices * nodes > 1:
        raise typer.Exit(_launch(folder, devices, nodes, given_out=out is not None or resume is not None))
    if not _tells():
        experiment.start(chosen, folder) if chosen else experiment.resume(folder)
        return
    display = LiveDisplay(console)
    trackers = cli_report.trackers(track or [], folder, chosen)
    listeners = (*(() if quiet else (display,)), *trackers)
    try:
        summary = experiment.start(chosen, folder, listeners) if chosen else experiment.resume(folder, listeners)
    except Interrupted:
        display.close()
        console.print(f"stopped and saved; go on with: gatf run --resume {folder}", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        display.close()
        for tracker in trackers:
            tracker.close()
    from gatf.report.tables import print_summary

    print_summary(summary, console)
    console.print(f"run folder: {folder}", highlight=False, soft_wrap=True)
    if not no_report:
        cli_report.report_of_run(folder, console)


@app.command()
def methods(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also paper, memory, what is trained, recipes and settings.")
    ] = False,
    pooled: Annotated[int, typer.Option(help="Dimension of pooled features, for the memory.")] = 512,
    bottleneck: Annotated[int, typer.Option(help="Dimension S of the bottleneck, for the memory.")] = 64,
    classes: Annotated[int, typer.Option(help="Number of classes, for the memory.")] = 100,
) -> None:
    """List the methods, one line each."""
    from gatf.catalogue import describe
    from gatf.methods import METHODS

    width = max(map(len, METHODS))
    for name, method in METHODS.items():
        typer.echo(f"{name:<{width}}  {method.summary}")
        if verbose:
            for line in describe(name, pooled=pooled, bottleneck=bottleneck, classes=classes):
                typer.echo(f"    {line}")


@data_app.callback()
def data_list(context: typer.Context) -> None:
    """List the data sources, one line each."""
    if context.invoked_subcommand is not None:
        return
    from gatf.data.sources import SOURCES

    width = max(map(len, SOURCES))
    for name, entry in SOURCES.items():
        typer.echo(f"{name:<{width}}  {entry.summary}")


@data_app.command("show")
def data_show(
    name: Annotated[str, typer.Argument(help="Data source; `gatf data` lists them.")],
    data_root: Annotated[str | None, typer.Option(help="Local copy of the data.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Data settings, e.g. data.image_size=64.")
    ] = None,
) -> None:
    """Print a source's card: classes, images, sizes, licence, where it came from and where it is cached."""
    from gatf.data.sources import source_card

    card = source_card(name, _data_config(name, data_root, settings or []))
    width = max(len(heading) for heading, _ in card)
    for heading, line in card:
        typer.echo(f"{heading:<{width}}  {line}")


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="Data source; `gatf data` lists them.")],
    data_root: Annotated[str | None, typer.Option(help="Folder to put it in. [default: the cache]")] = None,
    hub: Annotated[str | None, typer.Option(help="Another data set of the hub, of the same columns.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Data settings, e.g. data.label_column=species."),
    ] = None,
) -> None:
    """Fetch a source from the Hugging Face hub."""
    from rich.progress import Progress

    from gatf.data.sources import fetch_source

    config = _data_config(name, data_root, settings or [], hub=hub)
    with Progress(console=_console()) as progress:
        bars: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done)

        folder = fetch_source(name, config, show)
    typer.echo(f"{name} is in {folder}")


@app.command()
def doctor() -> None:
    """Print versions, devices, cache folders and which data is at hand, and say what is wrong if something is."""
    from gatf.doctor import examine

    problems = examine(typer.echo)
    for problem in problems:
        typer.echo(f"problem: {problem}")
    typer.echo("all is well" if not problems else f"{len(problems)} problem(s) found")
    raise typer.Exit(1 if problems else 0)


def choose_config(
    dataset: str | None, method: str | None, recipe: str | None, options: dict[str, Any], settings: list[str]
) -> Any:
    """The config that a command's options add up to."""
    from gatf.config import load_config, parse_overrides, recipe_names

    overrides = {path: value for path, value in options.items() if value is not None}
    if dataset is not None:
        overrides["data.name"] = dataset
    if recipe is None:
        named = dataset or "digits"
        candidates = (named, f"{named}-t{overrides.get('scenario.tasks')}", f"{named}-t10")
        recipe = next((name for name in candidates if name in recipe_names()), None)
    return load_config(recipe, method=method, overrides=overrides | parse_overrides(settings))


def _data_config(name: str, root: str | None, settings: list[str], hub: str | None = None) -> Any:
    """The data section of a config, from a command's options."""
    from gatf.config import parse_overrides, validated_data

    overrides = {path.removeprefix("data."): value for path, value in parse_overrides(settings).items()}
    return validated_data({"name": name, "root": root, "hub": hub, **overrides})


def _refuse_with_resume(**options: object) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise UserError(f"--resume goes on with the run's own config; leave out {', '.join(given)}")


def _tells() -> bool:
    """Whether this process is alone or the first of several: the others neither print nor write."""
    return os.environ.get("RANK", "0") == "0"


def _launch(folder: Path, devices: int, nodes: int, *, given_out: bool) -> int:
    """The same command line in several processes, with the run folder in it and the number of processes not."""
    arguments, words = [], iter(sys.argv[1:])
    for word in words:
        if word in ("--devices", "--nodes"):
            next(words)
        elif not word.startswith(("--devices=", "--nodes=")):
            arguments.append(word)
    if not given_out:
        arguments += ["--out", str(folder)]
    return launch(arguments, devices=devices, nodes=nodes, folder=str(folder))


def _new_folder(config: Any) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{config.data.name}-{config.method.name}-seed{config.seed}-{stamp}"


def _console() -> "Console":
    from rich.console import Console

    return Console(soft_wrap=False)


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2; --debug shows the traceback."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    try:
        app()
    except UserError as error:
        if debug:
            raise
        if isinstance(error, LostProcess) and LAUNCHER in os.environ:
            sys.exit(LOST)
        if _tells():
            typer.echo(f"gatf: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)


if __name__ == "__main__":
    main()
