"""Settings by the names of earlier versions: in saved configs, recipes and overrides."""

from typing import Any

import pytest
import yaml

from gatf.config import load_config, validated, with_overrides
from gatf.errors import UserError

OLD_STAGE = {"average": 0.0, "clip_by": "all", "lookahead": None, "lookahead_rate": 0.8}
OLD_GATF = {
    "top_aware": True, "aga": True, "dead_residual": False, "residual_target": "train", "refine": False,
    "anchor": "sylvester", "anchor_rank": 8, "ridge": 0.05, "refresh": 4, "ema": 0.8, "bias_correct": True,
    "final_refresh": False, "resurrected": 0, "cycle": 0.0, "pairwise": 0.0, "perturb": 0.0,
}  # fmt: skip
RELEASE = {
    "preset": "release", "anchor": "ridge", "dead_residual": True, "bias_correct": False, "matched_noise": False,
    "cycle": 1.5, "pairwise": 0.05,
}  # fmt: skip


def saved(method: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """A config as an earlier version wrote it."""
    stages = {"first": {"lr": 0.1, **OLD_STAGE}, "next": {"lr": 0.01, **OLD_STAGE}}
    return {"data": {"name": "digits"}, "optimisation": stages, "method": {"name": "gatf", **method}, **sections}


@pytest.mark.parametrize("read", [validated, load_config])
@pytest.mark.parametrize(
    ("changes", "kind", "final"),
    [
        ({}, "sylvester", False),
        ({"preset": "plus", "anchor": "identity", "final_refresh": True}, "identity", True),
        ({"aga": False, "refine": True}, "none", False),
    ],
)
def test_a_saved_config_keeps_its_anchor(read: Any, changes: dict[str, Any], kind: str, final: bool) -> None:
    config = read(saved(OLD_GATF | changes))
    anchor = config.method.anchor
    assert (anchor.kind, anchor.ridge, anchor.refresh, anchor.ema) == (kind, 0.05, 4, 0.8)
    assert anchor.final_refresh == final
    assert config.optimisation.next.lr == 0.01
    assert validated(yaml.safe_load(config.to_yaml())) == config


@pytest.mark.parametrize("read", [validated, load_config])
def test_the_preset_release_became_a_method(read: Any) -> None:
    config = read(saved(OLD_GATF | RELEASE, data={"name": "digits", "val_fraction": 0.1})).method
    assert (config.name, config.cycle, config.anchor.ridge, config.matched_noise) == ("gatf-release", 1.5, 0.05, False)


@pytest.mark.parametrize("method", ["gatf", "gatf-release", "adagauss", "bicyc"])
def test_settings_that_belong_together_became_sections(method: str) -> None:
    old = {
        "covariance": "lowrank", "covariance_rank": 4, "expansion": 16, "rda_mixture": 0.5, "rda_shrinkage": 0.1,
        "noise_epsilon": 2.0, "noise_delta": 1e-6, "noise_clip": 3.0,
    }  # fmt: skip
    given = {f"method.{name}": value for name, value in old.items()}
    for config in (validated(saved(old | {"name": method})), load_config("digits", method=method, overrides=given)):
        found = config.method.model_dump()
        assert found["covariance"] == {"kind": "lowrank", "rank": 4}
        assert found["rda"] == {"mixture": 0.5, "shrinkage": 0.1}
        assert found["noise"] == {"epsilon": 2.0, "delta": 1e-6, "clip": 3.0}
        assert found["map"]["expansion"] == 16


def test_the_rates_of_the_maps_became_a_section() -> None:
    config = validated(saved(OLD_GATF | {"map_lr": 0.05, "map_weight_decay": 1e-4}))
    assert config.method.map.model_dump() == {"expansion": 32, "lr": 0.05, "weight_decay": 1e-4}


def test_a_recipe_that_chooses_the_preset_release() -> None:
    chosen = load_config({"data": {"name": "digits"}, "method": {"name": "gatf", "preset": "release"}})
    assert chosen == load_config({"data": {"name": "digits"}, "method": "gatf-release"})
    assert chosen.data.val_fraction == 0.1
    entry = {"method": {"topology": 0.5, "refresh": 3}, "presets": {"release": {"method": {"cycle": 0.5}, "seed": 4}}}
    recipe = {"per_method": {"gatf": entry}}
    paper, release = (load_config(recipe, method=name) for name in ("gatf", "gatf-release"))
    assert (paper.method.topology, paper.method.anchor.refresh, paper.seed) == (0.5, 3, 0)
    found = release.method
    assert (found.topology, found.anchor.refresh, found.cycle, release.seed) == (0.5, 3, 0.5, 4)


def test_overrides_by_old_names() -> None:
    overrides = {"method.ridge": 0.2, "method.refresh": 3, "method.anchor": "identity"}
    anchor = load_config("digits", overrides=overrides).method.anchor
    assert (anchor.kind, anchor.ridge, anchor.refresh) == ("identity", 0.2, 3)
    old = saved(OLD_GATF | {"preset": "plus", "anchor": "identity"})
    anchor = validated(with_overrides(old, {"method.anchor.ridge": 0.3, "method.ema": 0.7})).method.anchor
    assert (anchor.kind, anchor.ridge, anchor.ema) == ("identity", 0.3, 0.7)
    assert load_config("digits", method="dpcr", overrides={"method.ridge": 3.0}).method.ridge == 3.0


@pytest.mark.parametrize(
    ("method", "overrides", "sentence"),
    [
        ("gatf", {"method.resurrected": 20}, "setting 'method.resurrected' no longer exists .got 20.; remove it"),
        ("gatf", {"method.cycle": 2.0}, "'method.cycle' no longer exists .got 2.0.: method gatf-release has it"),
        ("gatf", {"method.preset": "release"}, "use --method gatf-release"),
        ("gatf", {"method.anchor": "procrustes"}, "method.anchor.kind.*'sylvester', 'identity' or 'none'"),
        ("gatf", {"method.ridge": "auto"}, "method.anchor.ridge"),
        ("fetril", {"method.recipe": "official"}, "setting 'method.recipe' no longer exists"),
        ("ldc", {"method.solver": "ridge"}, "setting 'method.solver' no longer exists"),
        ("lwf", {"optimisation.next.average": 0.5}, "setting 'optimisation.next.average' no longer exists"),
        ("lwf", {"optimisation.first.schedule": "dips"}, "optimisation.first.schedule"),
    ],
)
def test_a_retired_setting_that_was_used_is_named(method: str, overrides: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as error:
        load_config("digits", method=method, overrides=overrides)
    assert "\n" not in str(error.value)
