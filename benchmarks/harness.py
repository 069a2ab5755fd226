"""What the benchmarks share: taking turns, peak memory of a call, facts about the machine, one line and one JSON file.

A benchmark is a file with a `main` that calls `options`, makes a `Report`, adds results to it and ends with `write`.
Reference and ours take turns in one process, so that a busy machine slows both, and each turn gives one ratio.
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing import get_context, set_start_method
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from gatf.io.files import write_text
from gatf.io.provenance import processor_name

RESULTS = Path(__file__).resolve().parent / "results"
THREADS = 2
LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Set together: torch goes by MKL's number if OpenMP's is another."""
LONG_TURN = 0.1
"""Seconds."""
Call = Callable[[], object]
Setup = Callable[..., tuple[Call, Call]]


def options(name: str, description: str | None, *, threads: int | None = None) -> argparse.Namespace:
    """`--quick`, `--out` and, unless the benchmark fixes them, `--threads`, which are set here and for children."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats and smaller inputs")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.json", help="where the JSON goes")
    if threads is None:
        parser.add_argument("--threads", type=int, default=THREADS, help="threads of every library")
    else:
        parser.set_defaults(threads=threads)
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    return arguments


def set_threads(threads: int) -> None:
    """The same number for torch, for BLAS libraries already loaded (SciPy brings its own) and for child processes."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)
    os.environ.update(dict.fromkeys(LIBRARIES, str(threads)))


def process(*arguments: str) -> Call:
    """A call that runs Python with these arguments and waits. Modules are compiled once, as those of an installed
    package are, whatever PYTHONDONTWRITEBYTECODE says here."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


def seconds(call: Call, clock: Callable[[], float] = time.perf_counter, calls: int = 1) -> float:
    """Time of one call, the mean of so many in a row."""
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


def processor_time() -> float:
    """Seconds of all processors that this process and the children it has waited for took so far."""
    return sum(os.times()[:4])


def idle(seconds: float = 1.0) -> float:
    """The share of all processors' time that nobody uses, by Linux's own count."""
    before = _ticks()
    time.sleep(seconds)
    passed = [now - then for now, then in zip(_ticks(), before, strict=True)]
    return (passed[3] + passed[4]) / max(sum(passed), 1)  # idle, and waiting for a disk


def _ticks() -> Sequence[int]:
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def take_turns(
    reference: Call, ours: Call, *, repeats: int, calls: int = 1, clock: Callable[[], float] = time.perf_counter,
    warm_up: bool = True, rest: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """Median seconds of both, and median and lowest of reference/ours over the turns, after one turn to warm up (which
    calls of many seconds do not need).

    A turn is so many `calls` in a row, before which both sides `rest` for some seconds: short calls would otherwise be
    timed while the threads of the other side's libraries still spin.

    Who goes first changes from turn to turn. Garbage is not collected while a call is timed, and between turns only
    where they are long: a collection empties the caches, which short calls would feel.
    """
    turns: list[tuple[float, float]] = []
    gc.disable()
    for turn in range(repeats + warm_up):
        first, second = (reference, ours) if turn % 2 else (ours, reference)
        times = tuple(_rested(call, rest, clock, calls) for call in (first, second))
        turns.append((times[0], times[1]) if turn % 2 else (times[1], times[0]))
        if sum(times) > LONG_TURN:
            gc.collect()
    gc.enable()
    turns = turns[warm_up:]
    return {
        "reference": statistics.median(theirs for theirs, _ in turns),
        "ours": statistics.median(own for _, own in turns),
        "ratio": statistics.median(theirs / own for theirs, own in turns),
        "ratio_lowest": min(theirs / own for theirs, own in turns),
        "repeats": repeats,
    }


def _rested(call: Call, rest: float, clock: Callable[[], float], calls: int) -> float:
    time.sleep(rest)
    return seconds(call, clock, calls)


class Apart:
    """Something to call in a process of its own, so that what one side sets for its process does not help the other."""

    def __init__(self, make: Callable[..., object], *arguments: object) -> None:
        """`make(*arguments)`, a function or class at the top of a module, makes it there."""
        threads = torch.get_num_threads()
        self._pool = ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=_make_apart, initargs=(make, arguments, threads)
        )

    def call(self, name: str, *arguments: object) -> Any:
        """A method of it."""
        return self._pool.submit(_call_apart, name, arguments).result()

    def close(self) -> None:
        self._pool.shutdown()


_apart: list[Any] = []


def _make_apart(make: Callable[..., object], arguments: tuple[object, ...], threads: int) -> None:
    set_start_method(None, force=True)  # else workers of what is made here would be spawned, because it was
    set_threads(threads)
    _apart.append(make(*arguments))


def _call_apart(name: str, arguments: tuple[object, ...]) -> Any:
    return getattr(_apart[0], name)(*arguments)


def per_second(turns: dict[str, Any], count: int) -> dict[str, Any]:
    """The same turns with medians in things a second, where a call did `count` of them."""
    return turns | {name: count / turns[name] for name in ("reference", "ours")}


def peak_memory(setup: Setup, *arguments: object) -> int:
    """Bytes by which one call raises the resident memory of a fresh process at its highest.

    `setup(*arguments)`, a function at the top of a module, returns a small call that loads the code needed and the call
    to measure. Linux's own high-water mark of the process (VmHWM), reset just before, sees every allocator and every
    library. `ru_maxrss` would not do: a child starts with its parent's. Nor would torch's profiler, which adds up what
    torch asked for, not what the machine had to give.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_peak_here, setup, arguments, torch.get_num_threads()).result()


