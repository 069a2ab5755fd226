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
    for place in (base / config.name, base):
        if place.exists():
            for layout in layouts:
                if layout.matches(place):
                    return place, layout
    return None


def listing(config: DataConfig, layouts: Sequence[Layout]) -> Listing:
    """What the files hold, wherever they are found."""
    found = find_layout(config, layouts)
    if found is None:
        raise UserError(not_found(config, layouts))
    place, layout = found
    return layout.read(place, config)


def not_found(config: DataConfig, layouts: Sequence[Layout], get: str | None = None) -> str:
    base = base_folder(config)
    known = " or ".join(layout.name for layout in layouts)
    command = f"get it with `{get or f'gatf data get {config.name}'}`, or " if get != "" else ""
    return (
        f"'{config.name}' is not in {base / config.name} or {base}: {command}name a folder that holds it ({known}) "
        "with --data-root or GATF_DATA"
    )
