"""Printing of untrusted text (class names, file names): control characters are escaped."""

from typing import TYPE_CHECKING

import typer

from gatf.io.text import harmless

if TYPE_CHECKING:
    from rich.console import Console


def say(text: str, *, err: bool = False) -> None:
    """Print plain text."""
    typer.echo(harmless(text, lines=True), err=err)


def print_plain(console: "Console", text: str) -> None:
    """Print plain text to a rich console: no markup, no colours, no wrapping."""
    console.print(harmless(text, lines=True), markup=False, highlight=False, soft_wrap=True)
