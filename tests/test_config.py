import re
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from gatf.config import RunConfig, load_config, nest, parse_overrides, read_recipe, recipe_names, validated
from gatf.errors import UserError
from gatf.methods import METHODS
from gatf.methods.gatf import GATFConfig
from gatf.methods.parts.anchor import AnchorConfig
from gatf.methods.parts.distillation import LwfBaseConfig
from gatf.methods.parts.embedding import TripletBaseConfig
from gatf.settings import KINDS, deep_merge, flat


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
        ("method.anchor.rigde", 0.1, ["method.anchor.rigde", "ridge"]),
        ("method.rigde", 0.1, ["method.rigde", "method.anchor.ridge"]),
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


def test_a_preset_fills_in_what_the_user_did_not_say() -> None:
    overrides = {"method.preset": "plus", "method.topology": 2.0, "method.anchor.ridge": 0.5}
    config = load_config("digits", overrides=overrides).method
    assert isinstance(config, GATFConfig)
    assert (config.topology, config.readout) == (2.0, "rda")
    assert config.anchor == AnchorConfig(kind="identity", ridge=0.5, refresh=2, final_refresh=True)


@pytest.mark.parametrize("recipe", recipe_names())
def test_recipes_repeat_no_default(recipe: str) -> None:
    """Whatever a method's entry says changes something: what repeats a default hides where the methods differ."""
    content = read_recipe(recipe)
    for method, entry in content.get("per_method", {}).items():
        for path in flat(entry):
            keys = path.split(".")
            if keys[-1] == "name" and keys[-2] in KINDS:  # says whose the others are: presets may differ
                continue
            chosen = {"method.preset": keys[1]} if keys[0] == "presets" else {}
            less = deepcopy(content)
            section = less["per_method"][method]
            for key in keys[:-1]:
                section = section[key]
            del section[keys[-1]]
            with_it = load_config(content, method=method, overrides=chosen)
            with suppress(UserError):  # the others need it
                without = load_config(less, method=method, overrides=chosen)
                assert with_it != without, f"per_method.{method}.{path} changes nothing"


PRESETS = [(method, preset) for method in METHODS for preset in METHODS[method].Config.preset_names()]


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize(("method", "preset"), PRESETS)
def test_a_preset_overrides_the_recipe_and_the_user_overrides_the_preset(recipe: str, method: str, preset: str) -> None:
    usual = flat(load_config(recipe, method=method).model_dump(mode="json"))
    of_recipe = (read_recipe(recipe).get("per_method", {}).get(method) or {}).get("presets", {}).get(preset, {})
    changes = flat(deep_merge(METHODS[method].Config.preset_layer(preset), of_recipe))
    chosen = load_config(recipe, method=method, overrides={"method.preset": preset})
    values = flat(chosen.model_dump(mode="json"))
    assert values["method.preset"] == preset
    assert {path: values[path] for path in changes} == changes
    for path, value in changes.items():
        if type(value) in (int, float) and isinstance(usual.get(path), int | float):  # switches may exclude each other
            said = load_config(recipe, method=method, overrides={"method.preset": preset, path: usual[path]})
            assert flat(said.model_dump(mode="json"))[path] == usual[path]


@pytest.mark.parametrize("method", METHODS)
def test_the_default_preset_has_no_values_of_its_own(method: str) -> None:
    settings = METHODS[method].Config
    names = settings.preset_names()
    if names:
        assert settings.model_fields["preset"].default == names[0]
    assert set(settings.presets) == set(names[1:])


def lwf_recipe(**entry: object) -> dict[str, object]:
    """A recipe of ten epochs whose `per_method` entry for lwf has these sections."""
    return {"optimisation": {"first": {"epochs": 10}, "next": {"epochs": 10}}, "per_method": {"lwf": entry}}


def distill(recipe: dict[str, object], **overrides: object) -> float:
    changes = {f"method.{name}": value for name, value in overrides.items()}
    return load_config(recipe, method="lwf", overrides=changes).method.distill  # type: ignore[attr-defined,no-any-return]