def _peak_here(setup: Setup, arguments: tuple[object, ...], threads: int) -> int:
    set_threads(threads)
    warm_up, call = setup(*arguments)
    warm_up()
    return measured(call, time.perf_counter)[1]


def measured(call: Call, clock: Callable[[], float]) -> tuple[float, int]:
    """Seconds of one call, and bytes by which it raises this process's resident memory at its highest."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory freed but kept would hide what the call needs
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM
    before = status("VmRSS")
    started = clock()
    kept = call()
    taken = clock() - started
    peak = status("VmHWM") - before
    del kept
    return taken, max(peak, 0)


def status(name: str, process: int | str = "self") -> int:
    """A size in bytes from /proc/PROCESS/status."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def environment(*packages: str) -> dict[str, Any]:
    """Versions, threads and processor: what a number cannot be compared without."""
    names = ("torch", "numpy", *packages)
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in names},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": f"{processor_name()}, {torch.backends.cpu.get_cpu_capability()}",
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


@dataclass
class Report:
    """The results of one benchmark."""

    arguments: argparse.Namespace
    about: dict[str, Any] = field(default_factory=dict)
    """What holds for all results: data, clock."""
    results: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        what: str,
        *,
        ours: float,
        reference: float | None,
        ratio: float | None,
        unit: str = "s",
        target: float | None = None,
        at_most: float | None = None,
        **details: object,
    ) -> None:
        """One comparison, with its line in the table.

        `ratio` says how many times better ours is. The target is the least ratio, or with `at_most` the largest value
        of ours; with neither, the numbers are for information.
        """
        met: bool | None = None
        goal = "none"
        if target is not None:
            goal, met = f"ratio ≥ {target:g}", ratio is not None and ratio >= target
        elif at_most is not None:
            goal, met = f"ours ≤ {at_most:g} {unit}".strip(), ours <= at_most
        result = {"what": what, "unit": unit, "ours": ours, "reference": reference, "ratio": ratio, "target": goal}
        self.results.append(rounded({**result, "met": met, **details}))
        verdict = "" if met is None else f"   {goal}: {'PASS' if met else 'below target'}"
        against = (
            "" if reference is None or ratio is None else f"   reference {_short(reference)} {unit}   × {ratio:.3g}"
        )
        print(f"{what:58s} ours {_short(ours)} {unit}{against}{verdict}", flush=True)

    def write(self, *packages: str) -> None:
        """The JSON file."""
        out: Path = self.arguments.out
        whole = {**rounded(self.about), "quick": self.arguments.quick, "results": self.results}
        out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**whole, "environment": environment(*packages)}, indent=2, ensure_ascii=False)
        write_text(out, text + "\n")
        print(f"written to {out}", file=sys.stderr)


def _short(value: float) -> str:
    return f"{value:>9.0f}" if value >= 1000 else f"{value:>9.4g}"


def rounded(value: Any) -> Any:
    """Four significant digits are more than a time has."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value
