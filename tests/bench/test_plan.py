"""Bench recipes: what they ask for, and what is wrong with them in one sentence."""

from pathlib import Path

import pytest

from gatf.bench.plan import load_plan, parse_seeds
from gatf.config import BENCH_RECIPES, recipe_names
from gatf.errors import UserError


@pytest.mark.parametrize("name", recipe_names(BENCH_RECIPES))
def test_every_shipped_bench_is_a_plan(name: str) -> None:
    plan = load_plan(name)
    assert len({run.name for run in plan.runs}) == len(plan.runs)


def test_the_papers_tables() -> None:
    assert len(load_plan("paper-table1").runs) == 12 * 4 * 5
    assert len(load_plan("paper-table2").runs) == 12 * 4 * 5
    ablation = load_plan("paper-table3", seeds="0")
    switches = [
        (run.config.method.top_aware, run.config.method.anchor.kind, run.config.method.refine)  # type: ignore[attr-defined]
        for run in ablation.runs
        if run.setting == "cifar100-t10"
    ]
    assert switches == [
        (False, "none", True), (True, "none", True), (True, "sylvester", True), (True, "sylvester", False),
    ]  # fmt: skip
    assert ablation.runs[0].name == "cifar100-t10/distillation-MLP-refined-seed0"


@pytest.mark.parametrize("bench", ["paper-table1", "paper-table2", "paper-table3"])
def test_the_papers_class_orders(bench: str) -> None:
    """One published order for all seeds on CIFAR-100 and ImageNet-100; another for each seed on the other two."""
    for run in load_plan(bench).runs:
        scenario = run.config.scenario
        if run.setting.startswith(("cifar100", "imagenet100")):
            assert scenario.order == "published"
        else:
            assert (scenario.order, run.config.order_seed) == ("seed", run.config.seed)


def test_the_cpu_protocol() -> None:
    config = load_plan("cifar100-cpu", methods="gatf", seeds="0").runs[0].config
    assert (config.data.max_per_class, config.backbone.width, config.backbone.bottleneck) == (200, 16, 64)
    assert (config.optimisation.first.epochs, config.optimisation.next.epochs) == (30, 30)
    assert (config.optimisation.first.lr, config.optimisation.next.lr) == (0.1, 0.01)
    assert config.optimisation.next.batch_size == 128
    assert config.method.anchor.refresh == 2  # type: ignore[attr-defined]


def test_rows_seeds_and_settings_can_be_chosen(tmp_path: Path) -> None:
    plan = load_plan("digits", methods="gatf,joint", seeds="1-2", overrides={"diagnostics": True})
    assert [run.name for run in plan.runs] == ["gatf-seed1", "gatf-seed2", "joint-seed1", "joint-seed2"]
    assert all(run.config.diagnostics for run in plan.runs)
    assert plan.index()["runs"][1] == {"folder": "gatf-seed2", "setting": "digits", "row": "gatf", "seed": 2}
    assert len(load_plan("paper-table3", methods="gatf", seeds="0").runs) == 16  # every row of the method
    assert [run.row for run in load_plan("cifar100-16px", methods="gatf", seeds="0").runs] == ["gatf"]
    assert load_plan("digits", overrides={"backbone.width": 8}).runs[0].setting == "digits, changed"
    (tmp_path / "own.yaml").write_text(
        "recipe: digits\nseeds: [0]\nmethods: [joint, {row: 'gatf, no anchor', method: gatf}]\n", encoding="utf-8"
    )
    for wanted in ("gatf, no anchor,joint", "joint,gatf, no anchor"):
        assert len(load_plan(str(tmp_path / "own.yaml"), methods=wanted).runs) == 2
    assert parse_seeds("0-2") == [0, 1, 2]
    assert parse_seeds("4,7") == [4, 7]


def test_a_row_may_have_seeds_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("recipe: digits\nseeds: [0]\nmethods: [joint, {row: gatf, method: gatf, seeds: [3, 4]}]\n")
    assert [run.name for run in load_plan(str(path)).runs] == ["joint-seed0", "gatf-seed3", "gatf-seed4"]
    assert [run.name for run in load_plan(str(path), seeds="1").runs] == ["joint-seed1", "gatf-seed1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("recipe: digits\nmethods: [gatf]\n", "seeds"),
        ("methods: [gatf]\nseeds: [0]\n", "either recipe"),
        ("recipe: digits\nrecipes: [digits]\nmethods: [gatf]\nseeds: [0]\n", "either recipe"),
        ("recipe: digits\nmethod: [gatf]\nseeds: [0]\n", "did you mean 'methods'"),
        ("recipe: digits\nmethods: [gaft]\nseeds: [0]\n", "did you mean 'gatf'"),
        (
            "recipe: digits\nmethods: [{row: a, method: gatf, set: {method.rigde: 1}}]\nseeds: [0]\n",
            "'method.anchor.ridge'",
        ),
        ("recipe: digit\nmethods: [gatf]\nseeds: [0]\n", "did you mean 'digits'"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "b.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        load_plan(str(tmp_path / "b.yaml"))


def test_unknown_rows_and_seeds_are_named() -> None:
    with pytest.raises(UserError, match="has no method 'gaft'; did you mean 'gatf'"):
        load_plan("digits", methods="gaft")
    with pytest.raises(UserError, match="--seeds takes numbers"):
        load_plan("digits", seeds="a")
    for backwards in ("3-1", "5-4"):
        with pytest.raises(UserError, match=f"--seeds {backwards} ends before it begins"):
            load_plan("digits", seeds=backwards)


def test_a_method_of_ones_own_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_plan.py").write_text(
        "from gatf.methods.finetune import Finetune\n\nclass Mine(Finetune):\n    name = 'mine_plan:Mine'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plan = load_plan("digits", methods="mine_plan:Mine,gatf", seeds="0")
    assert [(run.row, run.name) for run in plan.runs] == [
        ("mine_plan:Mine", "mine-plan-Mine-seed0"),
        ("gatf", "gatf-seed0"),
    ]