def test_a_preset_comes_just_before_the_layer_that_chooses_it() -> None:
    recipe = lwf_recipe(method={"distill": 5.0}, presets={"paper": {"method": {"distill": 7.0}}})
    assert distill(recipe) == 5.0
    assert distill(recipe, preset="pycil") == 3.0
    assert distill(recipe, preset="pycil", distill=6.0) == 6.0
    assert distill(recipe, preset="paper") == 7.0  # the recipe's own value for this preset, not the paper's 1
    assert distill(recipe, preset="paper", distill=6.0) == 6.0
    chosen_by_recipe = lwf_recipe(method={"preset": "pycil", "distill": 5.0})
    assert distill(chosen_by_recipe) == 5.0
    assert distill(lwf_recipe(method={"preset": "pycil"})) == 3.0
    assert distill(chosen_by_recipe, preset="paper") == 1.0


def test_values_of_a_recipe_for_a_preset_may_be_of_any_section() -> None:
    layer = {"data": {"augment": ["flip"]}, "scenario": {"tasks": 3}, "optimisation": {"next": {"epochs": 7}}}
    recipe = lwf_recipe(presets={"facil": layer, "ncm": {"seed": 4}})
    for overrides in ({}, {"method.preset": "facil"}):  # the default preset, also when nobody names it
        config = load_config(recipe, method="lwf", overrides=overrides)
        assert (config.data.augment, config.scenario.tasks, config.seed) == (("flip",), 3, 0)
        assert (config.optimisation.first.epochs, config.optimisation.next.epochs) == (10, 7)
    config = load_config(recipe, method="lwf", overrides={"method.preset": "ncm"})
    assert (config.data.augment, config.scenario.tasks, config.seed) == ((), 10, 4)
    assert load_config(recipe, method="lwf", overrides={"method.preset": "ncm", "seed": 5}).seed == 5


def test_an_unknown_preset_in_a_recipe_is_named() -> None:
    with pytest.raises(UserError, match=r"per_method\.lwf\.presets.*no preset 'picyl'; did you mean 'pycil'"):
        load_config(lwf_recipe(presets={"picyl": {}}), method="lwf")
    with pytest.raises(UserError, match="method 'slda' has no presets"):
        load_config({"per_method": {"slda": {"presets": {"paper": {}}}}}, method="slda")
    with pytest.raises(UserError, match=r"method\.preset.*'pycil'"):
        load_config("digits", method="lwf", overrides={"method.preset": "picyl"})
    with pytest.raises(UserError, match=r"method\.preset"):
        load_config("digits", method="lwf", overrides={"method.preset": ["pycil"]})


def test_a_saved_config_keeps_its_values_and_is_not_mixed_with_another_preset() -> None:
    overrides = {"method.preset": "pycil", "method.distill": 6.0, "optimisation.next.epochs": 9}
    config = load_config("digits", method="lwf", overrides=overrides)
    saved = yaml.safe_load(config.to_yaml())
    assert load_config(saved) == config
    with pytest.raises(UserError, match="spells out preset 'pycil'"):
        load_config(saved, overrides={"method.preset": "facil"})
    usual = yaml.safe_load(load_config("digits", method="lwf").to_yaml())  # the default preset leaves nothing behind
    assert load_config(usual, overrides=overrides) == config


def test_set_values_are_yaml() -> None:
    assert parse_overrides(["a.b=1e-2", "c=[1, 2]", "d=null", "e=x"]) == {
        "a.b": "1e-2",
        "c": [1, 2],
        "d": None,
        "e": "x",
    }
    assert load_config("digits", overrides=parse_overrides(["method.anchor.ridge=1e-2"])).method.anchor.ridge == 0.01
    with pytest.raises(UserError, match="path=value"):
        parse_overrides(["method.ridge"])


def test_nest_and_merge() -> None:
    merged = deep_merge({"a": {"b": 1, "c": 2}, "d": 3}, nest("a.b", 5))
    assert merged == {"a": {"b": 5, "c": 2}, "d": 3}
    assert flat(merged) == {"a.b": 5, "a.c": 2, "d": 3}


