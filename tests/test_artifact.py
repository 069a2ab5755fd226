"""The one-file model: what goes in comes out, little of it, and nothing that was tampered with."""

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from gatf import IncrementalClassifier
from gatf.config import load_config
from gatf.data.preprocessing import Preprocessing
from gatf.errors import UserError
from gatf.geometry.gaussians import Gaussians
from gatf.io import container
from gatf.model import file as model_file
from gatf.model.calibration import NO_CALIBRATION
from gatf.model.state import Model
from gatf.session import build_method


@pytest.fixture
def saved(grown: Any, tmp_path: Path) -> Path:
    grown.save(tmp_path / "shop.gatf")
    return tmp_path / "shop.gatf"


def test_a_model_comes_back_whole(grown: Any, saved: Path, digit_images: tuple[np.ndarray, np.ndarray]) -> None:
    loaded = IncrementalClassifier.load(saved, device="cpu")
    images = digit_images[0][:100]
    assert (loaded.predict_proba(images) == grown.predict_proba(images)).all()
    for mine, other in zip(
        grown.predict(images, return_certificate=True), loaded.predict(images, return_certificate=True), strict=True
    ):
        assert (mine == other).all()
    copies = [loaded, IncrementalClassifier.from_model(grown.model_)]
    rejecting = [copy.set_params(unknown=0.1).predictions(images) for copy in copies]
    assert (rejecting[0].labels == rejecting[1].labels).all()
    assert all("estimated" in str(answers.warning) for answers in rejecting)  # for classes were added
    assert loaded.history_ == grown.history_
    assert loaded.classes_.tolist() == grown.classes_.tolist()
    assert loaded.get_params()["method"] == "gatf"


def test_a_loaded_model_learns_on_as_the_original_would(
    grown: Any, saved: Path, digit_images: tuple[np.ndarray, np.ndarray]
) -> None:
    images, labels = digit_images
    chosen = np.isin(labels, ("d7", "d8"))
    answers = []
    for start in (IncrementalClassifier.from_model(grown.model_), IncrementalClassifier.load(saved)):
        start.set_params(epochs=1, device="cpu").partial_fit(images[chosen][:80], labels[chosen][:80])
        answers.append(start.predict_proba(images[:50]))
    assert (answers[0] == answers[1]).all()


def test_writing_twice_gives_the_same_bytes(grown: Any, saved: Path, tmp_path: Path) -> None:
    IncrementalClassifier.load(saved).save(tmp_path / "again.gatf")
    assert saved.read_bytes() == (tmp_path / "again.gatf").read_bytes()


def test_any_safetensors_reader_opens_it_and_it_holds_no_image(grown: Any, saved: Path) -> None:
    with safe_open(saved, framework="pt") as file:
        metadata, names = file.metadata(), set(file.keys())
        means = file.get_tensor("method.memory.means")
    assert metadata["kind"] == "gatf-model"
    assert json.loads(metadata["model"])["labels"] == grown.classes_.tolist()
    assert torch.equal(means, grown.model_.method.memory.means)
    extra = {name for name in names if not name.startswith("method.backbone.")}
    assert extra == {
        "method.memory.means",
        "method.memory.triangles",
        "counts",
        "calibration",
        "errors",
        "measured",
        "strangeness",
    }


