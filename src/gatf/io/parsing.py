"""Text from a stranger as a tree of values. What cannot be one is a `ValueError` that says why in half a sentence."""

import json
from typing import Any

import yaml

MOST_VALUES = 200_000
"""Values that a tree of YAML may have when it is written out: a few lines of references can stand for billions."""


def parse_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_yaml(text: str) -> Any:
    """Plain values only; a tag that asks for anything else is refused."""
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
    """Values in a tree, those behind references as often as they are referred to."""
    if not isinstance(tree, (dict, list)):
        return 1
    if id(tree) not in known:
        values = tree.values() if isinstance(tree, dict) else tree
        known[id(tree)] = 1 + sum(_size(value, known) for value in values)
    return known[id(tree)]
