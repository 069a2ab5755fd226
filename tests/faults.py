"""Processes that die, or whose disk is full, at a chosen file operation.

Python tells an audit hook of every file that is opened, renamed, linked, removed, and of every folder that is made or
removed. A child process has such a hook and counts those below a folder: at the chosen one it kills itself, or does so
once the file is half-written, or is reported that the disk is full.
"""

import errno
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from gatf.errors import UserError

KILL, HALF, FULL, NO_SPACE = "kill", "half", "full", "no space"
"""Killed before the operation, or in the middle of what it writes; the disk is full then, or before."""
SENTENCE, TRACEBACK = 2, 99
"""Exit codes of a child that ended by itself: with a `UserError`, with anything else."""
WATCHED = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "shutil.copyfile"}
PATIENCE = 900.0
"""Seconds until a process counts as hanging; a busy machine takes minutes where an idle one takes seconds."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def operations(act: Callable[[], Any], root: Path) -> int:
    """How many file operations below `root` an act takes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        seen = _watch(root, None, "")
        act()
        os.write(write, str(seen[0]).encode())
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    count = os.read(read, 100)
    os.close(read)
    assert status == 0
    return int(count)


def with_fault(act: Callable[[], Any], root: Path, at: int, fault: str) -> int:
    """Do `act` in a process that meets the fault at its `at`-th file operation below `root`; returns its exit code, as
    `subprocess` has it."""
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _watch(root, at, fault)
            act()
        except UserError:
            os._exit(SENTENCE)
        except BaseException:
            with suppress(OSError):  # that disk is full, too
                traceback.print_exc()
            os._exit(TRACEBACK)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def killed_after(act: Callable[[], Any], seconds: float) -> int:
    """Do `act` in a process that is killed after so many seconds unless it has ended; returns its exit code."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(TRACEBACK)
        os._exit(0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def wait_for_task(task: int, job: subprocess.Popen[Any] | BaseProcess, folder: Path) -> None:
    """Until the run in the folder has trained an epoch of the task."""
    events, deadline = folder / "metrics.jsonl", time.monotonic() + PATIENCE
    while not (events.exists() and f'"task": {task}, "phase"' in events.read_text(encoding="utf-8")):
        if isinstance(job, BaseProcess):
            assert job.is_alive()
        else:
            assert job.poll() is None, job.stderr.read() if job.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _watch(root: Path, at: int | None, fault: str) -> list[int]:
    seen = [0]
    prefix = str(root)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
        if not (opens or event in WATCHED) or not str(arguments[0]).startswith(prefix):
            return
        seen[0] += 1
        if at is None or seen[0] != at + 1:
            return
        if fault == NO_SPACE or (fault == FULL and not opens):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))
        if fault == KILL or not opens:
            os.kill(os.getpid(), signal.SIGKILL)
        path = Path(arguments[0])
        most = (path.stat().st_size if path.exists() else 0) + 50
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if fault == HALF else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    sys.addaudithook(hook)
    return seen