def test_statistics_of_100_classes_take_less_than_a_megabyte(grown: Any, tmp_path: Path) -> None:
    config = load_config({}, method="gatf", overrides={"backbone.name": "small", "backbone.width": 4})
    assert config.backbone.bottleneck == 64
    method = build_method(config, (3, 16, 16))
    draws = torch.Generator().manual_seed(0)
    roots = torch.randn(100, 64, 64, generator=draws, dtype=torch.float64)
    stored = Gaussians(torch.randn(100, 64, generator=draws), roots @ roots.mT)
    method.keep(stored)
    model = Model(
        config, Preprocessing((3, 16, 16), (0.5,) * 3, (0.5,) * 3), method, tuple(f"class {n}" for n in range(100)),
        torch.full((100,), 500), 1.0, NO_CALIBRATION, torch.zeros(100, dtype=torch.float64), torch.rand(5000, 2),
        grown.history_,
    )  # fmt: skip
    model_file.save(model, tmp_path / "large.gatf")
    weights = sum(tensor.numel() * tensor.element_size() for tensor in method.backbone.state_dict().values())
    assert (tmp_path / "large.gatf").stat().st_size - weights < 1_000_000
    read = model_file.load(tmp_path / "large.gatf").method.stored()
    torch.testing.assert_close(read.covs, stored.covs, rtol=1e-6, atol=1e-4)


def test_saving_keeps_the_old_file_until_the_new_one_is_complete(grown: Any, saved: Path, monkeypatch: Any) -> None:
    before = saved.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gatf.io.container.os.fsync", fail)
    with pytest.raises(UserError, match=r"No space left on device.*untouched"):
        grown.save(saved)
    assert saved.read_bytes() == before
    assert [file.name for file in saved.parent.iterdir()] == ["shop.gatf"]


