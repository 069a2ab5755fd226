"""The one way to write a file: beside its place, then by rename. It appears whole or not at all."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from gatf.errors import CannotWrite


@contextmanager
def new_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A name to write to. What was written takes the place of `path` at the end, or vanishes on an error.

    `durable` sees to it that the contents are on disk before the rename, and the rename itself as well, so that a power
    cut leaves the old file or the new one.
    """
    partial = path.with_name(f".{path.name}.{uuid4().hex[:8]}.partial")
    try:
        yield partial
        if durable:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)
        if durable:
            sync_folder(path.parent)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """Inside, what the system refuses (a full disk, a folder that is gone or cannot be written) is one sentence."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(
            f"{path} cannot be written ({error.strerror or error}); what was there is untouched"
        ) from None


def write_text(path: Path, text: str) -> None:
    with telling(path), new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_bytes(path: Path, pieces: Sequence[Any], check: Callable[[Path], None] | None = None) -> None:
    """Bytes, in pieces, that must last; `check` may look at the file, and refuse it, before it takes its place."""
    with telling(path), new_file(path, durable=True) as partial:
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        if check is not None:
            check(partial)


def copy(source: Path, target: Path) -> None:
    """A second name for the present contents of a file that is never written to in place."""
    with telling(target), new_file(target) as partial:
        try:
            os.link(source, partial)
        except OSError:  # a file system without hard links
            shutil.copyfile(source, partial)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    with telling(path):
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path, name: str = ".+") -> None:
    """Remove what processes that were killed left of files whose names match: for those who alone write to them."""
    begun = re.compile(rf"\.({name})\.[0-9a-f]{{8}}\.partial")
    for file in folder.iterdir() if folder.is_dir() else ():
        if begun.fullmatch(file.name):
            with suppress(OSError):
                file.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
