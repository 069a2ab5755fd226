"""Models that are handed on: a folder stands for the hub, and a stand-in for the hub's library for its answers."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gatf import EmbeddingClassifier, IncrementalClassifier
from gatf.errors import UserError
from gatf.model import file as model_file
from gatf.model import hub
from gatf.model.card import OWN, card
from gatf.model.file import load


@pytest.fixture(scope="module")
def model(grown: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "digits.gatf"
    grown.save(path)
    return path


class Hub:
    """What this project uses of huggingface_hub, with folders for repositories."""

    errors = SimpleNamespace(HfHubHTTPError=type("HfHubHTTPError", (OSError,), {}))

    def __init__(self, root: Path) -> None:
        self.root, self.reachable, self.made_private = root, True, None

    def HfApi(self) -> "Hub":
        return self

    def _answer(self) -> None:
        if not self.reachable:
            raise RuntimeError("Name or service not known")

    def create_repo(self, name: str, *, exist_ok: bool, private: bool | None) -> Any:
        self._answer()
        self.made_private = private
        (self.root / name).mkdir(parents=True, exist_ok=exist_ok)
        return type("Url", (str,), {"repo_id": name})(f"https://hub/{name}")

    def file_exists(self, name: str, file: str) -> bool:
        return (self.root / name / file).is_file()

    def hf_hub_download(self, name: str, file: str, *, revision: str | None = None) -> str:
        return str(self.root / name / file)

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)

    def model_info(self, name: str, *, revision: str | None, timeout: float) -> None:
        self._answer()
        if not (self.root / name).is_dir() or revision not in (None, "main"):
            raise self.errors.HfHubHTTPError("404 Client Error: not found")

    def try_to_load_from_cache(self, name: str, file: str, *, revision: str | None) -> str | None:
        return str(self.root / name / file) if name == "owner/cached" else None


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    stand_in = Hub(tmp_path / "hub")
    monkeypatch.setattr(hub, "_library", lambda: stand_in)
    return stand_in


def test_a_model_goes_to_a_folder_and_comes_back(
    grown: Any, tmp_path: Path, digit_images: tuple[np.ndarray, np.ndarray]
) -> None:
    images = digit_images[0][:50]
    assert grown.push_to_hub(tmp_path / "shop") == str(tmp_path / "shop")
    assert {file.name for file in (tmp_path / "shop").iterdir()} == {"model.gatf", "README.md"}
    again = IncrementalClassifier.from_pretrained(str(tmp_path / "shop"), device="cpu")
    assert np.array_equal(again.predict_proba(images), grown.predict_proba(images))
    text = (tmp_path / "shop" / "README.md").read_text(encoding="utf-8")
    assert text.startswith("---\nlibrary_name: gatf\npipeline_tag: image-classification\n")
    assert "knows 7 classes, taught in 2 updates" in text
    assert f"| 1 | {grown.history_[1].date[:10].replace('-', chr(92) + '-')} | 3 |" in text
    assert "from_pretrained('./shop')" in text
    assert str(tmp_path) not in text  # where it lay on somebody's machine is nobody's concern


def test_a_model_of_vectors_goes_to_a_folder_with_a_card(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    EmbeddingClassifier().fit(draws.normal(size=(60, 5)), np.arange(60) % 3).save(tmp_path / "m.gatf")
    hub.push(tmp_path / "m.gatf", tmp_path / "shop")
    text = (tmp_path / "shop" / "README.md").read_text(encoding="utf-8")
    assert "| vectors | 5 numbers |" in text
    assert "image" not in text


def test_a_card_that_was_edited_stays(model: Path, tmp_path: Path) -> None:
    assert not hub.push(model, tmp_path / "shop").kept_card
    assert not hub.push(model, tmp_path / "shop").kept_card  # our own is written anew
    (tmp_path / "shop" / "README.md").write_text("# Mine", encoding="utf-8")
    assert hub.push(model, tmp_path / "shop").kept_card
    assert (tmp_path / "shop" / "README.md").read_text(encoding="utf-8") == "# Mine"


def test_names_of_classes_are_text_in_the_card(
    tiny_classifier: Callable[..., Any], digit_images: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    images, labels = digit_images
    bad = ["<script>x</script>", "[a](https://b.c)|\n# top"]
    chosen = np.isin(labels, ("d0", "d1"))
    names = np.array([bad[label == "d1"] for label in labels[chosen]])
    tiny_classifier(epochs=1).fit(images[chosen], names).save(tmp_path / "bad.gatf")
    text = card(tmp_path / "bad.gatf", "owner/bad")
    assert r"\<script\>x\<\/script\>" in text
    assert r"\[a\]\(https\:\/\/b\.c\)\|\\u000a\# top" in text
    assert "<script>" not in text
    assert "\n# top" not in text


def test_the_hub_gets_the_model_and_its_card(model: Path, library: Hub, tmp_path: Path) -> None:
    assert hub.push(model, "owner/digits", private=True) == hub.Pushed("https://hub/owner/digits", False)
    assert library.made_private is True
    kept = library.root / "owner/digits"
    assert (kept / "model.gatf").read_bytes() == model.read_bytes()
    assert OWN in (kept / "README.md").read_text(encoding="utf-8")
    (kept / "README.md").write_text("edited", encoding="utf-8")
    assert hub.push(model, "owner/digits").kept_card
    assert (kept / "README.md").read_text(encoding="utf-8") == "edited"
    hub.pull("owner/digits", tmp_path / "again.gatf")
    assert (tmp_path / "again.gatf").read_bytes() == model.read_bytes()
    with pytest.raises(UserError, match=r"again\.gatf exists already; choose another --out"):
        hub.pull("owner/digits", tmp_path / "again.gatf")
    with pytest.raises(UserError, match=r"'owner/digits' could not be fetched .* \(404 Client Error: not found\)"):
        hub.find("owner/digits", revision="v2")


def test_without_a_network_one_sentence_and_the_cache(model: Path, library: Hub) -> None:
    hub.push(model, "owner/cached")
    library.reachable = False
    with pytest.raises(UserError, match=r"could not be pushed to 'owner/digits' .* \(Name or service not known\)"):
        hub.push(model, "owner/digits")
    with pytest.raises(UserError, match=r"'owner/digits' could not be fetched .* \(Name or service not known\)"):
        hub.find("owner/digits")
    assert load(hub.find("owner/cached")).labels == load(model).labels


def test_a_damaged_model_is_neither_sent_nor_written(model: Path, library: Hub, tmp_path: Path) -> None:
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    (tmp_path / "bad.gatf").write_bytes(content)
    with pytest.raises(UserError, match="do not match its checksum"):
        hub.push(tmp_path / "bad.gatf", "owner/bad")
    assert not library.root.exists()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.gatf").write_bytes(content)
    with pytest.raises(UserError, match="do not match its checksum"):
        hub.pull(tmp_path / "folder", tmp_path / "pulled.gatf")
    assert not (tmp_path / "pulled.gatf").exists()


def test_nothing_in_a_pulled_file_is_run(tmp_path: Path) -> None:
    import pickle

    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "was-run",)

    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "model.gatf").write_bytes(pickle.dumps(Trap()))
    (tmp_path / "trap" / "modeling.py").write_text("raise SystemExit", encoding="utf-8")
    with pytest.raises(UserError, match="nothing in it was run"):
        IncrementalClassifier.from_pretrained(tmp_path / "trap")
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("./nowhere", "there is no folder nowhere"),
        ("a/b/c", "'a/b/c' is neither a folder nor a repository of the hub, such as owner/name"),
        (".", r"\. holds no model\.gatf; `gatf push MODEL \.` puts one there"),
    ],
)
def test_a_model_that_cannot_be_found_is_reported(
    source: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence):
        hub.find(source)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"gatf-cil\[hub\]"):
        hub.find("owner/name")


def test_the_hub_s_own_library_has_what_is_used() -> None:
    import inspect

    real = pytest.importorskip("huggingface_hub")
    interface = real.HfApi()
    called = {
        interface.create_repo: {"exist_ok", "private"},
        interface.file_exists: set(),
        interface.upload_folder: {"repo_id", "folder_path", "commit_message"},
        interface.model_info: {"revision", "timeout"},
        real.hf_hub_download: {"revision"},
        real.try_to_load_from_cache: {"revision"},
    }
    for function, names in called.items():
        assert names <= set(inspect.signature(function).parameters), function
    assert issubclass(real.errors.HfHubHTTPError, Exception)


def test_the_card_counts_all_updates_and_not_the_records_kept(grown: Any, tmp_path: Path) -> None:
    model = grown.model_
    last = model.history[-1].model_copy(update={"number": 149})
    model_file.save(replace(model, history=(*model.history[:-1], last)), tmp_path / "old.gatf")
    assert "taught in 150 updates" in card(tmp_path / "old.gatf", "./old")
