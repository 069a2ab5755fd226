"""A lock file for one process at a time. The system releases it when the process ends."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from gatf.errors import Busy, UserError


@contextmanager
def exclusive(path: Path, *, busy: str, blocked: str) -> Iterator[None]:
    """Hold the lock file `path`. The file and its folder are created if needed; the file is deleted afterwards.

    Only the owner can read a new folder. `busy` is the error if another process holds the lock, `blocked` the beginning
    of the error if the file cannot be created. A forked child does not hold its parent's lock.
    """
    lock = FileLock(path, blocking=False, fallback_to_soft=False, thread_local=False)
    try:
        _acquire(lock, path.parent)
    except Timeout:
        raise Busy(busy) from None
    except OSError as error:
        raise UserError(f"{blocked} ({error.strerror})") from None
    try:
        yield
    finally:
        if lock.is_locked:  # else this is a child
            with suppress(OSError):  # removed while it is held: who waits for it notices that it is not the one there
                path.unlink()
            lock.release()


def _acquire(lock: FileLock, folder: Path) -> None:
    while True:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # the process before us has just removed the folder
            lock.acquire()
            return
