"""A method that nobody registered: named by where it lies, run, resumed, compared, and never brought by a file."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from gatf.config import load_config
from gatf.errors import UserError
from gatf.io import container
from gatf.model import file as model_file
from gatf.network_reuse import first_training

ROOT = Path(__file__).parents[2]
SHORT = ["--epochs", "1", "--device", "cpu", "--no-report", "--quiet", "--set", "scenario.stop_after=2"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with the documentation's example in it."""
    page = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "mine.py").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def test_a_run_names_it_and_resumes(call: Any, folder: Path) -> None:
    code, _, error = call("run", "--method", "mine:Mine", "--set", "method.strength=3", "--out", "run", *SHORT)
    assert (code, error) == (0, "")
    saved = yaml.safe_load((folder / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert saved["method"] == {"name": "mine:Mine", "strength": 3.0}
    before = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    for left in ("summary.json", "model.safetensors"):
        (folder / "run" / left).unlink()
    newest = max((folder / "run" / "checkpoints").iterdir())
    newest.unlink()
    code, _, error = call("run", "--resume", "run", "--no-report", "--quiet")
    assert (code, error) == (0, "")
    after = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    assert after["accuracy_matrix"] == before["accuracy_matrix"]


def test_the_folder_of_a_run_has_no_colon(call: Any, folder: Path) -> None:
    assert call("run", "--method", "mine:Mine", *SHORT)[0] == 0
    (made,) = (folder / "runs").iterdir()
    assert made.name.startswith("digits-mine.Mine-seed0-")


def test_a_bench_has_a_row_of_it(call: Any, folder: Path) -> None:
    recipe = {"recipe": "digits", "seeds": [0], "methods": ["finetune", {"row": "mine", "method": "mine:Mine"}]}
    (folder / "own.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    short = ["--set", "scenario.stop_after=2"]
    for stage in ("first", "next"):
        short += ["--set", f"optimisation.{stage}.epochs=1"]
    code, text, error = call("bench", "own.yaml", "--out", "bench", *short)
    assert code == 0, error
    assert re.search(r"mine\b.*\d", text)
    assert (folder / "bench" / "mine-seed0" / "summary.json").is_file()


def test_settings_are_checked_like_those_of_ours(folder: Path) -> None:
    assert load_config("digits", method="mine:Mine").backbone.bottleneck is None  # its own default
    with pytest.raises(UserError, match=r"unknown setting 'method.strenght'; did you mean 'strength'\?"):
        load_config("digits", method="mine:Mine", overrides={"method.strenght": 1})


class TestSubclass:
    """The first thing a researcher tries: a shipped method with two more settings and one more term."""

    @pytest.fixture
    def mine(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        """The second example of docs/add-a-method.md, in a module of its own."""
        page = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
        (example,) = re.findall(r"<!-- example: subclass -->\n```python[^\n]*\n(.*?)```", page, flags=re.DOTALL)
        (folder / "my_gatf.py").write_text(example, encoding="utf-8")
        monkeypatch.delitem(sys.modules, "my_gatf", raising=False)
        return "my_gatf:MyGATF"

    def test_runs_with_its_own_settings_and_those_of_the_shipped_method(
        self, call: Any, folder: Path, mine: str
    ) -> None:
        own = ["--set", "method.residual_share=0.8", "--set", "method.residual_limit=2", "--set", "method.ridge=0.5"]
        code, _, error = call("run", "--method", mine, "--out", "run", *own, *SHORT)
        assert (code, error) == (0, "")
        saved = yaml.safe_load((folder / "run" / "config.yaml").read_text(encoding="utf-8"))["method"]
        assert (saved["name"], saved["anchor"]["ridge"]) == (mine, 0.5)
        assert (saved["residual_share"], saved["residual_limit"]) == (0.8, 2.0)

    def test_a_typo_is_named_with_the_setting_that_was_meant(self, mine: str) -> None:
        with pytest.raises(UserError, match=r"unknown setting 'method.residual_shar'; did you mean 'residual_share'"):
            load_config("digits", method=mine, overrides={"method.residual_shar": 1})

    def test_takes_the_presets_but_not_the_networks_of_the_shipped_method(self, mine: str) -> None:
        """Its code may train otherwise, even in the first task."""
        config = load_config("digits", method=mine, overrides={"method.preset": "plus"})
        assert config.method.readout == "rda"  # type: ignore[attr-defined]
        ours, theirs = (first_training(load_config("digits", method=name)) for name in ("gatf", mine))
        assert ours != theirs


BROKEN = {
    "typo": "import torhc",
    "half": "from mine import *\nclass Half(Method[MineConfig]):\n    name = 'half'\n    Config = MineConfig",
    "nothing": "from mine import *\nclass Bare(Method[MineConfig]):\n"
    "    name, Config, card = 'bare', MineConfig, Mine.card",
    "named": "from mine import *\nfrom typing import Literal\nclass NamedConfig(MineConfig):\n"
    "    name: Literal['named'] = 'named'\nclass Named(Mine):\n    Config = NamedConfig",
}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent:Mine", "there is no module 'absent', neither in "),
        ("mine.deeper:Mine", "there is no module 'mine.deeper', neither in "),
        ("mine:Mein", "module 'mine' has no 'Mein'; did you mean 'Mine'"),
        ("mine:", "module 'mine' has no ''"),
        (":Mine", "importing '' failed with ValueError"),
        ("mine:MineConfig", "that is not a subclass of gatf.methods.Method"),
        ("mine:Method", "the class leaves out begin_task, end_task, phases, scores"),
        ("mine.Mine", "a class of your own is written package.module:Class"),
        ("typo:Mine", "importing 'typo' failed with ModuleNotFoundError: No module named 'torhc'"),
        ("half:Half", "TypeError: method class Half lacks card"),
        ("nothing:Bare", "the class leaves out begin_task, end_task, phases, scores"),
        ("named:Named", "NamedConfig restricts its field 'name'"),
    ],
)
def test_a_mistake_is_one_sentence(
    call: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    for module, text in BROKEN.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, module, raising=False)
    code, text, error = call("run", "--method", name, *SHORT)
    assert code == 2
    assert words in error
    assert len(error.strip().splitlines()) == 1
    assert not (folder / "runs").exists()


def test_resuming_without_the_module_is_reported(call: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "run").mkdir()
    config = load_config("digits", method="mine:Mine").to_yaml().replace("mine:Mine", "gone:Mine")
    (folder / "run" / "config.yaml").write_text(config, encoding="utf-8")
    code, _, error = call("run", "--resume", "run")
    assert code == 2
    assert "method 'gone:Mine': there is no module 'gone'" in error


class TestFiles:
    @pytest.fixture
    def file(self, call: Any, folder: Path) -> Path:
        """The model of a run, which now names a module that would leave a trace."""
        assert call("run", "--method", "mine:Mine", "--out", "run", *SHORT)[0] == 0
        tensors, header = container.read(folder / "run" / "model.safetensors")
        described = header.model
        described["config"]["method"]["name"] = "trap:Mine"
        container.write(folder / "strange.gatf", tensors, described)
        (folder / "trap.py").write_text("open('sprung', 'w').close()\nfrom mine import Mine\n", encoding="utf-8")
        return folder / "strange.gatf"

    @pytest.fixture
    def images(self, folder: Path) -> Path:
        """Two classes of four grey images."""
        for label, shade in (("dark", 10), ("light", 200)):
            (folder / "images" / label).mkdir(parents=True)
            for number in range(4):
                Image.new("L", (8, 8), shade + number).save(folder / "images" / label / f"{number}.png")
        return folder / "images"

    @pytest.mark.parametrize("command", ["inspect", "predict", "learn", "export"])
    def test_never_bring_code(self, call: Any, folder: Path, file: Path, images: Path, command: str) -> None:
        more = {"predict": [images], "learn": [images], "export": ["out.onnx"]}
        code, _, error = call(command, file, *more.get(command, []))
        assert code == 2
        assert "needs the method 'trap:Mine' from outside gatf, and no code is run because a file names it" in error
        assert not (folder / "sprung").exists()
        assert "trap" not in sys.modules

    def test_are_refused_also_where_the_method_is_known(self, folder: Path, file: Path) -> None:
        for forward in (model_file.load, model_file.describe):
            with pytest.raises(UserError, match="needs the method 'mine:Mine' from outside gatf"):
                forward(folder / "run")

    def test_load_with_consent(
        self, call: Any, folder: Path, file: Path, images: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GATF_TRUST", "other:Name,mine:Mine")
        code, text, error = call("predict", "run", images)
        assert (code, error) == (0, "")
        assert len(text.splitlines()) == 8
        assert call("predict", file, images)[0] == 2  # trap:Mine

    def test_are_not_made_of_it(self, call: Any, folder: Path, images: Path) -> None:
        code, _, error = call("learn", "new.gatf", images, "--method", "mine:Mine")
        assert code == 2
        assert "method 'mine:Mine' is not part of gatf" in error
        assert not (folder / "new.gatf").exists()
