"""`gatf run`: one method, one data set, one seed."""

import os
import shlex
import sys
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatf.cli.launch import is_first_process, launch
from gatf.cli.report import report_of_run
from gatf.cli.terminal import print_plain
from gatf.errors import ExitCode, UserError

if TYPE_CHECKING:
    from gatf.training.trackers import Tracker


def run(
    dataset: Annotated[str | None, typer.Option(help="Data source; `gatf data` lists them. [default: digits]")] = None,
    method: Annotated[
        str | None, typer.Option(help="Method; `gatf methods` lists them; or your own, module:Class. [default: gatf]")
    ] = None,
    tasks: Annotated[int | None, typer.Option(help="Number of tasks.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of everything except the class order (unless class_order_seed is null).")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs per task.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step.")] = None,
    data_root: Annotated[str | None, typer.Option(help="Local copy of the data; nothing is downloaded.")] = None,
    on_bad_image: Annotated[str | None, typer.Option(help="What to do with an unreadable image: fail or skip.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/DATA-METHOD-SEED-TIME]")] = None,
    recipe: Annotated[str | None, typer.Option(help="Shipped recipe or YAML file. [default: the data set's]")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any other setting, e.g. method.topology=1.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.")] = None,
    force_config: Annotated[
        bool, typer.Option("--force-config", help="With --resume: continue with a changed config; allows --set.")
    ] = False,
    networks_from: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Reuse the networks of this finished run (made with keep_networks=true) instead of training the same "
            "ones; only the first task's if later ones would differ.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")] = False,
    diagnostics: Annotated[
        bool, typer.Option("--diagnostics", help="Also measure the causes of forgetting on old images.")
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Also log to tensorboard, wandb, mlflow or trackio (extras of these names)."),
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.html into the run folder.")] = False,
    devices: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes on this machine that share each batch.")
    ] = 1,
    nodes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of machines; run the same command on each.")
    ] = 1,
) -> None:
    """Learn the classes of a data set task by task and evaluate after each task."""
    if resume is not None:
        folder, chosen = resume, None
        _refuse_with_resume(
            dataset=dataset, method=method, tasks=tasks, seed=seed, epochs=epochs, batch_size=batch_size, out=out,
            recipe=recipe, set=None if force_config else settings, data_root=data_root, on_bad_image=on_bad_image,
            diagnostics=diagnostics,
        )  # fmt: skip
    elif force_config:
        raise UserError("--force-config is only for --resume: a new run has no checkpoint")
    else:
        options = {
            "data.root": data_root, "data.on_bad_image": on_bad_image, "scenario.tasks": tasks, "seed": seed,
            "device": device, "diagnostics": diagnostics or None,
            **{f"optimisation.{stage}.epochs": epochs for stage in ("first", "next")},
            **{f"optimisation.{stage}.batch_size": batch_size for stage in ("first", "next")},
        }  # fmt: skip
        chosen = choose_config(dataset, method, recipe, options, settings or [])
        folder = out or _new_folder(chosen)
    if chosen is not None and "WORLD_SIZE" not in os.environ:
        from gatf.io.run_folder import RunFolder

        RunFolder(folder).refuse_if_begun()  # before several processes start; the run itself checks again
    if devices * nodes > 1:
        raise typer.Exit(_launch(folder, devices, nodes, given_out=out is not None or resume is not None))

    # imported here: a launcher of several processes does not need them
    from rich.console import Console

    from gatf import experiment
    from gatf.cli.summary import print_summary
    from gatf.config import parse_overrides
    from gatf.training.display import LiveDisplay
    from gatf.training.loop import Interrupted
    from gatf.training.threads import on_free_cores

    console = Console()
    begin = partial(experiment.start, networks_from=networks_from)
    changes = parse_overrides(settings or []) | ({} if device is None else {"device": device})
    go_on = partial(experiment.resume, force_config=force_config, overrides=changes, networks_from=networks_from)
    if not is_first_process():
        begin(chosen, folder) if chosen else go_on(folder)
        return
    display = LiveDisplay(console)
    trackers = _trackers(track or [], folder, chosen)
    listeners = (*(() if quiet else (display,)), *trackers)
    try:
        with on_free_cores(lambda text: None if quiet else print_plain(console, text)):
            summary = begin(chosen, folder, listeners) if chosen else go_on(folder, listeners)
    except Interrupted:
        display.close()
        print_plain(console, f"stopped and saved; continue with: gatf run --resume {shlex.quote(str(folder))}")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    finally:
        display.close()
        for tracker in trackers:
            tracker.close()
    print_summary(summary, console)
    print_plain(console, f"run folder: {folder}")
    if not no_report:
        report_of_run(folder, console)


def choose_config(
    dataset: str | None, method: str | None, recipe: str | None, options: dict[str, Any], settings: list[str]
) -> Any:
    """The config that a command's options describe."""
    from gatf.config import load_config, parse_overrides, recipe_names

    overrides = {path: value for path, value in options.items() if value is not None}
    if dataset is not None:
        overrides["data.name"] = dataset
    if recipe is None:
        named = dataset or "digits"
        candidates = (named, f"{named}-t{overrides.get('scenario.tasks')}", f"{named}-t10")
        recipe = next((name for name in candidates if name in recipe_names()), None)
    return load_config(recipe, method=method, overrides=overrides | parse_overrides(settings))


def _refuse_with_resume(**options: object) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise UserError(f"--resume uses the run's own config; leave out {', '.join(given)}")


def _launch(folder: Path, devices: int, nodes: int, *, given_out: bool) -> int:
    """Start the same command in several processes, with the run folder and without the number of processes."""
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
    name = f"{config.data.name}-{config.method.name}-seed{config.seed}".replace(":", ".")
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def _trackers(names: list[str], folder: Path, config: Any) -> list["Tracker"]:
    """The dashboards to log to; `config` is None for a resumed run."""
    if not names:
        return []
    from gatf.training.trackers import open_tracker

    values = config.model_dump(mode="json") if config is not None else {}
    return [open_tracker(name, folder, values) for name in names]
