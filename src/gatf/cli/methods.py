"""`gatf methods`: what can be run."""

import shutil
import textwrap
from typing import Annotated

import typer


def methods(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also paper, memory, what is trained, recipes and settings.")
    ] = False,
) -> None:
    """List the methods, and when to choose each; then all that installed plugins add."""
    from gatf.cli.catalogue import describe
    from gatf.methods import METHODS
    from gatf.plugins import listed

    width = max(map(len, METHODS))
    room = max(shutil.get_terminal_size((1000, 24)).columns - width - 2, 40)  # a pipe gets whole lines
    for name, method in METHODS.items():
        lines = [*textwrap.wrap(method.card.summary, room), *textwrap.wrap(f"Use it {method.card.when}.", room)]
        for number, line in enumerate(lines):
            typer.echo(f"{'' if number else name:<{width}}  {line}")
        if verbose:
            for line in describe(name):
                typer.echo(f"    {line}")
    for kind, name, origin in listed():
        typer.echo(f"{name:<{width}}  {kind} of a plugin: {origin}")
