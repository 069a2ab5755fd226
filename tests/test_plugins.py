"""Parts that another installed package brings: docs/examples/plugin, which has one of each kind."""

import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import gatf
from gatf.data.augment import parse_augmentation
from gatf.errors import UserError
from gatf.model import file as model_file
from gatf.plugins import GROUPS

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "plugin"
PARTS = {
    "method": "gatf_example:Euclidean",
    "data source": "gatf_example:stripes",
    "backbone": "gatf_example:pooled",
    "augmentation": "gatf_example:Noise",
    "readout": "gatf_example:diagonal",
}
SHORT = {"optimisation.first.epochs": 1, "optimisation.next.epochs": 1, "scenario.tasks": 2}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with the module, as an installer puts it there; without its entry points."""
    shutil.copy(EXAMPLE / "gatf_example.py", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "gatf_example", raising=False)
    return tmp_path


@pytest.fixture
def installed(site: Path) -> dict[str, str]:
    """The module with its entry points; their names by kind."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / f"gatf_example-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"]
    lines = [line for group in groups for line in (f"[{group}]", *(f"{n} = {v}" for n, v in groups[group].items()))]
    (info / "entry_points.txt").write_text("\n".join(lines))
    names = {kind: next(iter(groups[group])) for kind, group in GROUPS.items()}
    assert {kind: groups[GROUPS[kind]][name] for kind, name in names.items()} == PARTS
    return names


def settings(names: dict[str, str]) -> dict[str, Any]:
    """Settings of a run of GATF with the other four parts."""
    step = f"{names['augmentation']}:4"
    chosen = {"data.name": names["data source"], "backbone.name": names["backbone"], "data.augment": [step]}
    return SHORT | chosen | {"method.readout": names["readout"], "backbone.bottleneck": 4}


def test_methods_lists_what_it_adds_and_where_it_comes_from(call: Any, installed: dict[str, str]) -> None:
    code, text, _ = call("methods")
    assert code == 0
    for kind, name in installed.items():
        assert f"{kind} of a plugin: gatf-example 1.0 ({PARTS[kind]})" in text
        assert any(line.startswith(f"{name} ") for line in text.splitlines())
    assert "stripes" in call("data")[1]
    assert "gatf_example" not in sys.modules


@pytest.mark.parametrize("registered", [True, False], ids=["entry points", "module:attribute"])
def test_a_run_uses_all_parts_and_only_a_user_lets_its_model_load(
    site: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, registered: bool
) -> None:
    names = request.getfixturevalue("installed") if registered else PARTS
    config = gatf.load_config("digits", overrides=settings(names))
    summary = gatf.run(config, site / "run")
    assert len(summary.accuracy_matrix) == 2
    saved = yaml.safe_load((site / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert saved["data"]["augment"] == [f"{names['augmentation']}:4"]
    for kind in ("readout", "backbone", "augmentation"):
        monkeypatch.delitem(sys.modules, "gatf_example", raising=False)
        trusted = {names[other] for other in ("readout", "backbone", "augmentation")} - {names[kind]}
        monkeypatch.setenv("GATF_TRUST", ",".join(trusted))
        with pytest.raises(UserError, match=f"needs the {kind} '{names[kind]}' from outside gatf"):
            model_file.load(site / "run")
        assert "gatf_example" not in sys.modules
    monkeypatch.setenv("GATF_TRUST", names["backbone"])
    with pytest.raises(UserError) as refused:
        model_file.load(site / "run")
    advice = str(refused.value).rpartition("GATF_TRUST=")[2]  # the whole of it: one repetition is enough
    assert advice.split(",") == [names["backbone"], names["readout"], names["augmentation"]]
    monkeypatch.setenv("GATF_TRUST", advice)
    assert model_file.load(site / "run").config.method == config.method


def test_a_method_of_a_plugin_runs_by_its_name(site: Path, installed: dict[str, str]) -> None:
    config = gatf.load_config("digits", method="euclidean", overrides={"data.name": "stripes", "scenario.tasks": 2})
    assert gatf.run(config, site / "run").method == "euclidean"


def test_learn_asks_for_consent_first(call: Any, installed: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"readout 'diagonal' is not part of gatf.*GATF_TRUST=diagonal"):
        gatf.IncrementalClassifier(settings={"method.readout": "diagonal"}, epochs=1).fit(
            [[[0] * 8] * 8, [[200] * 8] * 8] * 4, [0, 1] * 4
        )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"data.name": "gatf_example:Noise"}, "data source 'gatf_example:Noise' returns Noise, not a gatf.data.base"),
        ({"backbone.name": "gatf_example:Noise"}, "backbone 'gatf_example:Noise' returns Noise, not a torch module"),
        ({"backbone.name": "gatf_example:lost"}, "module 'gatf_example' has no 'lost'"),
        ({"data.augment": ["gatf_example:Noise:1,2"]}, r"augmentation 'gatf_example:Noise' failed: TypeError"),
        ({"method.readout": "diagnal"}, "no readout is called so"),
    ],
)
def test_a_mistake_is_one_sentence(site: Path, overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        gatf.run(gatf.load_config("digits", overrides=overrides), site / "run")
    assert not (site / "run").exists()


def test_arguments_of_a_step(site: Path) -> None:
    (default, strong) = parse_augmentation(["gatf_example:Noise", "gatf_example:Noise:30"])
    assert (default.strength, strong.strength) == (8, 30)  # type: ignore[attr-defined]
