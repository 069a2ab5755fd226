"""The one exception a person is meant to read."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake of the user's: one sentence that says what was wrong, where, and what to do. Exit code 2."""


class LostProcess(UserError):
    """Another process of this run is gone."""


def near_misses(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'gatf'?"`, or what there is to choose from when nothing is close."""
    names = sorted(known)
    close = get_close_matches(word, names, n=3, cutoff=0.6)
    if close:
        return "; did you mean " + " or ".join(repr(name) for name in close) + "?"
    return "; choose from " + ", ".join(names)
