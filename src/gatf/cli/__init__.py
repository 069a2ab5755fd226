"""The command line: parse, call, print. A file per group of commands, all of them registered here.

Everything heavy is imported inside the command that needs it, so that `--help` need not wait for PyTorch.
"""

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from gatf import __version__
from gatf.cli import bench, data, doctor, methods, models, report, run, serve, tune, upgrade
from gatf.cli.launch import LAUNCHER, is_first_process
from gatf.cli.terminal import say
from gatf.data.files import is_vector_file
from gatf.errors import ExitCode, LostProcess, UserError
from gatf.io.text import COMMAND, as_typed, harmless
from gatf.training.memory import keep_freed_memory

Commands = dict[str, Callable[..., Any]]


def _named(*commands: Callable[..., Any]) -> Commands:
    return {command.__name__: command for command in commands}


MODEL_COMMANDS = _named(
    models.learn, models.predict, models.evaluate, models.inspect, serve.studio, serve.serve, models.export,
    models.rollback, models.rename, models.forget, models.merge, upgrade.upgrade, models.push, models.pull,
)  # fmt: skip
COMMANDS = MODEL_COMMANDS | _named(run.run, bench.bench, report.report, tune.tune, methods.methods, doctor.doctor)
DATA_COMMANDS = _named(data.show, data.get, data.cache)
EXPLAIN_COMMANDS: Commands = {"run": report.explain_run}
MODELS, EXPERIMENTS = "Models of photos or vectors", "Experiments"
"""Headings in `gatf --help`."""
DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""Errors of a full or read-only disk, reported in one sentence wherever they occur."""
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Environment variables that set how long a thread of torch spins before it sleeps."""
SPINS = "3000"
"""Iterations. The default of 300 000 keeps a core busy while another process needs it."""
TRAINING_COMMANDS = frozenset({"run", "bench", "tune", "learn"})
"""Commands that train in this process, whose memory allocator is then tuned for it."""
START = """gatf: classifiers that learn new classes without keeping old data

  photos     gatf studio shop.gatf             teach and ask in the browser
             gatf learn shop.gatf photos/      one folder of photos per class; later more folders
             gatf predict shop.gatf new.jpg
  vectors    gatf learn m.gatf vectors.npz     arrays embedding [N, D] and label
  research   gatf run                          train and evaluate on handwritten digits in under a minute
             gatf bench digits                 compare all methods

gatf --help lists all commands, gatf COMMAND --help explains one."""
"""Shown without arguments."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gatf {__version__}")
        raise typer.Exit


def _common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options of every command."""
    if context.invoked_subcommand is None:
        typer.echo(START)


def _explain() -> None:
    """Options of every topic."""


def _group(callback: Callable[..., None], commands: Commands, **options: Any) -> typer.Typer:
    """A callback and its commands; rich's own markup would swallow [default: …], so help is Markdown."""
    group = typer.Typer(
        callback=callback, rich_markup_mode="markdown", pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]}, **options,
    )  # fmt: skip
    for name, command in commands.items():
        group.command(name, rich_help_panel=MODELS if name in MODEL_COMMANDS else EXPERIMENTS)(command)
    return group


def _whole() -> typer.Typer:
    """The command line with all commands and groups."""
    whole = _group(
        _common, COMMANDS, invoke_without_command=True,
        help="Class-incremental learning without stored images: GATF and the methods it is compared with.",
    )  # fmt: skip
    about = "Data sources: list them, show one, download one."
    sources = _group(data.list_sources, DATA_COMMANDS, invoke_without_command=True, help=about)
    whole.add_typer(sources, name="data", rich_help_panel=EXPERIMENTS)
    about = "Decompose a run's accuracy gap into its causes."
    topics = _group(_explain, EXPLAIN_COMMANDS, no_args_is_help=True, help=about)
    whole.add_typer(topics, name="explain", rich_help_panel=EXPERIMENTS)
    return whole


app = _whole()


def _needed(words: list[str]) -> typer.Typer:
    """An app with only the named command, because typer inspects every command it gets."""
    name = words[0] if words else ""
    return _group(_common, {name: COMMANDS[name]}) if name in COMMANDS else app


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2; --debug shows the traceback."""
    if not any(name in os.environ for name in WAITING):
        os.environ[WAITING[0]] = SPINS  # before torch is imported, which reads it once
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # their search reads every package
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    if sys.argv[1:2] and sys.argv[1] in TRAINING_COMMANDS and not any(map(is_vector_file, sys.argv[2:])):
        keep_freed_memory()  # for training steps; batches of vectors would pile up
    inherited = os.environ.get(COMMAND)
    if LAUNCHER not in os.environ:  # processes of a launcher inherit its command
        os.environ[COMMAND] = as_typed(sys.argv[1:])
    try:
        _needed(sys.argv[1:])()
    except UserError as error:
        if debug:
            raise
        if isinstance(error, LostProcess) and LAUNCHER in os.environ:
            sys.exit(ExitCode.LOST)
        if is_first_process():
            say(f"gatf: {harmless(error)}", err=True)
        sys.exit(ExitCode.MISTAKE)
    except OSError as error:
        if debug or error.errno not in DISK:
            raise
        if is_first_process():
            say(f"gatf: {harmless(error.filename or 'a file')} cannot be written ({error.strerror})", err=True)
        sys.exit(ExitCode.MISTAKE)
    finally:
        os.environ.pop(COMMAND, None)
        if inherited is not None:
            os.environ[COMMAND] = inherited
