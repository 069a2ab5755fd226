import pytest
import yaml

from gatf.config import (
    RunConfig,
    deep_merge,
    load_config,
    nest,
    parse_overrides,
    read_recipe,
    recipe_names,
    validated,
)
from gatf.errors import UserError
from gatf.methods import METHODS
from gatf.methods.gatf import GATFConfig


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("method", METHODS)
def test_every_shipped_recipe_is_valid_for_every_method(recipe: str, method: str) -> None:
    assert load_config(recipe, method=method).method.name == method


def test_the_saved_config_is_enough_to_repeat_the_run() -> None:
    config = load_config("digits", method="adagauss", overrides={"seed": 7, "method.samples": 123})
    assert validated(yaml.safe_load(config.to_yaml())) == config


def test_defaults_of_a_method_come_after_the_common_part_of_a_recipe_and_before_its_own() -> None:
    recipe = {"backbone": {"bottleneck": 16}, "per_method": {"joint": {"seed": 3}}}
    assert load_config(recipe, method="gatf").backbone.bottleneck == 16
    assert load_config(recipe, method="finetune").backbone.bottleneck is None  # its own default
    assert load_config(recipe, method="joint").seed == 3
    own = {"method": {"name": "finetune"}, "backbone": {"bottleneck": 16}}
    assert load_config(own).backbone.bottleneck == 16  # written for finetune, so it is meant
    assert load_config(recipe, method="finetune", overrides={"backbone.bottleneck": 8}).backbone.bottleneck == 8


def test_a_recipe_for_one_method_can_be_run_with_another() -> None:
    config = load_config({"method": {"name": "gatf", "ridge": 0.5}, "seed": 4}, method="joint")
    assert (config.method.name, config.seed) == ("joint", 4)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("method.rigde", 0.1, ["method.rigde", "ridge"]),
        ("optimisation.first.epoch", 3, ["optimisation.first.epoch", "epochs"]),
        ("optimisation.first.lr", -1, ["optimisation.first.lr", "greater than 0"]),
        ("scenario.taks", 3, ["scenario.taks", "tasks"]),
        ("sead", 3, ["sead", "seed"]),
        ("method.anchor", "lasso", ["method.anchor", "sylvester"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_have_worked(path: str, value: object, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        load_config("digits", overrides={path: value})
    for word in words:
        assert word in str(error.value)


def test_unknown_method_lists_near_misses() -> None:
    with pytest.raises(UserError, match="did you mean 'adagauss'"):
        load_config("digits", method="adagaus")


def test_nothing_would_train_the_map() -> None:
    with pytest.raises(UserError, match="refine=true"):
        load_config("digits", overrides={"method.top_aware": False, "method.aga": False})


def test_release_preset_fills_in_what_the_user_did_not_say() -> None:
    config = load_config("digits", overrides={"method.preset": "release", "method.cycle": 0.5}).method
    assert isinstance(config, GATFConfig)
    assert (config.anchor, config.cycle, config.pairwise, config.bias_correct) == ("ridge", 0.5, 0.05, False)


def test_set_values_are_yaml() -> None:
    assert parse_overrides(["a.b=1e-2", "c=[1, 2]", "d=null", "e=x"]) == {
        "a.b": "1e-2",
        "c": [1, 2],
        "d": None,
        "e": "x",
    }
    assert load_config("digits", overrides=parse_overrides(["method.ridge=1e-2"])).method.ridge == 0.01
    with pytest.raises(UserError, match="path=value"):
        parse_overrides(["method.ridge"])


def test_nest_and_merge() -> None:
    assert deep_merge({"a": {"b": 1, "c": 2}, "d": 3}, nest("a.b", 5)) == {"a": {"b": 5, "c": 2}, "d": 3}


def test_recipe_errors(tmp_path) -> None:
    with pytest.raises(UserError, match="no recipe is called 'digit'; did you mean 'digits'"):
        read_recipe("digit")
    with pytest.raises(UserError, match="there is no recipe file"):
        read_recipe(str(tmp_path / "x.yaml"))
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1, ", encoding="utf-8")
    with pytest.raises(UserError, match="not valid YAML"):
        read_recipe(str(broken))
    broken.write_text("!!python/object/apply:os.system ['true']", encoding="utf-8")
    with pytest.raises(UserError, match="not valid YAML"):  # a recipe never runs code
        read_recipe(str(broken))


def test_configs_are_frozen() -> None:
    config = load_config("digits")
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3  # type: ignore[misc]
    assert isinstance(config, RunConfig)
