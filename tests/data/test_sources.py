"""The list of sources, their cards, the rendered one, and fetching."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gatf.data import fetch
from gatf.data.glyphs import CHARACTERS, TEST_FONTS, TRAIN_FONTS
from gatf.data.listing import share_of_each_class
from gatf.data.sources import SOURCES, fetch_source, open_source, source_card
from gatf.errors import UserError, extra
from gatf.settings import DataConfig, GlyphsConfig

Build = Callable[..., Path]


def silent(what: str, done: int, total: int) -> None:
    pass


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_has_a_card_even_where_it_is_missing(name: str) -> None:
    rows = dict(source_card(name, DataConfig(glyphs=GlyphsConfig(classes=2, train_per_class=2))))
    assert rows["name"] == name
    assert {"what", "licence", "origin", "cache"} <= rows.keys()
    embedded = name in ("digits", "glyphs")
    assert ("missing" in rows) is not embedded
    assert ("images" in rows) is embedded


def test_digits_are_scikit_learns_and_so_is_their_split(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    train, test = train_test_split(np.arange(1797), test_size=0.2, stratify=bunch.target, random_state=0)
    for _ in range(2):
        source = open_source(DataConfig(name="digits"))
        for part, places in ((source.train, np.sort(train)), (source.test, np.sort(test))):
            assert part.images.flatten(1).tolist() == np.rint(bunch.data[places] * 255 / 16).tolist()
            assert list(part.labels) == bunch.target[places].tolist()
        monkeypatch.setattr("gatf.data.digits.find_spec", lambda name: None)  # then they come from its function


def test_reading_digits_does_not_import_scikit_learn() -> None:
    code = (
        "import sys; from gatf.data.sources import open_source; from gatf.settings import DataConfig; "
        "open_source(DataConfig(name='digits')); assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "setting"),
    [("digits", {"image_size": 16}), ("cifar100", {"class_list": "x"}), ("npz", {"label_column": "x"}),
     ("folder", {"glyphs": {"seed": 1}}), ("cub200", {"test_fraction": 0.3}), ("glyphs", {"hub": "a/b"})],
)  # fmt: skip
def test_a_setting_that_would_be_ignored_is_refused(name: str, setting: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"data\.{next(iter(setting))} has no meaning for '{name}', only for "):
        open_source(DataConfig(name=name, **setting))


@pytest.mark.usefixtures("few_classes")
def test_the_card_of_available_data(tmp_path: Path, cub: Build) -> None:
    rows = dict(source_card("cub200", DataConfig(root=str(cub(tmp_path)))))
    assert rows["classes"] == "2"
    assert rows["images"] == "4 for training, 2 for testing"
    assert rows["size"] == "224×224"
    assert str(tmp_path) in rows["found in"]
    assert "expected 29 to 30" in rows["checks"]


def test_the_card_of_other_data_names_them(tmp_path: Path, cub: Build) -> None:
    rows = dict(source_card("cub200", DataConfig(root=str(cub(tmp_path)))))
    assert str(tmp_path) in rows["found in"]
    assert "holds 2 classes, but cub200 has 200" in rows["missing"]
    assert "images" not in rows


def test_glyphs_are_the_same_every_time(own_cache: Path) -> None:
    config = DataConfig(name="glyphs", glyphs=GlyphsConfig(classes=5, train_per_class=4, test_per_class=3))
    first = open_source(config)
    cached = open_source(config)
    for path in own_cache.iterdir():
        path.unlink()
    again = open_source(config)
    assert torch.equal(first.train.images, again.train.images)
    assert torch.equal(cached.test.images, again.test.images)
    assert first.image_shape == (3, 32, 32)
    assert first.class_names == tuple("ABCDE")
    assert first.test.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3


def test_glyphs_change_with_their_settings_alone() -> None:
    def images(**settings: Any) -> torch.Tensor:
        given = {"classes": 3, "train_per_class": 2, "test_per_class": 1, **settings}
        return open_source(DataConfig(name="glyphs", glyphs=GlyphsConfig(**given))).train.images

    plain = images()
    assert torch.equal(images(classes=4)[:6], plain)  # more classes leave the first ones as they are
    assert not torch.equal(images(seed=1), plain)
    assert not torch.equal(images(difficulty=1.0), plain)
    assert images(size=64).shape == (6, 3, 64, 64)


def test_glyphs_characters_and_fonts() -> None:
    import matplotlib
    from matplotlib.ft2font import FT2Font

    assert len(set(CHARACTERS)) == 100
    assert not set(TRAIN_FONTS) & set(TEST_FONTS)
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name in (*TRAIN_FONTS, *TEST_FONTS):
        known = FT2Font(str(folder / f"{name}.ttf")).get_charmap()
        assert {ord(character) for character in CHARACTERS} <= known.keys(), name


def test_glyphs_are_harder_when_asked_and_can_be_distinguished() -> None:
    """A nearest-mean classifier on contrast-free pixels: far above chance, and worse on harder images."""

    def accuracy(difficulty: float) -> float:
        settings = GlyphsConfig(classes=20, train_per_class=60, test_per_class=20, difficulty=difficulty)
        source = open_source(DataConfig(name="glyphs", glyphs=settings))

        def features(images: torch.Tensor) -> torch.Tensor:
            grey = images.float().flatten(2).mean(1)
            edges = (grey - grey.median(1, keepdim=True).values).abs()
            return torch.nn.functional.normalize(edges - edges.mean(1, keepdim=True))

        train = features(source.train.images)
        means = torch.stack([train[source.train.labels == label].mean(0) for label in range(20)])
        return float(((features(source.test.images) @ means.T).argmax(1) == source.test.labels).float().mean())

    easy, hard = accuracy(0.0), accuracy(1.0)
    assert easy > 0.4
    assert hard < easy - 0.2


# --- fetching ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path, hub_copy: Build, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the layout of a hub repository, which `datasets` reads as it reads the hub's."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    datasets.disable_progress_bars()
    parts = {"train": [0, 1, 1, 0], "test": [1, 0]}
    shards = {"image": "img", "label": "fine_label", "path": "data/{}-00000-of-00001.parquet"}
    return hub_copy(tmp_path / "repository", parts, names=["apple", "bear"], **shards)


@pytest.mark.usefixtures("no_network", "few_classes")
def test_fetching_writes_what_opening_reads(tmp_path: Path, hub: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    config = DataConfig(root=str(tmp_path / "mine"), hub=str(hub))
    folder = fetch_source("cifar100", config, lambda *step: steps.append(step))
    assert Path(folder) == tmp_path / "mine" / "cifar100"
    assert sorted(path.name for path in Path(folder).iterdir()) == ["test.parquet", "train.parquet"]
    assert steps[-1] == ("cifar100, test images", 2, 2)
    direct = open_source(DataConfig(name="cifar100", root=str(hub)))
    fetched = open_source(DataConfig(name="cifar100", root=str(tmp_path / "mine")))
    assert fetched.class_names == ("apple", "bear")
    assert torch.equal(fetched.train.images, direct.train.images)
    assert torch.equal(fetched.train.labels, direct.train.labels)


def test_what_cannot_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="'glyphs' needs no download: rendered here"):
        fetch_source("glyphs", DataConfig(), silent)
    with pytest.raises(UserError, match="'folder' needs no download: your files"):
        fetch_source("folder", DataConfig(), silent)
    with pytest.raises(UserError, match="'cub200' has no fixed place on the hub: name one with --hub"):
        fetch_source("cub200", DataConfig(), silent)

    class Offline:
        @staticmethod
        def load_dataset(hub_id: str) -> None:
            raise ConnectionError(f"cannot reach {hub_id}")

    monkeypatch.setattr(fetch, "extra", lambda module: Offline)
    with pytest.raises(UserError, match=r"'uoft-cs/cifar100' could not be fetched .*\(cannot reach"):
        fetch_source("cifar100", DataConfig(root=str(tmp_path)), silent)
    assert not (tmp_path / "cifar100").exists()


@pytest.mark.usefixtures("no_network", "few_classes")
def test_the_commands_fetch_and_show(tmp_path: Path, hub: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    mine = tmp_path / "mine"
    code, reported, _ = call("data", "get", "cifar100", "--data-root", mine, "--hub", hub)
    assert (code, reported.splitlines()[-1]) == (0, f"cifar100 is in {mine / 'cifar100'}")
    code, card, _ = call("data", "show", "cifar100", "--data-root", mine, "--set", "data.image_size=16")
    assert code == 0
    cells = dict(re.split(r"  +", line, maxsplit=1) for line in card.splitlines())
    assert (cells["classes"], cells["images"], cells["size"]) == ("2", "4 for training, 2 for testing", "16×16")


def test_the_commands_say_what_they_cannot(call: Callable[..., tuple[int, str, str]]) -> None:
    for words, wanted in (
        (("show", "digitz"), "did you mean 'digits'?"),
        (("show", "digits", "--set", "data.image_sise=8"), "did you mean 'image_size'?"),
        (("get", "digits"), "'digits' needs no download"),
        (("get", "cub200"), "name one with --hub"),
    ):
        code, reported, error = call("data", *words)
        assert (code, reported.strip()) == (2, ""), words
        assert wanted in " ".join(error.split()), error


def test_the_hubs_imagenet100_is_fetched_only_as_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """13 GB of classes that the default list would then refuse."""
    fetched = []
    monkeypatch.setattr("gatf.data.benchmarks.fetch_from_hub", lambda config, hub, step: fetched.append(hub) or "x")
    words = "clane9/imagenet-100 holds CMC's classes, not those of AdaGauss's ImageNet-100: .* data.class_list=cmc"
    with pytest.raises(UserError, match=words):
        fetch_source("imagenet100", DataConfig(), silent)
    fetch_source("imagenet100", DataConfig(class_list="cmc"), silent)
    fetch_source("imagenet100", DataConfig(hub="me/my-copy"), silent)
    assert fetched == ["clane9/imagenet-100", "me/my-copy"]
    root = str(tmp_path)
    with pytest.raises(UserError) as missing:
        open_source(DataConfig(name="imagenet100", root=root))
    assert "gatf data get" not in str(missing.value)
    with pytest.raises(UserError, match=r"`gatf data get imagenet100 --set data\.class_list=cmc`"):
        open_source(DataConfig(name="imagenet100", root=root, class_list="cmc"))


def test_the_card_names_the_imagenet100_list() -> None:
    assert dict(source_card("imagenet100", DataConfig()))["class list"] == "AdaGauss's ImageNet-100"
    rows = dict(source_card("imagenet100", DataConfig(class_list="cmc")))
    assert rows["class list"] == "CMC's ImageNet-100"
    assert "clane9/imagenet-100 (CMC's classes, data.class_list=cmc)" in rows["origin"]


def test_a_missing_extra_is_named() -> None:
    with pytest.raises(UserError, match=r"this needs 'no_such_module': pip install 'gatf-cil\[data\]'"):
        extra("no_such_module")


def test_a_share_of_a_class_is_never_all_of_it_nor_nothing() -> None:
    draws = [torch.Generator().manual_seed(0) for _ in range(3)]
    labels = torch.tensor([0, 0, 1, 1, 1, 1, 1, 2])
    assert torch.bincount(labels[share_of_each_class(labels, 0.9, draws)], minlength=3).tolist() == [1, 4, 0]
    assert torch.bincount(labels[share_of_each_class(labels, 0.01, draws)], minlength=3).tolist() == [1, 1, 0]
