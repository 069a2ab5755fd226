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
    """The card of a model file at an address (a repository or a folder).

    Class names and other text from the file are escaped, so they cannot become Markdown, HTML or links.
    """
    description, config, history, header = describe(path)
    address = harmless(address)
    name = address.rstrip("/").rpartition("/")[2]
    channels, side, _ = description.shape
    kept = history[-1].bytes_per_class
    facts = {
        "images": f"{side}×{side} pixels, {'grey' if channels == 1 else 'colour'}; others are resized",
        "network": _text(config.backbone),
        "method": f"`{config.method.name}`, {kept:,} bytes per class",
        "written by": f"gatf {_text(description.gatf)}",
        "digest": f"`{header.digest}`",
    }
    more = f" and {len(description.labels) - MOST} more" if len(description.labels) > MOST else ""
    return "\n".join(
        [
            f"{_HEADER}{OWN}",
            "",
            f"# {_text(name)}",
            "",
            f"An image classifier that knows {_number(len(description.labels), 'class', 'classes')}, taught in "
            f"{_number(description.updates, 'update')}. It can learn more classes without its old training images.",
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
            "| update | date | new classes | images | accuracy on new classes % | older classes, expected % |",
            "|---:|---|---:|---:|---:|---:|",
            *map(_row, history),
            "",
            "Held-out images are classified among all classes known at that update. The accuracy on older classes is a "
            "forecast, because their images are deleted.",
            *(["", *(f"- {_text(warning)}" for warning in history[-1].warnings)] if history[-1].warnings else []),
            "",
            "## Limits",
            "",
            "- The model assigns one of these classes to every image, also to images of other things, unless rejection "
            "of unknown images is requested.",
            "- The file contains tensors and a JSON description with a checksum. Loading it runs no code.",
            "- The file contains weights and statistics per class, no images. Statistics of a class with very few "
            "images can still reveal something about them.",
            "",
        ]
    )


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
