"""learn, predict, inspect, export, rollback as a person types them."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gatf.cli.models import FEW
from gatf.incremental.store import Store
from gatf.incremental.update_file import update_model_file
from gatf.io import container
from gatf.model import file as model_file
from gatf.nets.folding import folded

FAST = ["--epochs", "2", "--set", "method.samples=100", "--device", "cpu", "--batch-size", "64"]
NEW = [*FAST, "--width", "8", "--set", "backbone.bottleneck=8"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, digit_images: tuple[np.ndarray, np.ndarray]) -> Path:
    """january/ with two class folders, february/ with a third."""
    folder = tmp_path_factory.mktemp("photos")
    images, labels = digit_images
    for name, month in (("d0", "january"), ("d1", "january"), ("d2", "february")):
        place = folder / month / name
        place.mkdir(parents=True)
        for number, pixels in enumerate(images[labels == name][:40]):
            Image.fromarray(pixels).save(place / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def base(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that learnt january."""
    path = tmp_path_factory.mktemp("base") / "shop.gatf"
    settings = {"method.samples": 100, "backbone.bottleneck": 8}
    parameters = {"epochs": 8, "width": 8, "device": "cpu", "settings": settings}
    update_model_file(path, photos / "january", parameters=parameters)
    return path


@pytest.fixture
def shop(base: Path, tmp_path: Path) -> Path:
    (tmp_path / "shop.gatf").write_bytes(base.read_bytes())
    return tmp_path / "shop.gatf"


def test_learn_creates_then_extends_then_rolls_back(call: Any, photos: Path, tmp_path: Path) -> None:
    model = tmp_path / "shop.gatf"
    code, text, _ = call("learn", model, photos / "january", *NEW)
    assert code == 0
    assert "backbone small (width 8, features 8), 8×8 colour pixels, method gatf; 80 images, 2 epochs" in text
    assert "First fit: added 2 classes (d0, d1)" in text
    code, text, _ = call("learn", model, photos / "february", *FAST)
    assert code == 0
    assert "Update 1: added 1 class (d2)" in text
    assert model_file.load(model).labels == ("d0", "d1", "d2")
    assert {file.name for file in tmp_path.iterdir()} == {"shop.gatf", "shop.gatf.v0"}
    code, text, _ = call("rollback", model)
    assert code == 0
    assert "restored to the version after the first fit" in text
    assert model_file.load(model).labels == ("d0", "d1")
    code, _, error = call("rollback", model)
    assert code == 2
    assert "no older version" in error


def test_predict_prints_for_users_and_programs(call: Any, shop: Path, photos: Path) -> None:
    one, folder = photos / "january" / "d0" / "00.png", photos / "january" / "d1"
    code, text, _ = call("predict", shop, one, folder)
    assert code == 0
    assert len(text.splitlines()) == 41
    assert text.startswith(f"{one}  d0 ")
    code, text, errors = call("predict", shop, one, "--json", "--top", "2", "--certificate")
    (answer,) = json.loads(text)
    assert answer["file"] == str(one)
    assert answer["label"] == "d0"
    assert [item["label"] for item in answer["top"]] == ["d0", "d1"]
    assert sum(item["probability"] for item in answer["top"]) == pytest.approx(1, abs=1e-5)
    assert "certified" not in answer
    assert "no transport error to certify against" in errors
    code, text, _ = call("predict", shop, folder, "--csv", "--top", "2")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 40
    assert set(rows[0]) == {"file", "label", "probability", "label2", "probability2"}


def test_predict_shows_unknown(call: Any, shop: Path, photos: Path) -> None:
    code, text, _ = call("predict", shop, photos / "january", "--unknown", "0.5")
    assert code == 0
    assert 5 < text.count("unknown (nearest: d") < 75, "half of the known images may be rejected, and only half"


def test_inspect_shows_everything(call: Any, shop: Path) -> None:
    code, text, _ = call("inspect", shop)
    assert code == 0
    for words in (
        "2 classes",
        "8×8 colour",
        "network: small (width 8,",
        "bytes per class",
        "First fit: added",
        "too few for a percentage",
    ):
        assert words in text
    code, text, _ = call("inspect", shop, "--json")
    assert json.loads(text)["labels"] == ["d0", "d1"]


