"""Ctrl-C and SIGTERM as a request to stop after the current step."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Handle Ctrl-C and SIGTERM: the first requests a stop after the current step, a second one raises at once.

    Yields a function that returns whether a stop was requested."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    try:
        previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: signals are the caller's
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
