"""What the documentation says is so."""

import importlib
import json
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gatf.config import load_config, parse_overrides
from gatf.methods import METHODS
from gatf.methods.parts.embedding import TripletBaseConfig

ROOT = Path(__file__).parent.parent
NOT_MEASURED = {"gatf-release"}
"""Methods that no table has: they are compared with recorded numbers only (tests/parity)."""
SETTINGS = ROOT / "docs" / "settings.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture
def update_docs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("update_docs")


def test_generated_parts_are_up_to_date(update_docs: ModuleType) -> None:
    stale = [path.name for path in PAGES if path.read_text(encoding="utf-8") != update_docs.rendered(path)]
    assert stale == [], "run python tools/update_docs.py"


def test_the_table_of_digits_has_every_method() -> None:
    rows = json.loads((ROOT / "results" / "digits" / "table.json").read_text(encoding="utf-8"))
    assert set(METHODS) - {"gatf-release"} <= {row["row"] for row in rows}


def test_the_readme_is_a_front_page() -> None:
    """Of at most 900 words and two tables of together at most eight rows; docs/results.md has the rest."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(page.split()) <= 900
    assert len(re.findall(r"^\|", page, flags=re.MULTILINE)) <= 2 * 2 + 8


def test_pages_are_short() -> None:
    """At most 45 000 words by `wc -w`, and 2 500 on each page that is not a generated reference."""
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert sum(words.values()) <= 45_000
    assert {name for name, count in words.items() if count > 2_500} <= {"settings.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_settings_in_the_documentation_exist() -> None:
    """Every dotted setting with a value; docs/add-a-method.md invents some."""
    known = {path.split("=")[0] for path in re.findall(r"^- `([\w.]+)` \(", SETTINGS.read_text(encoding="utf-8"), re.M)}
    named = {
        (page.name, path)
        for page in PAGES if page.name not in ("add-a-method.md", "CHANGELOG.md")
        for path in re.findall(r"\b((?:method|data|scenario|backbone|optimisation)(?:\.\w+)+)=", page.read_text())
    }  # fmt: skip
    unknown = {each for each in named if each[1] not in known | {"method.name", "method.base.name"}}
    assert {each for each in unknown if not re.match(r"optimisation\.(next|\*)\.", each[1])} == set()


def test_python_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    blocks = [block for block in blocks if "IncrementalClassifier" not in block]  # the tutorial's test runs that
    assert len(blocks) == 1
    quick = '"seed": 1, "optimisation.first.epochs": 1, "optimisation.next.epochs": 1,'
    for block in blocks:
        exec(compile(block.replace('"seed": 1,', quick), "README.md", "exec"), {})


@pytest.mark.parametrize("name", ["quickstart.md", "embeddings.md"])
def test_python_about_vectors_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/embeddings.md leaves the vectors to the reader; the new encoder mirrors the old one."""
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    centres = 6 * draws.normal(size=(3, 8))
    old, new = (np.repeat(part, 60, axis=0) + draws.normal(size=(60 * len(part), 8)) for part in np.split(centres, [2]))
    given = {"X_old": old, "y": np.repeat(["cup", "bag"], 60), "X_new": -new, "y_new": np.repeat(["hat"], 60)}
    pairs = np.repeat(centres[:2], 40, axis=0) + draws.normal(size=(80, 8))
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names = given | {"pairs_old": pairs, "pairs_new": -pairs}
    exec(compile(block, name, "exec"), names)
    classifier = names.get("shop", names.get("clf"))
    assert classifier.classes_.tolist() in (["bag", "cup", "hat"], ["cat", "dog", "fox"])


@pytest.mark.slow
def test_the_example_of_a_method_keeps_the_contract(tmp_path: Path) -> None:
    """From an empty folder, by the commands of the page, with nothing of the package touched."""
    page = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "mine.py").write_text(example, encoding="utf-8")
    (command,) = re.findall(r"^\$ python (-m pytest .*)$", page, flags=re.MULTILINE)
    words = [word.replace("gatf/", f"{ROOT}/") for word in shlex.split(command)]
    done = subprocess.run(
        [sys.executable, *words, "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    contract = (ROOT / "tests" / "conformance" / "test_contract.py").read_text(encoding="utf-8")
    assert f"{contract.count('def test_')} passed" in done.stdout


def test_sdc_is_documented_as_it_was_released_for_cifar100() -> None:
    """The command in docs/deviations.md against run_demo.sh of the release, whose 51 epochs are the paper's 50 and one
    numbered 0."""
    page = (ROOT / "docs" / "deviations.md").read_text(encoding="utf-8")
    (block,) = [each for each in re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL) if "preset=paper" in each]
    words = shlex.split(block[block.index("gatf run") :].replace("\\\n", " "))
    settings = [after for word, after in pairwise(words) if word == "--set"]
    config = load_config(words[words.index("--recipe") + 1], method="sdc", overrides=parse_overrides(settings))
    for trained in (config.optimisation.first, config.optimisation.next):
        assert (trained.optimiser, trained.lr, trained.weight_decay) == ("adam", 1e-6, 2e-4)
        assert (trained.schedule, trained.epochs, trained.batch_size) == ("constant", 51, 32)
        assert (trained.clip, trained.warmup) == (None, 0.0)
    assert (config.scenario.tasks, config.scenario.first_task_classes) == (11, 50)
    assert (config.method.base, config.method.sigma) == (TripletBaseConfig(softmax_epochs=200), 0.2)
    assert config.data.augment == ("crop:4", "flip")