def test_export_writes_onnx(call: Any, shop: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    code, text, _ = call("export", shop, tmp_path / "shop.onnx")
    assert code == 0
    assert "onnxruntime gives the same predictions" in text
    assert (tmp_path / "shop.onnx").stat().st_size > 1000


def test_mistakes_are_one_sentence_and_lose_nothing(call: Any, shop: Path, photos: Path, tmp_path: Path) -> None:
    before = shop.read_bytes()
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad" / "d3").mkdir(parents=True)
    (tmp_path / "bad" / "d3" / "broken.png").write_bytes(b"not a picture")
    (tmp_path / "not.gatf").write_bytes(b"PK\x03\x04 and more")
    month = photos / "january"
    for arguments, words in (
        (["learn", shop, tmp_path / "empty"], "has no class folders"),
        (["learn", shop, tmp_path / "nowhere"], "there is no folder"),
        (["learn", shop, tmp_path / "bad"], "broken.png cannot be decoded"),
        (["learn", shop, tmp_path / "bad", "--skip-bad"], "no image that can be decoded"),
        (["learn", shop, month, "--method", "ewc"], "was fixed when it was created"),
        (["learn", shop, month, "--set", "method.rige=1"], "did you mean 'method.anchor.ridge'"),
        (["learn", tmp_path / "not.gatf", month], "zip archive"),
        (["learn", tmp_path / "new.gatf", tmp_path / "one"], "at least two classes"),
        (["predict", shop, tmp_path / "nowhere.png"], "there is no image"),
        (["predict", shop, tmp_path / "empty"], "holds no images"),
        (["predict", tmp_path / "not.gatf", month], "zip archive"),
        (["predict", shop, month, "--json", "--csv"], "choose one"),
        (["predict", month / "d0" / "00.png", shop], "it is a PNG image"),
        (["export", shop, shop], "give an ONNX file"),
        (["inspect", tmp_path / "nowhere.gatf"], "there is no model"),
        (["rollback", tmp_path / "nowhere" / "shop.gatf"], "there is no model"),
    ):
        if arguments[2:] == [tmp_path / "one"]:
            (tmp_path / "one" / "d9").mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / "one" / "d9" / "a.png")
        code, _, error = call(*arguments)
        assert code == 2, arguments
        assert words in error, arguments
        assert len(error.strip().splitlines()) == 1
    assert shop.read_bytes() == before
    assert not (tmp_path / "new.gatf").exists()
    code, text, _ = call("predict", shop, tmp_path / "bad", photos / "january" / "d0" / "00.png", "--skip-bad")
    assert code == 0
    assert len(text.splitlines()) == 1


def test_learn_is_refused_while_another_learns(call: Any, shop: Path, photos: Path) -> None:
    with Store(shop).writing():
        code, _, error = call("learn", shop, photos / "february")
    assert code == 2
    assert "is being updated by another process" in error


LONG = {"epochs": 120, "device": "cpu", "held_out": 0.1, "settings": {"method.samples": 100}}
LONG_OPTIONS = ["--epochs", "120", "--device", "cpu", "--set", "method.samples=100"]


