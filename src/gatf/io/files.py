"""Atomic writes: a temporary file in the same folder, then a rename."""

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from gatf.errors import CannotWrite, UserError


@contextmanager
def new_file(path: Path, *, durable: bool = False, like: Path | None = None, private: bool = False) -> Iterator[Path]:
    """A temporary path to write to. It replaces `path` at the end, or is deleted after an error.

    A replaced file keeps its mode and owner; a new one gets those of the file `like`. Only the owner can read a
    `private` file. `durable` syncs the contents and the rename to disk, so that a power cut leaves the old file or the
    new one.
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
    """The target of a symbolic link; other paths are returned unchanged."""
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.is_symlink():
        raise UserError(f"{path} is a symbolic link that leads to itself")
    return target


def is_special(path: Path) -> bool:
    """Whether a path is a pipe, a device or a socket. Reading one may block for ever."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Convert an `OSError` (full disk, deleted or read-only folder) to a `CannotWrite` with one sentence."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(
            f"{path} cannot be written ({error.strerror or error}); what was there is untouched"
        ) from None


def write_text(path: Path, text: str) -> None:
    with write_errors(path), new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_bytes(
    path: Path, pieces: Sequence[Any], check: Callable[[Path], None] | None = None, *, like: Path | None = None
) -> None:
    """Write pieces of bytes durably. `check` receives the temporary file and may raise to cancel the write. `like` as
    in `new_file`."""
    with write_errors(path), new_file(path, durable=True, like=like) as partial:
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        if check is not None:
            check(partial)


def copy(source: Path, target: Path) -> None:
    """Copy a file that is never modified in place: a hard link where possible."""
    partial = _partial(target)
    with write_errors(target):
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
    """Delete a file if it exists."""
    with write_errors(path):
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path, name: str = ".+") -> None:
    """Delete temporary files of killed processes. Call it only while no other process writes these files."""
    begun = re.compile(rf"\.({name})\.[0-9a-f]{{8}}\.partial")
    for file in folder.iterdir() if folder.is_dir() else ():
        if begun.fullmatch(file.name):
            with suppress(OSError):
                file.unlink()


def sync_folder(folder: Path) -> None:
    """Sync renames in a folder to disk, if the system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
