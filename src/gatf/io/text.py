"""Untrusted text (class names, file names, recipes), made safe for terminals and CSV files."""

import csv
import io
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

COMMAND = "GATF_COMMAND"
"""The environment variable that holds the command line for the processes it starts."""
_LINE_END = "\n"
_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal interprets: control characters (which begin escape sequences), other line ends, marks of
the writing direction; and lone surrogates, which cannot be encoded."""
_FORMULA = re.compile(r"[=+\-@\t\r]")


def harmless(value: object, *, lines: bool = False) -> str:
    """The text as one line that is safe to print: control characters are escaped as in JSON, `\\u001b`. With `lines`
    line ends are kept."""

    def escaped(found: re.Match[str]) -> str:
        return found[0] if lines and found[0] == _LINE_END else f"\\u{ord(found[0]):04x}"

    return _UNSHOWN.sub(escaped, str(value))


def csv_cell(value: Any) -> Any:
    """A value for a cell of a CSV file. Text that a spreadsheet would run as a formula gets a leading quote; numbers
    are kept."""
    if not isinstance(value, str):
        return value
    text = harmless(value)
    if _FORMULA.match(value) and not _is_number(value):
        return f"'{text}"
    return text


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows of values as CSV, each value made safe by `csv_cell`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`, `9 d`."""
    for unit, size, limit in (("s", 1, 90), ("min", 60, 90 * 60), ("h", 3600, 48 * 3600)):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def as_typed(words: Sequence[str]) -> str:
    """The command as shown in reports; absolute paths are shortened to their names, to keep private folders out."""

    def seen(word: str) -> str:
        name, sign, value = word.partition("=")
        if sign and Path(value).is_absolute():
            return f"{name}={Path(value).name}"
        return Path(word).name if Path(word).is_absolute() else word

    return shlex.join(["gatf", *map(seen, words)])


def rejoined(pieces: Sequence[str], known: Collection[str]) -> list[str]:
    """Join the pieces of comma-separated names that may contain commas; the longest known name is taken."""
    names, at = [], 0
    while at < len(pieces):
        ends = range(len(pieces), at, -1)
        end = next((end for end in ends if ",".join(pieces[at:end]).strip() in known), at + 1)
        names.append(",".join(pieces[at:end]).strip())
        at = end
    return names
