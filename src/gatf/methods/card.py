"""What a reader wants to know about a method before running it, as data."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True, kw_only=True)
class MethodCard:
    """Publication and properties of a method, for `gatf methods`, the documentation, reports and BibTeX."""

    summary: str
    """One line on how the method works."""
    when: str
    """When to use it, as the rest of a sentence that begins with "Use it"."""
    keeps: str
    """What it stores per class between tasks."""
    trains: str
    """What it trains in a task."""
    authors: tuple[str, ...] = ()
    """Full names in the paper's order; empty where there is no paper."""
    title: str = ""
    venue: str = ""
    journal: bool = False
    """Whether the venue is a journal rather than a conference."""
    year: int | None = None
    url: str = ""

    def citation(self) -> str:
        """`Li & Hoiem, Learning without Forgetting, ECCV 2016`; "no paper" where there is none."""
        if not self.title:
            return "no paper"
        surnames = [_surname(name) for name in self.authors]
        names = f"{surnames[0]} et al." if len(surnames) > 2 else " & ".join(surnames)
        return f"{names}, {self.title}, {self.venue} {self.year}"

    def bibtex(self, key: str) -> str:
        """A BibTeX entry, without the address since a report names none; "" where there is no paper."""
        if not self.title:
            return ""
        kind, place = ("article", "journal") if self.journal else ("inproceedings", "booktitle")
        fields = {
            "author": " and ".join(self.authors), "title": f"{{{self.title}}}", place: self.venue,
            "year": str(self.year),
        }  # fmt: skip
        lines = [f"  {name} = {{{value}}}" for name, value in fields.items() if value]
        return f"@{kind}{{{key}{self.year},\n" + ",\n".join(lines) + "\n}"


def shipped_card(name: str) -> MethodCard:
    """The card of a shipped method, from `cards.yaml`."""
    fields = _shipped()[name]
    return MethodCard(**fields | {"authors": tuple(fields.get("authors", ()))})


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(files("gatf.methods").joinpath("cards.yaml").read_text(encoding="utf-8")))


def _surname(name: str) -> str:
    """The last word, with a particle such as "van de" before it."""
    words = name.split()
    start = next((place for place, word in enumerate(words) if place and word.islower()), len(words) - 1)
    return " ".join(words[start:])
