"""Old names in users' files and commands: where a setting moved, and which settings no longer exist.

Recipes, saved configs, model files and `--set` keep working with the names of earlier versions.
"""

from collections.abc import Mapping
from typing import Any

from gatf.errors import UserError
from gatf.methods import METHODS, is_outside, method_class
from gatf.settings import deep_merge

GATF, RELEASE = "gatf", "gatf-release"
ANY = object()
"""Every value of the retired setting was without effect, given the others."""

GAUSSIANS = {
    "covariance": "covariance.kind", "covariance_rank": "covariance.rank", "expansion": "map.expansion",
    "rda_mixture": "rda.mixture", "rda_shrinkage": "rda.shrinkage",
    "noise_epsilon": "noise.epsilon", "noise_delta": "noise.delta", "noise_clip": "noise.clip",
}  # fmt: skip
ANCHORED = GAUSSIANS | {
    "anchor": "anchor.kind", "ridge": "anchor.ridge", "refresh": "anchor.refresh", "ema": "anchor.ema",
    "map_lr": "map.lr", "map_weight_decay": "map.weight_decay",
}  # fmt: skip
MOVED: dict[str, dict[str, str]] = {
    GATF: ANCHORED | {"final_refresh": "anchor.final_refresh"},
    RELEASE: ANCHORED,
    "adagauss": GAUSSIANS,
    "bicyc": GAUSSIANS,
}
"""Settings of a method by the name they had, and the path they have now. Words became sections."""

RETIRED: dict[str, dict[str, Any]] = {
    GATF: {
        "aga": True, "resurrected": 0, "residual_target": "train", "anchor_rank": ANY, "dead_residual": False,
        "bias_correct": True, "cycle": 0.0, "pairwise": 0.0, "perturb": 0.0,
    },
    RELEASE: {
        "preset": "release", "aga": True, "resurrected": 0, "residual_target": "train", "anchor_rank": ANY,
        "dead_residual": True, "bias_correct": False, "top_aware": True, "distill": ANY, "final_refresh": False,
    },
    "adagauss": {
        "distillation": "projected", "temperature": ANY, "projector": "mlp", "transport": "full",
        "shrink": 0.0, "reduction": "mean", "adapter_milestones": [30, 60, 90],
    },
    "adc": {"clip_pixels": True, "success_filter": True, "normalise": False},
    "ewc": {"fisher_batch": None, "granularity": "batch", "per_task": False},
    "fecam": {"log_guard": ANY},
    "fetril": {
        "recipe": "pycil", "official_epochs": ANY, "decay": ANY, "classifier": "svc", "rank": 1, "fc_epochs": ANY,
        "fc_lr": ANY, "fc_weight_decay": ANY, "fc_batch_size": ANY,
    },
    "ldc": {"solver": "adam", "ridge": ANY, "normalise": False, "projector": "linear", "projector_batch": 128},
    "pass": {"replay": "batch", "kd_reduction": "norm"},
    "sdc": {"normalise": False},
    "lwf base": {"cosine_head": True, "fix_bn": False},
    "stage": {"average": 0.0, "clip_by": "all", "lookahead": None, "lookahead_rate": ANY},
}  # fmt: skip
"""Deleted settings of methods, of base learners and of the stages of `optimisation`, each with the value that means it
was not used."""

ONLY_IN_RELEASE = frozenset({"dead_residual", "bias_correct", "cycle", "pairwise", "perturb"})


def current_method(section: Mapping[str, Any]) -> str | None:
    """The method of an old or new `method` section: GATF's preset `release` became a method."""
    name = section.get("name")
    return RELEASE if name == GATF and section.get("preset") == "release" else name


def current_path(path: str, method: str) -> str:
    """A dotted path in the names of today."""
    section, _, name = path.partition(".")
    if section != "method" or method not in MOVED:
        return path
    return f"method.{MOVED[method].get(name, name)}"


def current(values: Mapping[str, Any], method: str | None = None) -> dict[str, Any]:
    """A config, or one layer of it, in the names of today. `method` names the method where the layer does not."""
    found = dict(values)
    section = found.get("method")
    if isinstance(section, Mapping):
        name = current_method(section) or method
        if "name" in section:
            section = {**section, "name": name}
        found["method"] = _method_section(section, name)
    if isinstance(found.get("optimisation"), Mapping):
        found["optimisation"] = {
            stage: _without_retired(each, "stage", f"optimisation.{stage}.") if isinstance(each, Mapping) else each
            for stage, each in found["optimisation"].items()
        }
    return found


def current_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe in the names of today: also its entries for methods, and those for the preset `release`."""
    found = current(recipe)
    entries = found.get("per_method")
    if not isinstance(entries, Mapping):
        return found
    entries = dict(entries)
    gatf = entries.get(GATF)
    if isinstance(gatf, Mapping) and isinstance(gatf.get("presets"), Mapping) and "release" in gatf["presets"]:
        rest = {name: value for name, value in gatf.items() if name != "presets"}
        presets = dict(gatf["presets"])
        entries.setdefault(RELEASE, deep_merge(rest, presets.pop("release") or {}))
        entries[GATF] = rest | ({"presets": presets} if presets else {})
    found["per_method"] = {
        name: current(entry, name) if isinstance(entry, Mapping) else entry for name, entry in entries.items()
    }
    return found


def _method_section(section: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    shipped = _shipped(name)
    if shipped not in RETIRED and shipped not in MOVED:
        return dict(section)
    if shipped == GATF and section.get("preset") == "release":
        raise UserError("the preset 'release' of gatf is a method of its own now: use --method gatf-release")
    found = dict(section)
    if shipped == RELEASE and isinstance(found.get("anchor"), str):
        del found["anchor"]  # it has one kind
    if shipped == GATF and found.get("aga") is False:
        del found["aga"]
        found = deep_merge(found, {"anchor": {"kind": "none"}})
    for old, path in MOVED.get(shipped, {}).items():
        if old in found and not isinstance(found[old], Mapping):
            part, _, leaf = path.partition(".")
            found = deep_merge({part: {leaf: found.pop(old)}}, found)  # a value under the new name wins
    if isinstance(base := found.get("base"), Mapping) and base.get("name") == "lwf":
        found["base"] = _without_retired(base, "lwf base", "method.base.")
    return _without_retired(found, shipped, "method.")


def _without_retired(section: Mapping[str, Any], table: str, prefix: str) -> dict[str, Any]:
    retired = RETIRED.get(table, {})
    for name, unused in retired.items():
        if name in section and unused is not ANY and section[name] != unused:
            more = ": method gatf-release has it" if table == GATF and name in ONLY_IN_RELEASE else "; remove it"
            raise UserError(f"setting '{prefix}{name}' no longer exists (got {section[name]!r}){more}")
    return {name: value for name, value in section.items() if name not in retired}


def _shipped(name: str | None) -> str:
    """The shipped method that a name means, or that a class of the user's own derives from; "" for none."""
    if name is None or not is_outside(name):
        return name or ""
    own = method_class(name)
    return next((each for each, known in METHODS.items() if issubclass(own, known)), "")
