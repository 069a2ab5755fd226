"""The complete description of a run: `RunConfig`, recipes and dotted overrides."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, NonNegativeInt, PositiveInt, SerializeAsAny, ValidationError, field_validator

from gatf import plugins
from gatf.config.legacy import current, current_recipe
from gatf.data.augment import STEPS, split_step
from gatf.devices import Determinism
from gatf.errors import UserError, near_misses
from gatf.io.parsing import parse_yaml
from gatf.methods import METHODS, is_outside, method_class
from gatf.methods.parts.memory import RULES
from gatf.nets import BACKBONES
from gatf.settings import (
    BackboneConfig,
    DataConfig,
    MethodConfig,
    OptimisationConfig,
    ScenarioConfig,
    Strict,
    deep_merge,
    explain,
    flat,
)

PER_METHOD, PRESETS = "per_method", "presets"
ELSEWHERE = frozenset((
    "data.root", "data.hub", "data.workers", "device", "deterministic", "checkpoint_every", "diagnostics",
    "keep_networks",
))  # fmt: skip
"""Settings that do not change the result: a resumed run may change them."""


class RunConfig(Strict):
    """Everything a run depends on. It is saved with the results and suffices to repeat the run."""

    data: DataConfig = DataConfig()
    scenario: ScenarioConfig = ScenarioConfig()
    backbone: BackboneConfig = BackboneConfig()
    optimisation: OptimisationConfig = OptimisationConfig()
    method: SerializeAsAny[MethodConfig]
    seed: NonNegativeInt = 0
    """Random seed of everything except the class order (`class_order_seed`)."""
    class_order_seed: NonNegativeInt | None = 1993
    """Seed of a random class order; null: `seed`, so that each seed has its own order."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: a CUDA device if there is one, else the CPU. `mps` is refused, because Apple's GPUs lack the float64 that
    the geometry needs."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "auto"] = "32-true"
    """Precision of the networks; the geometry always uses float64. auto: bfloat16 if the hardware computes it; results
    then depend on the machine."""
    compile: bool | Literal["reduce-overhead"] = False
    """Compile backbone and teacher with torch.compile, which needs a C++ compiler. reduce-overhead: also record CUDA
    graphs (docs/gpu.md)."""
    deterministic: Determinism = "auto"
    """For CUDA devices. auto: deterministic cuDNN and cuBLAS algorithms, no TF32. true: also refuse operations without
    a deterministic implementation. false: the fastest algorithms, and TF32."""
    diagnostics: bool = False
    """Measure drift, margins and transport errors on old images. The method cannot access them; results stay equal."""
    checkpoint_every: PositiveInt | None = Field(default=None)
    """Also write a checkpoint every this many epochs. There is always one after each task."""
    keep_networks: bool = False
    """Keep the checkpoints of all tasks, not only the newest two. `gatf explain run --every-task` needs them."""

    @field_validator("method", mode="before")
    @classmethod
    def _choose_method(cls, value: Any) -> Any:
        if isinstance(value, MethodConfig):
            return value
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise ValueError("needs a name: " + ", ".join(METHODS))
        return method_class(value["name"]).Config.model_validate(value)

    @property
    def order_seed(self) -> int:
        """Seed of a random class order."""
        return self.seed if self.class_order_seed is None else self.class_order_seed

    def to_yaml(self) -> str:
        return str(yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def with_overrides(values: dict[str, Any], overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """A config with overrides, which are dotted paths."""
    values = current(values)
    for path, value in (overrides or {}).items():
        values = deep_merge(values, current(nest(path, value), method_name(values)))
    return values


RECIPES, BENCH_RECIPES = "gatf.config.recipes", "gatf.config.recipes.bench"


def recipe_names(package: str = RECIPES) -> list[str]:
    """Recipes shipped with the package."""
    return sorted(entry.name.removesuffix(".yaml") for entry in files(package).iterdir() if _is_yaml(entry.name))


def _is_yaml(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def read_recipe(name_or_file: str, package: str = RECIPES) -> dict[str, Any]:
    """A shipped recipe by name, or any YAML file."""
    if _is_yaml(name_or_file):
        path = Path(name_or_file)
        if not path.is_file():
            raise UserError(f"there is no recipe file {path}")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"recipe '{path}' cannot be read: {error}") from None
    elif name_or_file in recipe_names(package):
        return deepcopy(_shipped(name_or_file, package))
    else:
        hint = near_misses(name_or_file, recipe_names(package))
        raise UserError(f"no recipe is called '{name_or_file}'{hint} (a file must end in .yaml)")
    return _mapping(text, name_or_file)


@cache
def _shipped(name: str, package: str) -> dict[str, Any]:
    return _mapping(files(package).joinpath(f"{name}.yaml").read_text(encoding="utf-8"), name)


def _mapping(text: str, origin: str) -> dict[str, Any]:
    try:
        loaded = parse_yaml(text)
    except ValueError as error:
        raise UserError(f"recipe '{origin}' is not valid YAML: {error}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"recipe '{origin}' must be a mapping of sections such as data, scenario, method")
    return loaded


def load_config(
    recipe: str | Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Layers, later ones win:

    1. the recipe's common sections,
    2. the method's own defaults (before the common sections if the recipe is itself for the chosen method),
    3. the recipe's `per_method` entry,
    4. the recipe's values for the chosen preset, `per_method.<method>.presets.<preset>`,
    5. the overrides (dotted paths).

    What the preset itself changes comes just before the layer that chooses it, so an override `method.preset=pycil`
    beats everything the recipe says of the method in general, while a saved config keeps its own values.

    >>> config = gatf.load_config("digits", method="gatf", overrides={"seed": 1, "method.preset": "plus"})
    >>> config.seed, config.method.readout
    (1, 'rda')
    """
    content = dict(read_recipe(recipe) if isinstance(recipe, str) else recipe or {})
    if isinstance(content.get("method"), str):
        content["method"] = {"name": content["method"]}
    content = current_recipe(content)
    per_method = _section(content.pop(PER_METHOD, None), PER_METHOD)
    own = _section(content.get("method"), "method").get("name")
    name = str(method or (overrides or {}).get("method.name") or own or "gatf")
    chosen = method_class(name)
    if own is not None and own != name:
        content.pop("method")
    entry = dict(_section(per_method.get(name), f"{PER_METHOD}.{name}"))
    of_presets = _known_presets(entry.pop(PRESETS, None) or {}, name, chosen.Config)
    given = with_overrides({"method": {"name": name}}, overrides)
    layers = [content, chosen.defaults] if own != name else [chosen.defaults, content]
    layers += [entry, given]
    at, preset = _choice(layers, chosen.Config)
    _check_not_mixed(content.get("method") or {}, preset, chosen.Config)
    layers.insert(-1, of_presets.get(str(preset)) or {})
    layers.insert(at, chosen.Config.preset_layer(preset))
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = deep_merge(merged, layer)
    return validated(merged)


def _section(value: Any, path: str) -> Mapping[str, Any]:
    """A part of a recipe that must be a mapping; empty where it is left out."""
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise UserError(f"'{path}' of the recipe must be a mapping of settings, not {value!r}")


def _choice(layers: Sequence[Mapping[str, Any]], settings: type[MethodConfig]) -> tuple[int, Any]:
    """The layer that chooses the preset, and the preset; the last layer and the default where none does."""
    for at, layer in reversed(list(enumerate(layers))):
        section = layer.get("method")
        if isinstance(section, Mapping) and "preset" in section:
            return at, section["preset"]
    return len(layers) - 1, next(iter(settings.preset_names()), None)


def _known_presets(values: Mapping[str, Any], name: str, settings: type[MethodConfig]) -> Mapping[str, Any]:
    """A recipe's values by preset, with checked names."""
    for preset in values:
        if not settings.preset_names():
            raise UserError(f"'{PER_METHOD}.{name}.{PRESETS}': method '{name}' has no presets; leave it out")
        if preset not in settings.preset_names():
            hint = near_misses(str(preset), settings.preset_names())
            raise UserError(f"'{PER_METHOD}.{name}.{PRESETS}': method '{name}' has no preset '{preset}'{hint}")
    return values


def _check_not_mixed(written: Mapping[str, Any], preset: Any, settings: type[MethodConfig]) -> None:
    """A recipe that spells out one preset, as a saved config does, cannot be turned into another: which of its values
    came with the preset is no longer known."""
    spelt = settings.preset_layer(written.get("preset")).get("method", {})
    if spelt and written["preset"] != preset and flat(spelt).keys() <= flat(written).keys():
        raise UserError(
            f"the recipe spells out preset '{written['preset']}' and cannot be run with preset '{preset}': start from "
            "the recipe that it was made from"
        )


def validated(values: Mapping[str, Any]) -> RunConfig:
    """A whole config, checked; one of an earlier version is read with its old names."""
    values = current(values)
    name = method_name(values)
    known = method_class(name) if name is not None and (name in METHODS or is_outside(name)) else None
    try:
        return RunConfig.model_validate(dict(values))
    except ValidationError as error:
        raise explain(error, RunConfig, method=None if known is None else known.Config) from None


def method_name(values: Mapping[str, Any]) -> str | None:
    """The method that an unchecked config names, if it does."""
    name = _sub(values, "method").get("name")
    return name if isinstance(name, str) else None


def untrusted_parts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Kind and name of each part from outside the package that a model with this unchecked config needs, without those
    that the user trusts; nothing is imported."""
    method, backbone, data = (_sub(values, name) for name in ("method", "backbone", "data"))
    steps = data.get("augment") if isinstance(data.get("augment"), list | tuple) else ()
    named: list[tuple[str, Any, Iterable[str]]] = [
        ("method", method.get("name"), METHODS),
        ("readout", method.get("readout"), RULES),
        ("backbone", backbone.get("name"), BACKBONES),
        *(("augmentation", split_step(step)[0], STEPS) for step in steps or () if isinstance(step, str)),
    ]
    trusted = os.environ.get(plugins.TRUST, "").split(",")
    for kind, name, shipped in named:
        if isinstance(name, str) and plugins.is_outside(kind, name, shipped) and name not in trusted:
            yield kind, name


def _sub(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    return section if isinstance(section, Mapping) else {}


def validated_data(values: Mapping[str, Any]) -> DataConfig:
    """The data section alone."""
    try:
        return DataConfig.model_validate(dict(values))
    except ValidationError as error:
        raise explain(error, DataConfig) from None


def parse_overrides(assignments: Iterable[str]) -> dict[str, Any]:
    """`["method.ridge=0.1"]` → `{"method.ridge": 0.1}`; values are YAML."""
    parsed = {}
    for assignment in assignments:
        path, sign, text = assignment.partition("=")
        if not sign or not path:
            raise UserError(f"--set takes path=value, e.g. --set method.ridge=0.1, not '{assignment}'")
        try:
            parsed[path.strip()] = parse_yaml(text)
        except ValueError:
            raise UserError(f"--set {assignment}: the value is not valid YAML") from None
    return parsed


def nest(path: str, value: Any) -> dict[str, Any]:
    """`nest("a.b", 1)` is `{"a": {"b": 1}}`."""
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


def differences(saved: Mapping[str, Any], config: RunConfig) -> list[str]:
    """What a saved config has otherwise than this one, each as a half sentence: `seed was 0, is 1`."""
    before, now = (flat(each.model_dump(mode="json")) for each in (validated(saved), config))
    paths = [path for path in {**before, **now} if path not in ELSEWHERE and before.get(path) != now.get(path)]
    return [f"{path} was {_shown(before.get(path))}, is {_shown(now.get(path))}" for path in paths]


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)