@pytest.mark.parametrize(
    ("below", "over", "merged"),
    [
        ("triplet", {"margin": 0.5}, {"name": "triplet", "margin": 0.5}),
        ({"margin": 0.5}, "triplet", {"name": "triplet", "margin": 0.5}),
        ({"name": "triplet", "margin": 0.5}, "triplet", {"name": "triplet", "margin": 0.5}),
        ({"name": "triplet", "margin": 0.5}, "lwf", {"name": "lwf"}),
        ({"name": "triplet", "margin": 0.5}, {"name": "lwf"}, {"name": "lwf"}),
        ({"name": "triplet", "margin": 0.5}, {"margin": 1.0}, {"name": "triplet", "margin": 1.0}),
    ],
)
def test_a_base_learner_of_another_name_starts_from_defaults(below: object, over: object, merged: object) -> None:
    assert deep_merge({"base": below}, {"base": over}) == {"base": merged}
    assert deep_merge({"data": {"name": "glyphs", "root": "x"}}, {"data": {"name": "digits"}}) == {
        "data": {"name": "digits", "root": "x"}
    }


class TestBaseLearner:
    def load(self, **overrides: object) -> RunConfig:
        return load_config("digits", method="sdc", overrides={k.replace("__", "."): v for k, v in overrides.items()})

    def test_a_word_a_section_or_dotted_settings(self) -> None:
        word, section = self.load(method__base="triplet"), self.load(method__base={"name": "triplet"})
        assert word == section == self.load(method__base__name="triplet")
        assert self.load(method__base="triplet", method__base__margin=0.5).method.base.margin == 0.5
        assert self.load(method__base__distill=3.0).method.base == LwfBaseConfig(distill=3.0)
        assert self.load(method__preset="paper", method__base__margin=0.5).method.base == TripletBaseConfig(
            softmax_epochs=200, margin=0.5
        )

    @pytest.mark.parametrize("base", ["lwf", "triplet"])
    def test_a_saved_config_is_enough_to_repeat_the_run(self, base: str) -> None:
        """Also where the preset has another base."""
        config = self.load(method__preset="paper", method__base=base)
        assert config.method.base.name == base
        saved = yaml.safe_load(config.to_yaml())
        assert validated(saved) == config == load_config(saved)

    @pytest.mark.parametrize(
        ("overrides", "sentence"),
        [
            ({"method__base__margin": 0.5}, "unknown setting 'method.base.margin': triplet has it, but not lwf"),
            (
                {"method__base": "triplet", "method__base__distill": 1.0},
                "unknown setting 'method.base.distill': lwf has it, but not triplet",
            ),
            ({"method__margin": 0.5}, "unknown setting 'method.margin'; did you mean 'method.base.margin'?"),
            ({"method__base__distil": 0.5}, "unknown setting 'method.base.distil'; did you mean 'distill'?"),
            ({"method__base__distill": -1}, "setting 'method.base.distill': "),
            ({"method__base": "tripplet"}, "no base learner is called 'tripplet'; did you mean 'triplet'?"),
            ({"method__base": 3}, "setting 'method.base': "),
        ],
    )
    def test_what_has_no_effect_is_refused(self, overrides: dict[str, object], sentence: str) -> None:
        with pytest.raises(UserError, match=re.escape(sentence)):
            self.load(**overrides)


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


def test_a_recipe_may_name_its_method_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("data: {name: digits}\nmethod: adagauss\n", encoding="utf-8")
    assert load_config(str(tmp_path / "mine.yaml")).method.name == "adagauss"
    assert load_config(str(tmp_path / "mine.yaml"), method="gatf").method.name == "gatf"
    for text, words in (
        ("method: [gatf]", "'method'"),
        ("per_method: gatf", "'per_method'"),
        ("data: digits", "'data'"),
    ):
        (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=words):
            load_config(str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("per_method: {gatf: 3}", encoding="utf-8")
    with pytest.raises(UserError, match=r"'per_method\.gatf'"):
        load_config(str(tmp_path / "mine.yaml"))


def test_references_that_stand_for_billions_of_values_are_refused(tmp_path: Path) -> None:
    """Each line refers ten times to the one before it."""
    lines = ["a0: &a0 [1]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (tmp_path / "laughs.yaml").write_text("\n".join(lines))
    with pytest.raises(UserError, match="references stand for"):
        read_recipe(str(tmp_path / "laughs.yaml"))
    (tmp_path / "itself.yaml").write_text("a: &a [*a]")
    with pytest.raises(UserError, match="nested too deeply, or in itself"):
        read_recipe(str(tmp_path / "itself.yaml"))
