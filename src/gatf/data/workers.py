"""Worker processes that compute ahead and return results in order."""

import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from gatf.errors import UserError

Request = TypeVar("Request")
Result = TypeVar("Result")

PREFETCH = 4
"""Requests that a worker computes ahead."""


def default_workers() -> int:
    """One process per core except the one that trains, at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(cores - 1, 1), 8)


@dataclass(frozen=True)
class _Work(Dataset[Any], Generic[Request, Result]):
    function: Callable[[Request], Result]

    def __getitem__(self, request: Request) -> Result | UserError:
        try:
            return self.function(request)
        except UserError as error:  # raised here, PyTorch would wrap it in a traceback
            return error.with_traceback(None)


def in_order(function: Callable[[Request], Result], requests: Sequence[Request], *, workers: int) -> Iterator[Result]:
    """`map(function, requests)` in `workers` processes; without workers in this process.

    The function must be picklable and depend only on its request, so the number of workers does not change results.
    """
    if workers == 0 or len(requests) < 2:
        yield from map(function, requests)
        return
    with warnings.catch_warnings():  # more workers than cores is the user's choice; Python 3.12 on forking with threads
        warnings.simplefilter("ignore")
        loader: DataLoader[Any] = DataLoader(
            _Work(function), batch_size=None, sampler=requests, num_workers=min(workers, len(requests)),
            prefetch_factor=PREFETCH, collate_fn=_as_is, worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # else every epoch would draw from the global one
        )  # fmt: skip
        results = iter(loader)
    for result in results:
        if isinstance(result, UserError):
            raise result
        yield result


def _as_is(result: Result) -> Result:
    return result


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches every process of the terminal; only the main process handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
