"""The card of a model that is handed on: what it knows, how well it answers, and how to use it, as Markdown."""

import re
import shlex
from pathlib import Path
from typing import Any

from gatf.io.text import harmless
from gatf.model.file import describe
from gatf.model.record import UpdateRecord

OWN = "<!-- Written by gatf, and anew at every push. Remove this line to keep a card of your own. -->"
"""Tells a card that may be written over from one that somebody has edited."""
MOST = 200
"""Classes that a card names."""
_HEADER = """---
library_name: gatf
pipeline_tag: image-classification
tags:
- gatf
- image-classification
- continual-learning
- class-incremental-learning
---
"""
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")


def card(path: Path, address: str) -> str:
    """The card of a model file that will be found at an address, which is a repository or a folder.

    Names of classes and whatever else a file's maker could choose are shown as text, not as Markdown, HTML or links.
    """
    told, config, history, header = describe(path)
    address = harmless(address)
    name = address.rstrip("/").rpartition("/")[2]
    channels, side, _ = told.shape
    kept = history[-1].bytes_per_class
    facts = {
        "images": f"{side}×{side} pixels, {'grey' if channels == 1 else 'colour'}; others are resized",
        "network": _text(config.backbone),
        "method": f"`{config.method.name}`, {kept:,} bytes kept for each class",
        "written by": f"gatf {_text(told.gatf)}",
        "digest": f"`{header.digest}`",
    }
    more = f" and {len(told.labels) - MOST} more" if len(told.labels) > MOST else ""
    return "\n".join(
        [
            f"{_HEADER}{OWN}",
            "",
            f"# {_text(name)}",
            "",
            f"An image classifier that knows {_number(len(told.labels), 'class', 'classes')}, taught in "
            f"{_number(told.updates, 'update')}. It can learn more classes without its old training images.",
            "",
            "## Use",
            "",
            "```python",
            "# pip install 'gatf-cil[hub]'",
            "from gatf import IncrementalClassifier",
            "",
            f"clf = IncrementalClassifier.from_pretrained({address!r})",
            'clf.predict(["photo.jpg"])',
            "clf.partial_fit(new_images, new_labels)  # more classes; old images are not needed",
            "```",
            "",
            "```console",
            f"$ gatf pull {shlex.quote(address)} --out model.gatf",
            "$ gatf predict model.gatf photo.jpg",
            "```",
            "",
            "## What it knows",
            "",
            f"{', '.join(_text(label) for label in told.labels[:MOST])}{more}",
            "",
            "| | |",
            "|---|---|",
            *(f"| {what} | {value} |" for what, value in facts.items()),
            "",
            "## How well it answers",
            "",
            "| update | date | new classes | images | right % of images kept back | older classes, expected % |",
            "|---:|---|---:|---:|---:|---:|",
            *map(_row, history),
            "",
            "Images kept back from an update are answered among all classes known then. What is expected of older "
            "classes is an estimate: their images were gone.",
            *(["", *(f"- {_text(warning)}" for warning in history[-1].warnings)] if history[-1].warnings else []),
            "",
            "## Limits",
            "",
            "- Every image gets one of these classes as its answer, also one that shows something else, unless the "
            "rejection of unknown images is asked for.",
            "- The file is tensors and a JSON description under a checksum. Loading it runs no code.",
            "- It holds weights and statistics of each class, no images. Statistics of a class with very few images "
            "can still tell something about them.",
            "",
        ]
    )


def _row(record: UpdateRecord) -> str:
    cells: tuple[Any, ...] = (
        record.number,
        _text(record.date[:10]),
        record.classes_added,
        f"{record.images:,}",
        _percent(record.accuracy_new),
        _percent(record.expected_old),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _text(value: object) -> str:
    """Text that Markdown shows as it is."""
    return _PUNCTUATION.sub(r"\\\g<0>", harmless(value))
