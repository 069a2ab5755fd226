"""What there is to know of a method before running it."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from torch import nn

from gatf.config import PER_METHOD, read_recipe, recipe_names
from gatf.methods import method_class
from gatf.settings import OptimisationConfig, StageConfig, choices, deep_merge, descriptions, flat

POOLED, BOTTLENECK, CLASSES = 512, 64, 100
"""Dimensions of ResNet-18's features without and with the default bottleneck, and classes, for the memory."""


class _Features(nn.Module):
    """Stands for a backbone of a given feature dimension."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.feature_dim = dim
        self.weight = nn.Parameter(nn.init.zeros_(nn.Linear(1, 1).weight))


def bytes_kept(name: str) -> int:
    """Bytes that a method keeps for each class, for the features of ResNet-18."""
    method = method_class(name)
    narrow = deep_merge({"backbone": {"bottleneck": BOTTLENECK}}, method.defaults)["backbone"]["bottleneck"]
    dim = POOLED if narrow is None else narrow
    stage = StageConfig(batch_size=dim + 1)
    optimisation = OptimisationConfig(first=stage, next=stage)
    return method(method.Config.model_validate({"name": name}), _Features(dim), optimisation, 0).bytes_per_class()


def describe(name: str) -> Iterator[str]:
    """Lines for `gatf methods --verbose`."""
    method = method_class(name)
    kept = bytes_kept(name)
    images = "" if method.exemplar_free else ", beside the images"
    yield f"paper    {method.card.citation()}"
    yield f"keeps    {method.card.keeps}: {kept:,} bytes per class, {kept * CLASSES:,} for {CLASSES} classes{images}"
    yield f"trains   {method.card.trains}"
    if method.card.url:
        yield f"url      {method.card.url}"
    recipes = [recipe for recipe in recipe_names() if name in (read_recipe(recipe).get(PER_METHOD) or {})]
    yield f"recipes  {', '.join(recipes) or 'none of its own: every recipe runs it with its defaults'}"
    if method.defaults:
        yield "defaults in other sections"
        yield from _by_section(method.defaults)
    yield "settings"
    yield from _settings(method.Config)
    for preset in method.Config.preset_names():
        changes = method.Config.preset_layer(preset)
        yield f"preset {preset}" if changes else f"preset {preset}: the defaults"
        yield from _by_section(changes)


def _settings(model: type[BaseModel], prefix: str = "  ") -> Iterator[str]:
    """A line for each setting; under one whose name chooses a section, the settings of each section."""
    texts = descriptions(model)
    for field, info in model.model_fields.items():
        if field == "name":
            continue
        value, sections = info.get_default(call_default_factory=True), choices(info)
        if isinstance(value, BaseModel) and not sections:
            yield f"{prefix}{field}: {' '.join(texts.get(field, '').split())}"
            yield from _settings(type(value), f"{prefix}  {field}.")
            continue
        shown = value.name if sections else repr(value)
        yield f"{prefix}{field} = {shown}: {' '.join(texts.get(field, '').split())}"
        for name, section in sections.items():
            yield f"{prefix}  {field}.name = {name}"
            yield from _settings(section, f"{prefix}    {field}.")


def _by_section(layer: dict[str, Any]) -> Iterator[str]:
    """`  optimisation.next: lr=0.1, clip=None`, a line a section."""
    sections: dict[str, list[str]] = {}
    for path, value in flat(layer).items():
        section, _, name = path.rpartition(".")
        sections.setdefault(section, []).append(f"{name}={value!r}")
    for section, values in sections.items():
        yield f"  {section}: {', '.join(values)}"
