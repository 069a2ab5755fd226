"""`gatf methods`: what can be run."""

from typing import Annotated

import typer

from gatf.cli.terminal import entry


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
        entry(name, method.card.summary, f"Use it {method.card.when}.", width=width)
        if verbose:
            for line in describe(name):
                typer.echo(f"    {line}")
    for kind, name, origin in listed():
        entry(name, f"{kind} of a plugin: {origin}", width=width)
