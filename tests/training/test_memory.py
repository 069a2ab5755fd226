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
