"""The model card: classes, accuracy and usage of a model, as Markdown."""

import re
import shlex
from pathlib import Path
from typing import Any

from gatf.io.text import harmless
from gatf.model.file import describe
from gatf.model.record import UpdateRecord

OWN = "<!-- Written by gatf, and again at every push. Remove this line to keep a card of your own. -->"
"""Marks a card that may be replaced; an edited card does not have this line."""
MOST = 200
"""Classes that a card names."""
_HEADER = """---
library_name: gatf
pipeline_tag: {task}-classification
tags:
- gatf
- continual-learning
- class-incremental-learning
---
"""
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")


def card(path: Path, address: str) -> str:
    """The card of a model file at an address (a repository or a folder).

    Class names and other text from the file are escaped, so they cannot become Markdown, HTML or links.
    """
    description, config, history, header = describe(path)
    address = harmless(address)
    name = address.rstrip("/").rpartition("/")[2]
    kept = history[-1].bytes_per_class
    vectors = len(description.shape) == 1
    noun, items, example = ("vector", "vectors", "vectors.npy") if vectors else ("image", "images", "photo.jpg")
    facts = {
        items: f"{description.shape[0]} numbers" if vectors else _pixels(*description.shape[:2]),
        "network": _text(config.backbone),
        "method": f"`{config.method.name}`, {kept:,} bytes per class",
        "written by": f"gatf {_text(description.gatf)}",
        "digest": f"`{header.digest}`",
    }
    more = f" and {len(description.labels) - MOST} more" if len(description.labels) > MOST else ""
    return "\n".join(
        [
            f"{_HEADER.format(task='tabular' if vectors else 'image')}{OWN}",
            "",
            f"# {_text(name)}",
            "",
            f"A classifier of {items} that knows {_number(len(description.labels), 'class', 'classes')}, taught in "
            f"{_number(description.updates, 'update')}. It can learn more classes without its old training {items}.",
            "",
            "## Use",
            "",
            *([] if vectors else _python(address)),
            "```console",
            "$ pip install 'gatf-cil[hub]'",
            f"$ gatf pull {shlex.quote(address)} --out model.gatf",
            f"$ gatf predict model.gatf {example}",
            "```",
            "",
            "## Classes",
            "",
            f"{', '.join(_text(label) for label in description.labels[:MOST])}{more}",
            "",
            "| | |",
            "|---|---|",
            *(f"| {what} | {value} |" for what, value in facts.items()),
            "",
            "## Accuracy",
            "",
            f"| update | date | new classes | {items} | accuracy on new classes % | older classes, expected % |",
            "|---:|---|---:|---:|---:|---:|",
            *map(_row, history),
            "",
            f"Held-out {items} are classified among all classes known at that update. The accuracy on older classes is "
            f"a forecast, because their {items} are deleted.",
            *(["", *(f"- {_text(warning)}" for warning in history[-1].warnings)] if history[-1].warnings else []),
            "",
            "## Limits",
            "",
            f"- The model assigns one of these classes to every {noun}, also to {items} of other things, unless "
            f"rejection of unknown {items} is requested.",
            "- The file contains tensors and a JSON description with a checksum. Loading it runs no code.",
            f"- The file contains weights and statistics per class, no {items}. Statistics of a class with very few "
            f"{items} can still reveal something about them.",
            "",
        ]
    )


def _pixels(channels: int, side: int) -> str:
    return f"{side}×{side} pixels, {'grey' if channels == 1 else 'colour'}; others are resized"


def _python(address: str) -> list[str]:
    return [
        "```python",
        "from gatf import IncrementalClassifier",
        "",
        f"clf = IncrementalClassifier.from_pretrained({address!r})",
        'clf.predict(["photo.jpg"])',
        "clf.partial_fit(new_images, new_labels)  # more classes; old images are not needed",
        "```",
        "",
    ]


def _row(record: UpdateRecord) -> str:
    cells: tuple[Any, ...] = (
        record.number,
        _text(record.date[:10]),
        record.classes_added,
        f"{record.images:,}",
        _percent(record.shown_accuracy),
        _percent(record.expected_old),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _text(value: object) -> str:
    """Text with Markdown escaped."""
    return _PUNCTUATION.sub(r"\\\g<0>", harmless(value))
