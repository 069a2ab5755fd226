"""`gatf data`: list the data sources, show or fetch one; show or clear the cache."""

from typing import Annotated, Any

import typer

from gatf.cli.terminal import entry, say
from gatf.io.text import harmless


def list_sources(context: typer.Context) -> None:
    """List the data sources, one line each."""
    if context.invoked_subcommand is not None:
        return
    from gatf.data.sources import SOURCES
    from gatf.plugins import registered

    width = max(map(len, SOURCES))
    for name, source in SOURCES.items():
        entry(name, source.summary, width=width)
    for name, entry_point in registered("data source").items():
        entry(name, f"a plugin: {entry_point.value}", width=width)


def show(
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
        say(f"{heading:<{width}}  {harmless(line)}")


def get(
    name: Annotated[str, typer.Argument(help="Data source; `gatf data` lists them.")],
    data_root: Annotated[str | None, typer.Option(help="Folder to put it in. [default: the cache]")] = None,
    hub: Annotated[str | None, typer.Option(help="Another data set of the hub, of the same columns.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Data settings, e.g. data.label_column=species."),
    ] = None,
) -> None:
    """Fetch a source from the Hugging Face hub."""
    from rich.console import Console
    from rich.progress import Progress

    from gatf.data.sources import fetch_source

    config = _data_config(name, data_root, settings or [], hub=hub)
    with Progress(console=Console()) as progress:
        bars: dict[str, Any] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done)

        folder = fetch_source(name, config, advance)
    typer.echo(f"{name} is in {folder}")


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove every entry. Fetched data sets stay.")] = False,
) -> None:
    """Show how much gatf keeps in its cache: decoded images and features of data sets that runs have used.

    `gatf learn`, `gatf serve` and `gatf studio` put nothing there.
    """
    from gatf.data import cache as files

    if clear:
        count, size = files.clear()
        say(f"{files.cache_folder()}: {count} files removed, {size / 1e6:.1f} MB")
        return
    found = files.entries()
    size = sum(file.stat().st_size for file in found)
    say(f"{files.cache_folder()}: {len(found)} files, {size / 1e6:.1f} MB; gatf data cache --clear removes them")


def _data_config(name: str, root: str | None, settings: list[str], hub: str | None = None) -> Any:
    """The data section of a config, from a command's options."""
    from gatf.config import parse_overrides, validated_data

    overrides = {path.removeprefix("data."): value for path, value in parse_overrides(settings).items()}
    return validated_data({"name": name, "root": root, "hub": hub, **overrides})