@pytest.fixture(scope="module")
def undisturbed(base: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """What a learn gives that nobody stops."""
    path = tmp_path_factory.mktemp("undisturbed") / "shop.gatf"
    path.write_bytes(base.read_bytes())
    update_model_file(path, photos / "february", parameters=LONG)
    return container.read(path)[0]


@pytest.mark.slow
def test_an_interrupted_learn_leaves_the_model_and_continues(
    call: Any, shop: Path, photos: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    """A real process and Ctrl-C in the middle of training; the same command then ends as if nothing had been. For kills
    see test_crashes."""
    before = shop.read_bytes()
    state = shop.with_name("shop.gatf.learning") / "state.safetensors"
    command = [sys.executable, "-m", "gatf", "learn", shop, photos / "february", *LONG_OPTIONS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*map(str, command)], env=environment, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not state.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        reported = process.communicate()[0]
    assert state.exists(), "it was over before it could be stopped"
    assert shop.read_bytes() == before
    assert process.returncode == 130
    assert "Repeat the command to continue" in reported
    code, _, error = call("learn", shop, photos / "january")
    assert code == 2
    assert "was interrupted" in error
    assert update_model_file(shop, photos / "february", parameters=LONG).resumed
    assert not state.parent.exists()
    found = container.read(shop)[0]
    assert found.keys() == undisturbed.keys()
    for name in found:
        assert torch.equal(found[name], undisturbed[name]), name


def test_evaluate_measures_a_model_on_a_folder(call, base: Path, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos / "january", tmp_path / "test")
    shutil.copytree(photos / "february" / "d2", tmp_path / "test" / "d2")
    code, text, notes = call("evaluate", str(base), str(tmp_path / "test"))
    assert code == 0
    assert "skipped: 40 images of 'd2', a class that the model does not know" in notes
    assert "accuracy on 80 images, among 2 classes:" in text
    _, text, _ = call("evaluate", str(base), str(tmp_path / "test"), "--json")
    reported = json.loads(text)
    table = np.array(reported["confusion"])
    assert reported["classes"] == ["d0", "d1"]
    assert table.sum(1).tolist() == [40, 40] == [each["images"] for each in reported["by_class"]]
    assert reported["accuracy"] == pytest.approx(100 * np.trace(table) / 80)
    assert sum(each["images"] for each in reported["reliability"]) == 80


def test_evaluate_refuses_a_folder_of_other_classes(call, base: Path, photos: Path) -> None:
    code, _, reported = call("evaluate", str(base), str(photos / "february"))
    assert code == 2
    assert "the model knows no class of" in reported
    assert "d2" in reported


def test_a_run_s_folder_is_a_model(call, photos: Path, tmp_path: Path) -> None:
    """predict, inspect, evaluate, learn and export take what a run left, grey images included."""
    run = tmp_path / "run"
    short = ["--epochs", "1", "--set", "scenario.stop_after=1", "--set", "data.max_per_class=40", "--device", "cpu"]
    assert call("run", "--dataset", "digits", *short, "--out", str(run), "--no-report", "--quiet")[0] == 0
    picture = str(photos / "january" / "d0" / "00.png")
    code, text, _ = call("predict", str(run), picture, "--json")
    assert (code, len(json.loads(text))) == (0, 1)
    assert "2 classes" in call("inspect", str(run))[1]
    code, _, _ = call("learn", str(run), str(photos / "january"), "--epochs", "1", "--device", "cpu", "--quiet")
    assert code == 0
    assert "4 classes" in call("inspect", str(run))[1]
    assert "among 4 classes" in call("evaluate", str(run), str(photos / "january"))[1]


def test_a_missing_model_is_blamed_and_nothing_is_made(call: Any, photos: Path, tmp_path: Path) -> None:
    missing = tmp_path / "new" / "shop.gatf"
    for command in (["predict", missing, tmp_path / "nothing.png"], ["rollback", missing], ["inspect", missing]):
        code, _, error = call(*command)
        assert code == 2
        assert f"there is no model {missing}" in error or f"{missing} does not exist" in error
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_there(call: Any, shop: Path, photos: Path) -> None:
    for command in (["predict", shop, photos], ["learn", shop, photos / "february"]):
        code, _, error = call(*command, "--device", "cuda")
        assert code == 2
        assert "torch finds no such device here" in error


def test_push_and_pull_through_a_folder(call: Any, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, text, _ = call("push", shop, "./handed on")
    assert code == 0
    assert text.startswith("handed on contains model.gatf, ")
    code, text, _ = call("pull", "./handed on")
    assert code == 0
    assert "`gatf inspect 'handed on.gatf'` describes it" in text
    assert (tmp_path / "handed on.gatf").read_bytes() == shop.read_bytes()
    code, _, error = call("pull", "./handed on")
    assert code == 2
    assert error == "gatf: handed on.gatf exists already; choose another --out\n"
    code, _, error = call("push", tmp_path / "none.gatf", "./x")
    assert code == 2
    assert "there is no model" in error
    assert not (tmp_path / "x").exists()


def test_few_images_do_not_fold_the_network_and_predictions_agree(
    call: Any, shop: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folding the network takes longer than they do; many are worth it."""
    made = []
    monkeypatch.setattr("gatf.methods.base.folded", lambda net: made.append(net) or folded(net))
    images = sorted((photos / "january" / "d0").iterdir())[: FEW + 1]
    _, few, _ = call("predict", shop, *images[:FEW], "--json")
    assert made == []
    _, many, _ = call("predict", shop, *images, "--json")
    assert len(made) == 1
    for alone, among in zip(json.loads(few), json.loads(many), strict=False):
        assert alone["label"] == among["label"]
        assert alone["probability"] == pytest.approx(among["probability"], abs=1e-4)
