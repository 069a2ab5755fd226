"""The one way to write a file: beside its place, then by rename. It appears whole or not at all."""

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from gatf.errors import CannotWrite


@contextmanager
def new_file(path: Path, *, durable: bool = False, like: Path | None = None, private: bool = False) -> Iterator[Path]:
    """A name to write to. What was written takes the place of `path` at the end, or vanishes on an error.

    A file that takes the place of another keeps that one's mode and owner; a new one gets those of the file `like`. A
    `private` file is for its owner only.
    `durable` sees to it that the contents are on disk before the rename, and the rename itself as well, so that a power
    cut leaves the old file or the new one.
    """
    partial = _partial(path)
    try:
        like = path if path.exists() and not private else like
        if private or like is not None:  # readable for others, if at all, only when it is complete
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield partial
        if like is not None:
            _keep_access(like, partial)
        if durable:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)
        if durable:
            sync_folder(path.parent)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4().hex[:8]}.partial")


def _keep_access(source: Path, target: Path) -> None:
    """Give a file the mode of another, and its owner where that is allowed."""
    status = source.stat()
    if hasattr(os, "chown"):
        with suppress(PermissionError):
            os.chown(target, status.st_uid, status.st_gid)
    target.chmod(stat.S_IMODE(status.st_mode))


def resolved(path: Path) -> Path:
    """The file that a symbolic link stands for; other paths stay as they were typed."""
    return path.resolve() if path.is_symlink() else path


def is_special(path: Path) -> bool:
    """Whether a path is a pipe, a device or a socket, which may make a reader wait for ever."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


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


def write_bytes(
    path: Path, pieces: Sequence[Any], check: Callable[[Path], None] | None = None, *, like: Path | None = None
) -> None:
    """Bytes, in pieces, that must last; `check` may look at the file, and refuse it, before it takes its place. For
    `like` see `new_file`."""
    with telling(path), new_file(path, durable=True, like=like) as partial:
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        if check is not None:
            check(partial)


def copy(source: Path, target: Path) -> None:
    """A second name for the present contents of a file that is never written to in place."""
    partial = _partial(target)
    with telling(target):
        try:
            try:
                os.link(source, partial)
            except OSError:  # a file system without hard links
                os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                shutil.copyfile(source, partial)
                _keep_access(source, partial)
            partial.replace(target)
        finally:  # a rename between two names of one file does nothing
            with suppress(OSError):
                partial.unlink(missing_ok=True)


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
