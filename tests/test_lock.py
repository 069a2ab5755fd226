"""A lock goes with its process, however that ends."""

import os
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from gatf.errors import UserError
from gatf.io.lock import exclusive


def test_a_child_that_outlives_its_parent_does_not_hold_the_lock(tmp_path: Path) -> None:
    """As a data worker does when training is killed."""
    ready, reported = os.pipe()
    parent = os.fork()
    if parent == 0:
        with exclusive(tmp_path / "lock", busy="busy", blocked="blocked"):
            if os.fork() == 0:
                os.write(reported, str(os.getpid()).encode())
                os.close(reported)
                signal.pause()
            os.waitpid(-1, os.WNOHANG)
            os._exit(0)
    os.close(reported)
    os.waitpid(parent, 0)
    child = int(os.read(ready, 100))
    try:
        os.kill(child, 0)  # it lives
        with exclusive(tmp_path / "lock", busy="busy", blocked="blocked"):
            pass
    finally:
        os.kill(child, 9)
        os.close(ready)


def test_what_cannot_be_locked_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with (
        pytest.raises(UserError, match=r"cannot write \(.*\)"),
        exclusive(tmp_path / "file" / "lock", busy="busy", blocked="cannot write"),
    ):
        pass


def test_another_thread_may_release_the_lock(tmp_path: Path) -> None:
    """A server takes it in one thread and gives it up in the thread of its event loop."""
    place = tmp_path / "lock"
    with ExitStack() as held:
        held.enter_context(exclusive(place, busy="busy", blocked="blocked"))
        thread = threading.Thread(target=held.close)
        thread.start()
        thread.join()
        assert not place.exists()
    with exclusive(place, busy="busy", blocked="blocked"):
        pass
