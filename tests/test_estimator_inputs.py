"""Images in all the forms people have them, and what is wrong with the wrong ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gatf.data.inputs import read_class_folders, read_images, read_labelled
from gatf.errors import UserError
from gatf.incremental.update_file import update_model_file

Digits = tuple[np.ndarray, np.ndarray]
Tiny = Callable[..., Any]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, digit_images: Digits) -> Path:
    """Two class folders of 12×12 PNG images, 20 a class."""
    folder = tmp_path_factory.mktemp("photos")
    images, labels = digit_images
    for name in ("d0", "d1"):
        (folder / name).mkdir()
        for number, pixels in enumerate(images[labels == name][:20]):
            Image.fromarray(pixels).resize((12, 12)).save(folder / name / f"{number:02d}.png")
    return folder


def test_all_forms_of_an_array_are_the_same_images() -> None:
    colour = np.random.default_rng(0).integers(0, 256, (4, 9, 9, 3), dtype=np.uint8)
    expected = torch.from_numpy(colour).permute(0, 3, 1, 2)
    forms = {
        "channels last": colour,
        "channels first": colour.transpose(0, 3, 1, 2),
        "tensor": expected,
        "tensor, channels last": torch.from_numpy(colour),
        "int64": colour.astype(np.int64),
        "float": colour / 255,
        "float32 tensor": expected / 255,
        "list of arrays": list(colour),
        "list of tensors": list(expected),
        "fortran order": np.asfortranarray(colour),
        "big-endian": colour.astype(">u2"),
    }
    for name, form in forms.items():
        assert torch.equal(read_images(form).images((3, 9, 9)), expected), name
    assert torch.equal(read_images(colour[..., 0]).images((1, 9, 9)), expected[:, :1])


def test_files_pil_images_and_folders_are_the_same_images(photos: Path) -> None:
    paths = sorted(photos.rglob("*.png"))
    pictures = [Image.open(path) for path in paths]
    expected = read_images(photos).images((3, 12, 12))
    assert expected.shape == (40, 3, 12, 12)
    for form in (paths, [str(path) for path in paths], np.array([str(path) for path in paths]), pictures):
        assert torch.equal(read_images(form).images((3, 12, 12)), expected)
    given, labels = read_class_folders(photos)
    assert given.natural_shape() == (3, 12, 12)
    assert labels.tolist() == ["d0"] * 20 + ["d1"] * 20


def test_large_files_and_pil_images_agree(tmp_path: Path) -> None:
    """Large files are decoded on the fly, pictures in memory: one image must not have two views."""
    pixels = np.random.default_rng(0).integers(0, 256, (100, 140, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    lazy = read_images(tmp_path / "one.png").images((3, 96, 96))
    (decoded,) = lazy.stream([torch.tensor([0])])
    assert torch.equal(decoded, read_images(Image.open(tmp_path / "one.png")).images((3, 96, 96)))


def test_a_folder_is_learnt_and_files_are_predicted(photos: Path, tiny_classifier: Tiny) -> None:
    learner = tiny_classifier(epochs=6, width=8).fit(photos)
    assert learner.classes_.tolist() == ["d0", "d1"]
    assert learner.model_.preprocessing.shape == (3, 12, 12)
    assert (learner.predict(photos / "d0") == "d0").mean() > 0.7
    assert learner.predict(str(photos / "d1" / "00.png")).shape == (1,)
    smaller = tiny_classifier(epochs=1, image_size=8).fit(photos)
    assert smaller.model_.preprocessing.shape == (3, 8, 8)


def test_large_photos_train_on_the_fly(tmp_path: Path, tiny_classifier: Tiny) -> None:
    for name, colour in (("red", (250, 20, 20)), ("blue", (20, 20, 250))):
        (tmp_path / name).mkdir()
        for number in range(6):
            Image.new("RGB", (90 + number, 80), colour).save(tmp_path / name / f"{number}.jpg")
    learner = tiny_classifier(epochs=2, image_size=72).fit(tmp_path)
    assert learner.model_.config.backbone.name == "resnet18"
    assert learner.model_.config.backbone.stem == "7x7"
    assert set(learner.predict(tmp_path)) <= {"red", "blue"}


GOOD = np.zeros((4, 8, 8), np.uint8)
BAD: dict[str, tuple[Any, Any, str]] = {
    "label count": (GOOD, [0, 1, 0], "4 images but 3 labels"),
    "no labels": (GOOD, None, "requires y"),
    "one class only": (GOOD, [1, 1, 1, 1], "at least two classes"),
    "NaN pixels": (np.full((4, 8, 8), np.nan), [0, 1, 0, 1], "NaN"),
    "infinite pixels": (np.full((4, 8, 8), np.inf), [0, 1, 0, 1], "infinity"),
    "floats up to 16": (np.full((4, 8, 8), 16.0), [0, 1, 0, 1], "between 0 and 1"),
    "numbers over 255": (np.full((4, 8, 8), 300), [0, 1, 0, 1], "between 0 and 255"),
    "flat rows": (np.zeros((4, 64), np.uint8), [0, 1, 0, 1], "X.reshape"),
    "four channels": (np.zeros((4, 8, 8, 4), np.uint8), [0, 1, 0, 1], "neither 1 nor 3 channels"),
    "not square": (np.zeros((4, 8, 12), np.uint8), [0, 1, 0, 1], "must be square"),
    "too small": (np.zeros((4, 4, 4), np.uint8), [0, 1, 0, 1], "at least 8 pixels"),
    "no images": (np.zeros((0, 8, 8), np.uint8), [], "there are no images"),
    "empty list": ([], [], "there are no images"),
    "different sizes": ([np.zeros((8, 8)), np.zeros((9, 9))], [0, 1], "different shapes"),
    "mixed kinds": (["a.png", np.zeros((8, 8))], [0, 1], "mix paths"),
    "strings as pixels": (np.array([["a"]] * 4).reshape(4, 1, 1), [0, 1, 0, 1], "are not|there is no image|shape"),
    "a dictionary": ({"a": 1}, [0], "not understood"),
    "continuous labels": (GOOD, [0.5, 1.0, 0.5, 1.0], "continuous"),
    "mixed labels": (GOOD, np.array([0, "a", 0, "a"], dtype=object), "all text or all whole numbers"),
    "missing file": (["nowhere.png"], [0], "there is no image nowhere.png"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_reported_in_a_sentence(case: str, tiny_classifier: Tiny) -> None:
    images, labels, words = BAD[case]
    with pytest.raises(UserError, match=words) as raised:
        tiny_classifier().fit(images, labels)
    assert "\n" not in str(raised.value)


def test_folders_without_images(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        read_class_folders(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no class folders"):
        read_class_folders(tmp_path)
    (tmp_path / "cats").mkdir()
    with pytest.raises(UserError, match="cats holds no images"):
        read_class_folders(tmp_path)
    with pytest.raises(UserError, match="holds no images"):
        read_images(tmp_path)
    with pytest.raises(UserError, match="brings its own labels"):
        read_labelled(tmp_path, [1])


def test_a_damaged_file_is_named(photos: Path, tmp_path: Path, tiny_classifier: Tiny) -> None:
    (tmp_path / "bad.png").write_bytes((photos / "d0" / "00.png").read_bytes()[:50])
    learner = tiny_classifier(epochs=1).fit(photos)
    with pytest.raises(UserError, match=r"bad\.png cannot be decoded"):
        learner.predict(tmp_path / "bad.png")


def test_new_images_must_fit_the_model(grown: Any) -> None:
    for images, words in (
        (np.zeros((4, 9, 9), np.uint8), "are 9×9 grey, but the model was made for 8×8 grey"),
        (np.zeros((4, 8, 8, 3), np.uint8), "are 8×8 colour, but the model was made for 8×8 grey"),
    ):
        with pytest.raises(UserError, match=words):
            grown.predict(images)
        with pytest.raises(UserError, match=words):
            grown.partial_fit(images, ["d7"] * 4)
    with pytest.raises(UserError, match="labels of the model are text"):
        grown.partial_fit(np.zeros((4, 8, 8), np.uint8), [7] * 4)
    assert len(grown.classes_) == 7


def test_images_become_grey_for_a_grey_model(grown: Any, digit_images: Digits) -> None:
    images = digit_images[0][:20]
    assert np.array_equal(grown.predict([Image.fromarray(image) for image in images]), grown.predict(images))
    colour = Image.new("RGB", (8, 8), (200, 30, 90))
    assert read_images(colour).images((1, 8, 8)).unique().item() == colour.convert("L").getpixel((0, 0))


def test_small_files_are_decoded_once(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a first update: the size, the normalisation and the training look at the same decoded pixels."""

    from gatf.data import encoded

    decoded: list[str] = []
    plain = encoded.decode

    def counted(data: bytes, name: str, *args: Any) -> np.ndarray:
        decoded.append(name)
        return plain(data, name, *args)

    monkeypatch.setattr(encoded, "decode", counted)
    update_model_file(photos.parent / "once.gatf", photos, parameters={"epochs": 1, "device": "cpu"}, skip_bad=True)
    assert len(decoded) == len(set(decoded)) > 0
