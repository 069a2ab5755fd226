"""Where a source's files are looked for."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gatf.data.cache import cache_folder
from gatf.data.listing import Listing
from gatf.errors import UserError
from gatf.settings import DataConfig


@dataclass(frozen=True)
class Layout:
    """One way a data set can lie on disk."""

    name: str
    matches: Callable[[Path], bool]
    read: Callable[[Path, DataConfig], Listing]
    matches_base: Callable[[Path], bool] | None = None
    """The same question of the base folder, which may hold other data sets too; None: asked in the same way."""


def base_folder(config: DataConfig) -> Path:
    """The folder the user names with `data.root` or GATF_DATA, else the one that `gatf data get` fills."""
    named = config.root or os.environ.get("GATF_DATA")
    return Path(named).expanduser() if named else cache_folder() / "data"


def fetch_folder(config: DataConfig) -> Path:
    """Where `gatf data get` puts a source."""
    return base_folder(config) / config.name


def find_layout(config: DataConfig, layouts: Sequence[Layout]) -> tuple[Path, Layout] | None:
    """The folder <base>/<name>, or the base itself, that holds one of the layouts."""
    base = base_folder(config)
    own = base / config.name
    for place in (own, base):
        if place.exists():
            for layout in layouts:
                matches = layout.matches if place == own else layout.matches_base or layout.matches
                if matches(place):
                    return place, layout
    return None


def not_found(config: DataConfig, layouts: Sequence[Layout], get: str | None = None) -> str:
    base = base_folder(config)
    known = " or ".join(layout.name for layout in layouts)
    command = f"get it with `{get or f'gatf data get {config.name}'}`, or " if get != "" else ""
    return (
        f"'{config.name}' is not in {base / config.name} or {base}: {command}name a folder that holds it ({known}) "
        "with --data-root or GATF_DATA"
    )


def problem_of(read: Callable[[DataConfig], Listing], config: DataConfig) -> str | None:
    """Why the data cannot be used, as one sentence; None when it is at hand and what it should be."""
    try:
        read(config)
    except UserError as error:
        return str(error)
    return None