def test_a_file_that_is_no_model_is_reported(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no model"):
        model_file.load(tmp_path / "nowhere.gatf")
    with pytest.raises(UserError, match="is a folder"):
        model_file.load(tmp_path)
    with pytest.raises(UserError, match="learnt no class"):
        model_file.save(replace(model_file.load(saved), labels=()), tmp_path / "empty.gatf")


class Bomb:
    """Pickled, it makes a file when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


def test_an_onnx_file_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "shop.onnx").write_bytes(b"\x08\x08")
    with pytest.raises(UserError, match="is an ONNX file, for onnxruntime"):
        model_file.load(tmp_path / "shop.onnx")


def test_a_pickle_and_a_zip_are_refused_and_not_run(tmp_path: Path) -> None:
    import pickle

    trap, model = tmp_path / "trap", tmp_path / "shop.gatf"
    for protocol in (2, 4, 5):
        model.write_bytes(pickle.dumps(Bomb(trap), protocol))
        with pytest.raises(UserError, match="it is a pickle, and nothing in it was run"):
            IncrementalClassifier.load(model)
    torch.save({"weights": Bomb(trap)}, model)
    assert zipfile.is_zipfile(model)
    with pytest.raises(UserError, match="zip archive"):
        IncrementalClassifier.load(model)
    model.write_bytes(pickle.dumps(Bomb(trap), 0))
    with pytest.raises(UserError, match="not a model"):
        IncrementalClassifier.load(model)
    assert not trap.exists()


def test_a_truncated_file_is_refused_at_any_byte(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    lengths = {*range(0, 300), *range(0, len(whole), 997), len(whole) - 1}
    for length in lengths:
        (tmp_path / "cut.gatf").write_bytes(whole[:length])
        with pytest.raises(UserError, match="not a model, or a damaged one"):
            model_file.load(tmp_path / "cut.gatf")


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**12, 2**31, 0])
def test_absurd_header_lengths_are_refused(saved: Path, length: int) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(length.to_bytes(8, "little") + whole[8:])
    with pytest.raises(UserError, match="not a model, or a damaged one"):
        model_file.load(saved)


def test_a_newer_format_is_reported(saved: Path) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole.replace(b'"format":"3"', b'"format":"4"', 1))
    with pytest.raises(UserError, match="made by a newer gatf; this one reads up to format 3: upgrade gatf"):
        model_file.load(saved)


def rewritten(path: Path, change: Any) -> Path:
    """The file with its description or tensors changed, and a checksum that fits: what a forger would write."""
    tensors, header = container.read(path)
    change(header.model, tensors)
    target = path.with_name("forged.gatf")
    container.write(target, tensors, header.model)
    return target


FORGERIES: dict[str, Any] = {
    "a huge network": lambda reported, _: reported["config"]["backbone"].update(width=100_000),
    "a huge feature": lambda reported, _: reported["config"]["backbone"].update(bottleneck=10**9),
    "weights from elsewhere": lambda reported, _: reported["config"]["backbone"].update(pretrained="someone/model"),
    "code from a hub": lambda reported, _: reported["config"]["backbone"].update(name="timm:hf-hub:someone/model"),
    "an unknown method": lambda reported, _: reported["config"]["method"].update(name="nothing"),
    "an unknown setting": lambda reported, _: reported["config"].update(colour="red"),
    "another method": lambda reported, _: reported["config"].update(method={"name": "lwf"}),
    "a label too few": lambda reported, _: reported["labels"].pop(),
    "a label twice": lambda reported, _: reported["labels"].__setitem__(0, reported["labels"][1]),
    "a label of another kind": lambda reported, _: reported["labels"].__setitem__(0, 5),
    "no temperature": lambda reported, _: reported.update(temperature=0.0),
    "a huge image": lambda reported, _: reported.update(shape=[1, 10**6, 10**6]),
    "another image": lambda reported, _: reported.update(shape=[3, 8, 8]),
    "no history": lambda reported, _: reported.update(history=[]),
    "text for a number": lambda reported, _: reported.update(mean="0.5"),
    "nothing of an image": lambda reported, _: reported.update(central_share=0.0),
    "more than an image": lambda reported, _: reported.update(central_share=1.5),
    "no share of an image": lambda reported, _: reported.update(central_share=float("nan")),
    "fewer Gaussians": lambda _, tensors: tensors.update({"method.memory.means": tensors["method.memory.means"][1:]}),
    "other triangles": lambda _, tensors: tensors.update({"method.memory.triangles": torch.zeros(7, 5)}),
    "a NaN": lambda _, tensors: tensors["method.memory.means"].fill_(float("nan")),
    "a strange tensor": lambda _, tensors: tensors.update(strange=torch.zeros(3)),
    "a tensor missing": lambda _, tensors: tensors.pop("method.backbone.bottleneck.weight"),
    "another dtype": lambda _, tensors: tensors.update(counts=tensors["counts"].float()),
    "negative counts": lambda _, tensors: tensors["counts"].neg_(),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_contents_are_refused(forgery: str, saved: Path) -> None:
    with pytest.raises(UserError, match="not a model, or a damaged one"):
        model_file.load(rewritten(saved, FORGERIES[forgery]))


def test_an_honest_rewrite_is_accepted(saved: Path) -> None:
    assert model_file.load(rewritten(saved, lambda *_: None)).labels == model_file.load(saved).labels


def test_tensors_that_lie_over_each_other_are_refused(tmp_path: Path) -> None:
    """Two that share their bytes, with a checksum that fits: a small file must not become a large model."""
    place = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    reported = {"kind": "gatf-model", "format": "2", "digest": "0" * 32, "model": "{}"}
    header = json.dumps({"__metadata__": reported, "a": place, "b": place}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(8)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest().encode()
    (tmp_path / "over.gatf").write_bytes(content.replace(b"0" * 32, digest, 1))
    with pytest.raises(UserError, match="tensor 'b' does not begin where the one before it ends"):
        container.inspect(tmp_path / "over.gatf")


def test_a_header_longer_than_the_file_calls_for_is_not_parsed(tmp_path: Path) -> None:
    """One long string has few entries, and would be parsed."""
    header = json.dumps({"x": "a" * 2**21}).encode()
    (tmp_path / "long.gatf").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(UserError, match="too long for a file of"):
        container.inspect(tmp_path / "long.gatf")


@pytest.mark.parametrize("count", [1, 3])
def test_a_tensor_with_gaps_has_the_digest_of_its_values(count: int) -> None:
    """A column of a larger tensor is not one block of memory."""
    column = torch.rand(count, 5)[:, 1:2]
    assert container.digest_of({"one": column}) == container.digest_of({"one": torch.tensor(column.tolist())})
