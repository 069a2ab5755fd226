"""Printing of untrusted text (class names, file names): control characters are escaped."""

import re
import shutil
import textwrap
from typing import TYPE_CHECKING

import typer

from gatf.io.text import harmless

if TYPE_CHECKING:
    from rich.console import Console


def say(text: str, *, err: bool = False) -> None:
    """Print plain text."""
    typer.echo(harmless(text, lines=True), err=err)


def entry(name: str, *texts: str, width: int) -> None:
    """Print a name and, beside it, each text, wrapped at the terminal's width; a pipe gets whole lines."""
    room = max(shutil.get_terminal_size((1000, 24)).columns - width - 2, 40)
    whole = [re.sub(r"(?<=\d) (?=\d{3})", "\N{NO-BREAK SPACE}", text) for text in texts]  # 10 000 stays on one line
    for number, line in enumerate(line for text in whole for line in textwrap.wrap(text, room)):
        typer.echo(f"{'' if number else name:<{width}}  {line}".replace("\N{NO-BREAK SPACE}", " "))


def print_plain(console: "Console", text: str) -> None:
    """Print plain text to a rich console: no markup, no colours, no wrapping."""
    console.print(harmless(text, lines=True), markup=False, highlight=False, soft_wrap=True)
