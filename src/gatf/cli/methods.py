"""`gatf methods`: what can be run."""

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
    for name, method in METHODS.items():
        typer.echo(f"{name:<{width}}  {method.card.summary}")
        typer.echo(f"{'':<{width}}  Use it {method.card.when}.")
        if verbose:
            for line in describe(name):
                typer.echo(f"    {line}")
    for kind, name, origin in listed():
        typer.echo(f"{name:<{width}}  {kind} of a plugin: {origin}")
