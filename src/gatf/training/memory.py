"""Memory that a training step frees and the next one asks for again."""

import ctypes
import os
import platform
from functools import cache

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""glibc's names for them in `mallopt`."""
KEPT, AHEAD = 2**30, 2**26
"""Bytes: that stay with the process once freed; taken in advance."""
LARGEST = (2**30, 2**25)
"""Bytes of the largest block that is not handed back at once. Older versions of glibc allow 32 MiB at most; activations
of large images exceed it."""


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep what is freed, for the next step to reuse; returns whether it will.

    By default blocks of some megabytes go back to the system when they are freed. A step allocates each of its
    activations again, so that the system has to clear and map the same pages, several thousand per step of a small
    network. What that costs depends on the machine and the size of images (benchmarks/training.py). If the user has set
    one of glibc's own variables, nothing changes.

    The setting holds for the whole process, so only entry points call this (the command line and worker processes). The
    library must not change its host process.
    """
    named = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if named or platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    if not any(libc.mallopt(MMAP_THRESHOLD, size) == 1 for size in LARGEST):
        return False
    return all(libc.mallopt(name, value) == 1 for name, value in ((TRIM_THRESHOLD, KEPT), (TOP_PAD, AHEAD)))
