"""Class names that look the same are the same name, or a mistake."""

import unicodedata
from collections.abc import Sequence

import numpy as np

from gatf.errors import UserError
from gatf.io.text import harmless

VARIATION_SELECTORS = range(0xFE00, 0xFE10)

LOOK_ALIKES = str.maketrans(
    "АВЕЅІЈКМНОРСТХаеѕіјорсухΑΒΕΖΗΙΚΜΝΟΡΤΥΧοԁԛԝһɡӀӏ‐‑", "ABESIJKMHOPCTXaesijopcyxABEZHIKMNOPTYXodqwhgIl--"
)
"""Letters of Cyrillic, Greek and phonetic scripts that look like Latin ones, and hyphens."""


def appearance(name: str) -> str:
    """The name as a reader sees it: in Unicode's normal form NFC, in Latin letters where others look the same,
    without invisible characters and outer spaces."""
    shown = (
        character for character in _normal(name)
        if unicodedata.category(character) not in ("Cc", "Cf") and ord(character) not in VARIATION_SELECTORS
    )  # fmt: skip
    return " ".join("".join(shown).translate(LOOK_ALIKES).split())


def spelled_as_known(labels: np.ndarray, known: Sequence[str | int | bool]) -> np.ndarray:
    """Labels [N] in the spelling of the known ones: names that are equal in NFC are one class. Two names that only look
    the same are refused. Numbers stay as they are."""
    if labels.dtype.kind != "U":
        return labels
    seen = {appearance(name): name for name in known if isinstance(name, str)}
    known_names, new, spelling = set(known), dict[str, str](), dict[str, str]()
    for name in np.unique(labels).tolist():
        look = appearance(name)
        spelling[name] = name if name in known_names else seen.get(look, name)
        other = new.setdefault(look, name)
        if other == name and _normal(spelling[name]) != _normal(name):
            other = spelling[name]
        if other != name:
            raise UserError(f"class names {_shown(name)} and {_shown(other)} look the same; rename one of them")
    return np.array([spelling[name] for name in labels.tolist()])


def _normal(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _shown(name: str) -> str:
    """The name with invisible characters as escapes."""
    return ascii(name) if appearance(name) != name else repr(harmless(name))
