"""The exception that users read, and exit codes."""

import importlib
import shlex
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """How a process of this project ends; an error nobody foresaw is Python's own 1, with a traceback."""

    DONE = 0
    FAILED = 1
    """The command did its work, and something in it went wrong: runs of a bench, what the doctor found."""
    MISTAKE = 2
    """A `UserError`, reported in one sentence."""
    LOST = 3
    """Stopped because another process of the run ended; the launcher reports it."""
    INTERRUPTED = 130
    """Stopped and saved when asked to."""


class UserError(ValueError):
    """A mistake of the user's: one sentence: what was wrong, where, and what to do.

    >>> gatf.load_config("digits", overrides={"sede": 1})
    Traceback (most recent call last):
    gatf.errors.UserError: unknown setting 'sede'; did you mean 'seed'?
    """


class LostProcess(UserError):
    """Another process of this run ended."""


class Busy(UserError):
    """Another process has in hand what only one at a time may have."""


class CannotWrite(UserError):
    """The disk is full, or the folder was deleted or is not writable."""


class NotFinite(ValueError):
    """A number that others are made of is infinite or NaN. Within training it becomes `Diverged`."""


class Diverged(UserError):
    """Training has left the finite numbers: which task, phase and epoch, which terms, and what to change."""

    def __init__(self, message: str, setting: str = "", rate: float = 0.0) -> None:
        super().__init__(message)
        self.setting, self.rate = setting, rate
        """The learning rate to lower, and what it is now."""

    def offer(self, folder: object) -> "Diverged":
        """The same error with the command that resumes from the last checkpoint at a tenth of the learning rate."""
        command = f"gatf run --resume {shlex.quote(str(folder))} --force-config --set {self.setting}={self.rate / 10:g}"
        return Diverged(f"{self}; continue from the last checkpoint with: {command}", self.setting, self.rate)


def near_misses(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'gatf'?"`, or what there is to choose from when nothing is close."""
    names = sorted(known)
    close = get_close_matches(word, names, n=3, cutoff=0.6)
    if close:
        return "; did you mean " + " or ".join(repr(name) for name in close) + "?"
    return "; choose from " + ", ".join(names)


def extra(module: str, extra_name: str = "data") -> Any:
    """A module of an optional extra, or one sentence with how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"this needs '{module}': pip install 'gatf-cil[{extra_name}]'") from None


def connected_ray(address: str | None = None) -> Any:
    """The module `ray` (extra `cluster`), connected to the cluster at this address or to one that it starts here."""
    ray = extra("ray", "cluster")
    if not ray.is_initialized():
        here = {"include_dashboard": False} if address is None else {}
        try:
            ray.init(address=address, log_to_driver=False, **here)
        except Exception as error:  # Ray raises plain exceptions
            what = f"no Ray cluster answers at {address}" if address is not None else "Ray did not start"
            raise UserError(f"{what}: {str(error).strip().splitlines()[0]}") from None
    return ray


def deprecated(name: str, replacement: str, removed_in: str) -> None:
    """Warn the caller's caller that a public name is going to be removed: names last one minor release longer."""
    warnings.warn(
        f"{name} is deprecated and will be removed in gatf {removed_in}; use {replacement}",
        DeprecationWarning,
        stacklevel=3,
    )
