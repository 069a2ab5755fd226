"""Freed memory that stays: in a process of its own, because the setting is the process's."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gatf.training import memory

SCRIPT = """
import ctypes, resource, sys, torch
size, count = int(sys.argv[1]), int(sys.argv[2])
large = ctypes.CDLL(None).mallopt(-3, 2**30)
from gatf.training.memory import keep_freed_memory
kept = keep_freed_memory()
def step():
    [torch.ones(size) for _ in range(count)]
for _ in range(4):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(large, kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGE = 4096
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the setting is glibc's")


@pytest.mark.parametrize(("size", "count", "share"), [(2**21, 12, 0.02), (2**24, 2, 0.5)])
def test_what_a_step_frees_is_not_mapped_again_for_the_next(size: int, count: int, share: float) -> None:
    """Left alone, glibc hands back none to all of it, as the heap happens to lie, and always all large blocks."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "THP_"))}
    command = [sys.executable, "-c", SCRIPT, str(size), str(count)]
    large, kept, again = subprocess.run(command, env=own, capture_output=True, text=True, check=True).stdout.split()
    if size > 2**23 and large != "1":
        pytest.skip("this glibc hands large blocks back at once")
    assert kept == "True"
    assert int(again) < share * 5 * count * 4 * size / PAGE


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The settings that glibc is asked for."""
    calls: list[int] = []
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)

    class Libc:
        def __init__(self, *args: object, **options: object) -> None: ...

        def mallopt(self, name: int, value: int) -> int:
            calls.append(name)
            return 1

    monkeypatch.setattr(memory.ctypes, "CDLL", Libc)
    memory.keep_freed_memory.cache_clear()
    yield calls
    memory.keep_freed_memory.cache_clear()


def test_who_has_set_glibcs_variables_keeps_them(monkeypatch: pytest.MonkeyPatch, calls: list[int]) -> None:
    assert memory.keep_freed_memory()
    assert calls
    calls.clear()
    memory.keep_freed_memory.cache_clear()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert not memory.keep_freed_memory()
    assert calls == []


def test_commands_that_train_tune_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    from gatf import cli

    calls = []
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: calls.append(sys.argv[1]))
    for command in ("run", "bench", "tune", "learn", "predict", "inspect"):
        monkeypatch.setattr(sys, "argv", ["gatf", command, "--help"])
        with pytest.raises(SystemExit):
            cli.main()
    assert calls == ["run", "bench", "tune", "learn"]
