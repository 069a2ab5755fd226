"""Text from strangers (class names, file names, recipes) at the doors of the terminal and of CSV files."""

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

COMMAND = "GATF_COMMAND"
"""The environment variable that tells the processes of a command how it was typed."""
_LINE_END = "\n"
_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal would obey rather than show: control characters (escape sequences begin with one), other line ends,
marks that turn the direction of writing; and halves of characters, which it could not even be sent."""
_FORMULA = re.compile(r"[=+\-@\t\r]")


def harmless(value: object, *, lines: bool = False) -> str:
    """The text as one line that a terminal shows and does not obey: what it would obey is written `\\u001b`, as JSON
    does. With `lines` the text's own line ends stay."""

    def escaped(found: re.Match[str]) -> str:
        return found[0] if lines and found[0] == _LINE_END else f"\\u{ord(found[0]):04x}"

    return _UNSHOWN.sub(escaped, str(value))


def csv_cell(value: Any) -> Any:
    """A value for a cell of a CSV file. Text that a spreadsheet would take for a formula gets a quote in front, as a
    person would type it there; what is a number stays one."""
    if not isinstance(value, str):
        return value
    text = harmless(value)
    if _FORMULA.match(value) and not _is_number(value):
        return f"'{text}"
    return text


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
    """The command for people to see; of folders elsewhere the name alone, for a report tells nobody's folders."""

    def seen(word: str) -> str:
        name, sign, value = word.partition("=")
        if sign and Path(value).is_absolute():
            return f"{name}={Path(value).name}"
        return Path(word).name if Path(word).is_absolute() else word

    return shlex.join(["gatf", *map(seen, words)])


def rejoined(pieces: Sequence[str], known: Collection[str]) -> list[str]:
    """Names that were separated by commas and may have commas of their own: the longest that is known is meant."""
    names, at = [], 0
    while at < len(pieces):
        ends = range(len(pieces), at, -1)
        end = next((end for end in ends if ",".join(pieces[at:end]).strip() in known), at + 1)
        names.append(",".join(pieces[at:end]).strip())
        at = end
    return names
