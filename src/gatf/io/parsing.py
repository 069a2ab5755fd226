"""Parsers of untrusted JSON and YAML. Invalid text is a `ValueError` with a short reason."""

import json
from typing import Any

import yaml

MOST_VALUES = 200_000
"""Values that a YAML tree may have with all references expanded. A few lines of references can expand to billions."""


def parse_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_yaml(text: str) -> Any:
    """Plain values only; other tags are refused."""
    try:
        tree = yaml.safe_load(text)
        size = _size(tree, {})
    except RecursionError:
        raise ValueError("it is nested too deeply, or in itself") from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, AttributeError) as error:  # such as a 13th month
        raise ValueError(" ".join(str(error).split())) from None
    if size > MOST_VALUES:
        raise ValueError(f"its references stand for {size} values, more than {MOST_VALUES}")
    return tree


def _size(tree: Any, known: dict[int, int]) -> int:
    """Number of values in a tree with all references expanded."""
    if not isinstance(tree, (dict, list)):
        return 1
    if id(tree) not in known:
        values = tree.values() if isinstance(tree, dict) else tree
        known[id(tree)] = 1 + sum(_size(value, known) for value in values)
    return known[id(tree)]
