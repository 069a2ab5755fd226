"""Freed memory that stays: in a process of its own, because the setting is the process's."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource, torch
from gatf.training.memory import keep_freed_memory
kept = keep_freed_memory()
def step():
    [torch.ones(2**21) for _ in range(12)]
step(); step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 12 * 2**23 // 4096
"""Of one step: twelve blocks of 8 MiB."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the setting is glibc's")


def faults(**more: str) -> tuple[str, int]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "THP_"))}
    command = [sys.executable, "-c", SCRIPT]
    said = subprocess.run(command, env=own | more, capture_output=True, text=True, check=True).stdout.split()
    return said[0], int(said[1])


def test_what_a_step_frees_is_not_mapped_again_for_the_next() -> None:
    """Left alone, glibc hands back none to all of it, as the heap happens to lie."""
    kept, again = faults()
    assert kept == "True"
    assert again < PAGES // 10


def test_who_has_set_glibcs_variables_keeps_them() -> None:
    assert faults(MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"


FIT = """
import ctypes
import numpy as np
calls = []
class Libc:
    def __init__(self, *args, **options): ...
    def mallopt(self, name, value):
        calls.append(name)
        return 1
import gatf.training.memory
gatf.training.memory.ctypes.CDLL = Libc
from gatf import IncrementalClassifier
images = np.random.default_rng(0).integers(0, 256, (40, 8, 8)).astype(np.uint8)
IncrementalClassifier(epochs=1, width=4, feature_dim=4, device="cpu").fit(images, np.arange(40) % 2)
print(len(calls))
"""


def test_the_library_leaves_the_allocator_of_its_host_process_alone() -> None:
    assert subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True, check=True).stdout == "0\n"


def test_commands_that_train_tune_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    from gatf import cli

    calls = []
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: calls.append(sys.argv[1]))
    for command in ("run", "bench", "tune", "learn", "predict", "inspect"):
        monkeypatch.setattr(sys, "argv", ["gatf", command, "--help"])
        with pytest.raises(SystemExit):
            cli.main()
    assert calls == ["run", "bench", "tune", "learn"]
