"""One process at a time: a lock that goes with its process, however it ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gatf.errors import Busy, UserError

_held: set[int] = set()
"""Descriptors of this process's locks."""


def _let_go_in_child() -> None:
    """A forked child (a data worker) may outlive its parent for a moment and must not hold the lock for it."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


@contextmanager
def exclusive(path: Path, *, busy: str, blocked: str) -> Iterator[None]:
    """Inside, no other process is inside with the same file, which is made, with its folder, and removed again.

    `busy` is what the user is told when another process is, `blocked` when the file cannot be made, and why follows.
    """
    try:
        descriptor = _acquire(path)
    except BlockingIOError:
        raise Busy(busy) from None
    except OSError as error:
        raise UserError(f"{blocked} ({error.strerror})") from None
    _held.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _held:  # else this is a child
            _held.remove(descriptor)
            with suppress(OSError):
                path.unlink()
            os.close(descriptor)


def _acquire(path: Path) -> int:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # the process before us has just removed the folder
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_current(descriptor, path):
                return descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_current(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one at the path: the process before us may have removed it."""
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
