"""Each layout is read as it is meant, and what is odd about one is said."""

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gatf.data.base import LazyImages
from gatf.data.published import imagenet100_wnids
from gatf.data.scenario import build_scenario
from gatf.data.sources import open_source
from gatf.errors import UserError
from gatf.settings import DataConfig, ScenarioConfig

pytestmark = pytest.mark.usefixtures("no_network")
Build = Callable[..., Path]


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


# --- the benchmarks ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_classes")
def test_cifar100_in_the_hubs_layout(tmp_path: Path, hub_copy: Build, picture: Callable[..., Image.Image]) -> None:
    parts = {"train": [1, 0, 1], "test": [0, 1]}
    shards = {"image": "img", "label": "fine_label", "path": "data/{}-00000-of-00001.parquet"}
    hub_copy(tmp_path, parts, names=["apple", "bear"], **shards)
    source = open_source(DataConfig(name="cifar100", root=str(tmp_path)))
    assert source.class_names == ("apple", "bear")
    assert source.train.labels.tolist() == [1, 0, 1]
    assert torch.equal(source.train.images[2], pixels(picture(2)))
    assert torch.equal(source.test.images[0], pixels(picture(1000)))
    assert source.published_order is None  # two classes are not the published hundred
    assert source.warnings == (
        "cifar100: 2 classes, expected 100",
        "cifar100: class 'apple' has 1, 'bear' has 2 training images, expected 500",
        "cifar100: class 'apple' has 1, 'bear' has 1 test images, expected 100",
    )


@pytest.mark.usefixtures("few_classes")
def test_cifar100_as_pickles(tmp_path: Path, cifar_pickles: Build) -> None:
    cifar_pickles(tmp_path)
    for root in (tmp_path, tmp_path / "cifar-100-python"):
        source = open_source(DataConfig(name="cifar100", root=str(root)))
        assert source.class_names == ("apple", "bear", "cup")
        assert source.train.images.shape == (6, 3, 32, 32)
        assert source.test.labels.tolist() == [0, 1, 2]
    rows = pickle.loads((tmp_path / "cifar-100-python" / "train").read_bytes())["data"]
    assert source.train.images[1].flatten().tolist() == rows[1].tolist()  # red plane, green plane, blue plane


def test_a_pickle_that_wants_to_run_code_is_refused(
    tmp_path: Path, cifar_pickles: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    cifar_pickles(tmp_path)
    monkeypatch.chdir(tmp_path)
    for content in (
        b"cos\nsystem\n(S'touch pwned'\ntR.",
        pickle.dumps({"data": os.getcwd}),
        pickle.dumps([1]),
        b"junk",
    ):
        (tmp_path / "cifar-100-python" / "test").write_bytes(content)
        with pytest.raises(UserError, match=r"test .*get CIFAR-100 again"):
            open_source(DataConfig(name="cifar100", root=str(tmp_path)))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.usefixtures("few_classes")
def test_tiny_imagenet_with_its_annotations(
    tmp_path: Path, tiny_imagenet: Build, picture: Callable[..., Image.Image]
) -> None:
    source = open_source(DataConfig(name="tinyimagenet", root=str(tiny_imagenet(tmp_path))))
    assert source.class_names == ("n01", "n02")
    assert source.image_shape == (3, 64, 64)
    assert source.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert source.test.labels.tolist() == [0, 1]
    near = (source.test.images[0].int() - pixels(picture(7, 64, 64)).int()).abs().float().mean()  # 001.jpeg is number 7
    assert near < 4


def test_annotations_that_do_not_fit_are_named(tmp_path: Path, tiny_imagenet: Build) -> None:
    file = tiny_imagenet(tmp_path) / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    file.write_text("000.jpeg\tn99\n")
    with pytest.raises(UserError, match=r"val_annotations.txt names class n99"):
        open_source(DataConfig(name="tinyimagenet", root=str(tmp_path)))
    file.write_text("000.jpeg\n")
    with pytest.raises(UserError, match=r"line 1 of .*val_annotations.txt has fewer than 2 words"):
        open_source(DataConfig(name="tinyimagenet", root=str(tmp_path)))


@pytest.mark.usefixtures("few_classes")
def test_cub_with_its_text_files(tmp_path: Path, cub: Build) -> None:
    source = open_source(DataConfig(name="cub200", root=str(cub(tmp_path)), workers=0))
    assert source.class_names == ("001.Albatross", "002.Auklet")
    assert source.image_shape == (3, 224, 224)
    assert isinstance(source.train.images, LazyImages)
    assert source.train.labels.tolist() == [0, 0, 1, 1]
    assert [Path(source.test.images.encoded.name(n)).name for n in range(2)] == ["1.jpg", "1.jpg"]


def test_cub_files_that_disagree(tmp_path: Path, cub: Build) -> None:
    (cub(tmp_path) / "CUB_200_2011" / "train_test_split.txt").write_text("1 1\n")
    with pytest.raises(UserError, match=r"do not agree \(image 2, 3, 4 and 2 more\)"):
        open_source(DataConfig(name="cub200", root=str(tmp_path)))


def test_imagenet100_takes_its_list_out_of_imagenet(tmp_path: Path, image_folder: Build) -> None:
    wnids = imagenet100_wnids()
    counts = {f"{part}/{wnid}": 1 for part in ("train", "val") for wnid in (*wnids, "n00000000")}
    image_folder(tmp_path, counts, size=(12, 10), kind="JPEG")
    source = open_source(DataConfig(name="imagenet100", root=str(tmp_path), workers=0))
    assert source.class_names == wnids
    assert source.published_order == tuple(range(100))
    assert len(source.train) == len(source.test) == 100  # the class outside the list is not there
    (tmp_path / "train" / wnids[7] / "000.jpeg").unlink()
    with pytest.raises(UserError, match=f"{wnids[7]} holds no images"):
        open_source(DataConfig(name="imagenet100", root=str(tmp_path)))


def test_imagenet100_as_kaggle_has_it(tmp_path: Path, image_folder: Build) -> None:
    data = tmp_path / "imagenet100" / "seed_1993_subset_100_imagenet" / "data"
    image_folder(data, {f"{part}/{wnid}": 1 for part in ("train", "val") for wnid in imagenet100_wnids()}, kind="JPEG")
    source = open_source(DataConfig(name="imagenet100", root=str(tmp_path), workers=0))
    assert source.class_names == imagenet100_wnids()


def test_imagenet100_of_another_list_is_refused_and_the_setting_named(tmp_path: Path, image_folder: Build) -> None:
    wnids = imagenet100_wnids("cmc")
    image_folder(tmp_path, {f"{part}/{wnid}": 1 for part in ("train", "val") for wnid in wnids}, kind="JPEG")
    with pytest.raises(UserError) as caught:
        open_source(DataConfig(name="imagenet100", root=str(tmp_path)))
    assert str(caught.value) == (
        f"{tmp_path} lacks 93 of the 100 classes of AdaGauss's ImageNet-100 (n03710193, n03089624, n04152593 and 90 "
        "more), the default of data.class_list, and holds CMC's: set data.class_list=cmc to use those"
    )
    source = open_source(DataConfig(name="imagenet100", root=str(tmp_path), class_list="cmc", workers=0))
    assert source.class_names == wnids
    assert source.published_order == tuple(range(100))
    assert any("CMC's classes" in warning for warning in source.warnings)
    (tmp_path / "train" / wnids[7]).rename(tmp_path / "train" / "n00000000")
    with pytest.raises(UserError, match=rf"lacks 1 of the 100 classes of CMC's ImageNet-100 \({wnids[7]}\); add"):
        open_source(DataConfig(name="imagenet100", root=str(tmp_path), class_list="cmc"))


HUB_NAMES = [
    "bonnet, poke bonnet", "green mamba", "langur", "Doberman, Doberman pinscher", "gyromitra", "Saluki, gazelle hound",
    "vacuum, vacuum cleaner", "window screen", "cocktail shaker", "garden spider, Aranea diademata",
    *(f"word {number}" for number in range(10, 100)),
]  # fmt: skip
"""The hub's clane9/imagenet-100 names its classes in words; the first ten are its own."""


def hundred(hub_copy: Build, folder: Path, **more: Any) -> Path:
    return hub_copy(folder, {"train": list(range(100)), "validation": list(range(100))}, size=(8, 8), **more)


def test_imagenet100_from_the_hub_is_cmcs(tmp_path: Path, hub_copy: Build) -> None:
    hundred(hub_copy, tmp_path, names=HUB_NAMES)
    with pytest.raises(UserError, match=r"lacks 93 of .* and holds CMC's: set data.class_list=cmc to use those"):
        open_source(DataConfig(name="imagenet100", root=str(tmp_path)))
    source = open_source(DataConfig(name="imagenet100", root=str(tmp_path), class_list="cmc", workers=0))
    assert source.class_names == tuple(HUB_NAMES)
    assert source.train.labels.tolist() == list(range(100))
    assert any("CMC's classes" in warning for warning in source.warnings)
    # two of them, by wnid and in another order
    (tmp_path / "list.txt").write_text("n01749939\nn02869837\n")
    some = open_source(
        DataConfig(name="imagenet100", root=str(tmp_path), class_list=str(tmp_path / "list.txt"), workers=0)
    )
    assert some.class_names == ("green mamba", "bonnet, poke bonnet")
    assert some.train.labels.tolist() == [1, 0]
    assert [some.train.images.encoded.name(number)[:8] for number in range(2)] == ["in row 0", "in row 1"]


def test_imagenet100_from_files_that_name_wnids(tmp_path: Path, hub_copy: Build) -> None:
    wnids = sorted(imagenet100_wnids())
    hundred(hub_copy, tmp_path, names=wnids)
    source = open_source(DataConfig(name="imagenet100", root=str(tmp_path), workers=0))
    assert source.class_names == imagenet100_wnids()
    assert source.train.labels.tolist() == [imagenet100_wnids().index(wnid) for wnid in wnids]
    with pytest.raises(UserError, match=r"classes of CMC's .* and holds AdaGauss's: set data.class_list=adagauss"):
        open_source(DataConfig(name="imagenet100", root=str(tmp_path), class_list="cmc"))


def test_imagenet100_from_files_that_do_not_say_their_classes(tmp_path: Path, hub_copy: Build) -> None:
    hundred(hub_copy, tmp_path / "numbers")
    config = DataConfig(name="imagenet100", root=str(tmp_path / "numbers"), workers=0)
    with pytest.raises(UserError, match=r"do not identify classes of ImageNet; .*data.class_list=cmc"):
        open_source(config)
    assert open_source(config.model_copy(update={"class_list": "cmc"})).class_names == imagenet100_wnids("cmc")
    hundred(hub_copy, tmp_path / "words", names=[f"word {number}" for number in range(100)])
    for class_list in (None, "cmc"):
        with pytest.raises(UserError, match=r"list is unknown; .*data.name=parquet"):
            open_source(DataConfig(name="imagenet100", root=str(tmp_path / "words"), class_list=class_list))


def test_imagenet100_with_a_list_of_ones_own(tmp_path: Path, image_folder: Build) -> None:
    image_folder(tmp_path, {"train/b": 1, "train/a": 1, "train/c": 1, "val/a": 1, "val/b": 1, "val/c": 1}, kind="JPEG")
    (tmp_path / "list.txt").write_text("# mine\nc\na\n")
    config = DataConfig(name="imagenet100", root=str(tmp_path), class_list=str(tmp_path / "list.txt"), workers=0)
    assert open_source(config).class_names == ("c", "a")


def test_missing_data_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATF_DATA", str(tmp_path))
    with pytest.raises(UserError) as caught:
        open_source(DataConfig(name="cifar100"))
    assert str(caught.value) == (
        f"'cifar100' is not in {tmp_path / 'cifar100'} or {tmp_path}: get it with `gatf data get cifar100`, or name a "
        "folder that holds it (parquet files with the hub's columns or the folder cifar-100-python) with --data-root "
        "or GATF_DATA"
    )
    with pytest.raises(UserError, match="gatf data get cub200 --hub"):
        open_source(DataConfig(name="cub200"))
    with pytest.raises(UserError, match="no data source is called 'cifar10'; did you mean 'cifar100'"):
        open_source(DataConfig(name="cifar10"))


@pytest.mark.usefixtures("few_classes")
def test_gatf_data_holds_several_sources(
    tmp_path: Path, cifar_pickles: Build, cub: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    cifar_pickles(tmp_path / "cifar100")
    cub(tmp_path / "cub200")
    monkeypatch.setenv("GATF_DATA", str(tmp_path))
    assert open_source(DataConfig(name="cifar100")).classes == 3
    assert open_source(DataConfig(name="cub200")).classes == 2


@pytest.mark.usefixtures("few_classes")
def test_a_benchmark_is_not_looked_for_in_the_folder_of_another(
    tmp_path: Path, hub_copy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATF_DATA", str(tmp_path))
    hub_copy(tmp_path / "cifar100", {"train": [0, 1], "test": [0, 1]})
    assert open_source(DataConfig(name="cifar100")).classes == 2
    for name in ("tinyimagenet", "imagenet100", "cub200"):
        with pytest.raises(UserError, match=f"'{name}' is not in {tmp_path / name} or {tmp_path}: "):
            open_source(DataConfig(name=name, class_list="cmc" if name == "imagenet100" else None))
    # nor does a folder of its own, or the root named for it, mix with files elsewhere below it
    hub_copy(tmp_path / "tinyimagenet", {"train": [0, 1, 2], "validation": [0, 1, 2]}, path="data/{}-0.parquet")
    hub_copy(tmp_path / "tinyimagenet", {"train": [0] * 9, "test": [1] * 9}, path="old/{}.parquet")
    source = open_source(DataConfig(name="tinyimagenet"))
    assert (len(source.train), len(source.test)) == (3, 3)


def test_a_benchmark_with_other_classes_is_refused(tmp_path: Path, hub_copy: Build, cub: Build) -> None:
    hub_copy(tmp_path / "cifar100", {"train": [0, 1], "test": [0, 1]}, names=["apple", "bear"])
    with pytest.raises(UserError) as caught:
        open_source(DataConfig(name="cifar100", root=str(tmp_path)))
    assert str(caught.value) == (
        f"{tmp_path / 'cifar100'} holds 2 classes, but cifar100 has 100; name a folder that holds cifar100 with "
        "--data-root or GATF_DATA, or use data.name=parquet or folder for images of your own"
    )
    with pytest.raises(UserError, match=r"holds 2 classes, but cub200 has 200; name a folder"):
        open_source(DataConfig(name="cub200", root=str(cub(tmp_path))))
    hundred(hub_copy, tmp_path / "other", names=HUB_NAMES)
    with pytest.raises(UserError, match=r"other holds other classes than cifar100: its first is 'bonnet, poke bonnet'"):
        open_source(DataConfig(name="cifar100", root=str(tmp_path / "other")))


def test_several_folders_of_parquet_files_are_not_mixed(tmp_path: Path, hub_copy: Build) -> None:
    for name in ("birds", "cars"):
        hub_copy(tmp_path / name, {"train": [0, 1], "test": [0, 1]})
    with pytest.raises(UserError, match=r"parquet files in several folders \(birds, cars\); name one with --data-root"):
        open_source(DataConfig(name="parquet", root=str(tmp_path)))


def test_parquet_without_pyarrow_is_one_sentence(
    tmp_path: Path, hub_copy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_copy(tmp_path, {"train": [0, 1], "test": [0, 1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("parquet", "cifar100"):
        with pytest.raises(UserError, match=r"this needs 'pyarrow': pip install"):
            open_source(DataConfig(name=name, root=str(tmp_path)))


# --- own folders ------------------------------------------------------------------------------------------------------


def test_folders_with_train_and_test(tmp_path: Path, image_folder: Build) -> None:
    image_folder(tmp_path, {"train/dog": 2, "train/cat": 3, "test/cat": 1, "test/dog": 1})
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / "cat" / ".hidden.png").write_bytes(b"")
    source = open_source(DataConfig(name="folder", root=str(tmp_path)))
    assert source.class_names == ("cat", "dog")
    assert source.train.labels.tolist() == [0, 0, 0, 1, 1]
    assert source.image_shape == (3, 32, 32)
    assert source.warnings == ()


def test_folders_alone_are_split_by_class(tmp_path: Path, image_folder: Build) -> None:
    image_folder(tmp_path, {"cat": 10, "dog": 5})
    source = open_source(DataConfig(name="folder", root=str(tmp_path), test_fraction=0.4))
    assert torch.bincount(source.test.labels).tolist() == [4, 2]
    assert torch.bincount(source.train.labels).tolist() == [6, 3]
    cats = source.test.images[source.test.labels == 0]
    image_folder(tmp_path, {"ant": 4})
    again = open_source(DataConfig(name="folder", root=str(tmp_path), test_fraction=0.4))
    assert torch.equal(again.test.images[again.test.labels == 1], cats)  # a new class does not move the others' split


def test_images_of_other_sizes_are_decoded_on_the_fly(tmp_path: Path, image_folder: Build) -> None:
    image_folder(tmp_path, {"train/a": 2, "test/a": 1}, size=(40, 32))
    source = open_source(DataConfig(name="folder", root=str(tmp_path)))
    assert isinstance(source.train.images, LazyImages)
    assert source.image_shape == (3, 224, 224)
    small = open_source(DataConfig(name="folder", root=str(tmp_path), image_size=16))
    assert isinstance(small.train.images, torch.Tensor)
    assert small.image_shape == (3, 16, 16)


def test_class_folders_that_differ_by_case(tmp_path: Path, image_folder: Build) -> None:
    image_folder(tmp_path, {"train/Cat": 1, "train/cat": 1, "test/cat": 1})
    if len(list((tmp_path / "train").iterdir())) == 1:
        pytest.skip("this file system does not tell cases apart")
    with pytest.raises(UserError, match=r"Cat and cat in .*train differ only by case"):
        open_source(DataConfig(name="folder", root=str(tmp_path)))


def test_an_empty_class_is_an_error(tmp_path: Path, image_folder: Build) -> None:
    image_folder(tmp_path, {"train/cat": 1, "train/dog": 0, "test/cat": 1})
    with pytest.raises(UserError, match="train/dog holds no images; add images or take the class out"):
        open_source(DataConfig(name="folder", root=str(tmp_path)))


def test_a_train_class_without_test_images(tmp_path: Path, image_folder: Build) -> None:
    image_folder(tmp_path, {"train/cat": 1, "train/dog": 1, "test/cat": 1})
    source = open_source(DataConfig(name="folder", root=str(tmp_path)))
    assert source.warnings == ("folder: class 'dog' has 0 test images, expected at least 1",)
    with pytest.raises(UserError, match="class dog of 'folder' has no test images; add some, or leave the class out"):
        build_scenario(source, ScenarioConfig(tasks=1), 0)
    assert build_scenario(source, ScenarioConfig(tasks=1, order=("cat",)), 0).class_names == ("cat",)


def test_a_test_class_without_training_images_is_left_out(tmp_path: Path, image_folder: Build) -> None:
    image_folder(tmp_path, {"train/cat": 1, "test/cat": 1, "test/ufo": 2})
    source = open_source(DataConfig(name="folder", root=str(tmp_path)))
    assert source.class_names == ("cat",)
    assert len(source.test) == 1
    assert "class ufo has no training images and is left out" in source.warnings[0]


def read_all(config: DataConfig) -> torch.Tensor:
    """Every training image, decoded."""
    source = open_source(config)
    return torch.cat(list(source.train.stream([torch.arange(len(source.train))])))


@pytest.mark.parametrize("size", [32, 224])
def test_a_bad_image_fails_or_is_skipped(tmp_path: Path, image_folder: Build, size: int) -> None:
    image_folder(tmp_path, {"train/cat": 3, "train/dog": 2, "test/cat": 1, "test/dog": 1})
    bad = tmp_path / "train" / "cat" / "001.png"
    bad.write_bytes(bad.read_bytes()[:50])
    config = DataConfig(name="folder", root=str(tmp_path), image_size=size, workers=2)

    with pytest.raises(UserError, match=r"cat/001\.png cannot be decoded"):
        read_all(config)
    skipping = config.model_copy(update={"on_bad_image": "skip"})
    assert len(read_all(skipping)) == 4
    source = open_source(skipping)
    assert source.train.labels.tolist() == [0, 0, 1, 1]
    assert source.warnings == (f"folder: {bad} left out of the training images: not decodable",)


@pytest.mark.parametrize("size", [None, 32, 224])
def test_a_file_that_cannot_be_read_is_a_bad_image_too(tmp_path: Path, image_folder: Build, size: int | None) -> None:
    """A link to nowhere, first in its class; images after it are still there."""
    image_folder(tmp_path, {"train/cat": 2, "train/dog": 2, "test/cat": 1, "test/dog": 1})
    gone = tmp_path / "train" / "cat" / "000.png"
    gone.unlink()
    gone.symlink_to(tmp_path / "nowhere.png")
    failing = DataConfig(name="folder", root=str(tmp_path), image_size=size, workers=0)

    with pytest.raises(UserError, match=r"cat/000\.png cannot be read \(No such file or directory\)"):
        read_all(failing)
    skipping = failing.model_copy(update={"on_bad_image": "skip"})
    assert len(read_all(skipping)) == 3
    source = open_source(skipping)
    assert source.train.labels.tolist() == [0, 1, 1]
    assert source.warnings == (f"folder: {gone} left out of the training images: not decodable",)


def test_a_folder_that_is_not_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'folder' is for your own data: name a folder with .* with --data-root"):
        open_source(DataConfig(name="folder"))
    with pytest.raises(UserError, match="/nowhere is not there"):
        open_source(DataConfig(name="folder", root="/nowhere"))
    with pytest.raises(UserError, match=r"is not an .npz file"):
        open_source(DataConfig(name="npz", root=str(tmp_path)))


# --- own parquet files ------------------------------------------------------------------------------------------------


def test_labels_not_from_zero_are_renumbered(tmp_path: Path, hub_copy: Build) -> None:
    hub_copy(tmp_path, {"train": [5, 7, 5], "validation": [7, 5, 9]})
    source = open_source(DataConfig(name="parquet", root=str(tmp_path)))
    assert source.class_names == ("5", "7")
    assert source.train.labels.tolist() == [0, 1, 0]
    assert source.test.labels.tolist() == [1, 0]
    assert "labels are not 0 to 1 but 5, 7; renumbered in order" in source.warnings[0]
    assert "1 test images are of classes without training images" in source.warnings[1]


def test_labels_can_be_words(tmp_path: Path, hub_copy: Build) -> None:
    hub_copy(tmp_path, {"train": ["dog", "cat", "dog"], "test": ["cat", "dog"]}, label="kind")
    with pytest.raises(UserError, match=r"data.label_column, one of image, kind"):
        open_source(DataConfig(name="parquet", root=str(tmp_path)))
    with pytest.raises(UserError, match=r"no column 'kid' .*did you mean 'kind'"):
        open_source(DataConfig(name="parquet", root=str(tmp_path), label_column="kid"))
    source = open_source(DataConfig(name="parquet", root=str(tmp_path), label_column="kind"))
    assert source.class_names == ("cat", "dog")
    assert source.train.labels.tolist() == [1, 0, 1]


def test_words_that_only_the_test_part_has(tmp_path: Path, hub_copy: Build) -> None:
    hub_copy(tmp_path, {"train": ["b", "c"], "test": ["a", "c"]})
    source = open_source(DataConfig(name="parquet", root=str(tmp_path)))
    assert source.class_names == ("b", "c")
    assert source.test.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("labels", "names", "said"),
    [
        (["cat", "dog"], ["cat", "cow"], r"column 'label' of .* has 'dog', which is none of its 2 class names"),
        ([0, 1], ["cat", 7], r"class names that are no text"),
        ([0, 1], "cats", r"class names that are no text"),
    ],
)
def test_labels_and_names_that_do_not_fit_are_one_sentence(
    labels: list[Any], names: Any, said: str, tmp_path: Path, hub_copy: Build
) -> None:
    hub_copy(tmp_path, {"train": labels, "test": labels}, names=names)
    with pytest.raises(UserError, match=said):
        open_source(DataConfig(name="parquet", root=str(tmp_path)))


def test_one_parquet_file_is_split(tmp_path: Path, hub_copy: Build, picture: Callable[..., Image.Image]) -> None:
    file = hub_copy(tmp_path, {"train": [0, 1] * 5}) / "train.parquet"
    source = open_source(DataConfig(name="parquet", root=str(file)))
    assert (len(source.train), len(source.test)) == (8, 2)
    known = {tuple(pixels(picture(n)).flatten().tolist()): n % 2 for n in range(10)}
    for part in (source.train, source.test):
        assert [known[tuple(image.flatten().tolist())] for image in part.images] == part.labels.tolist()


def test_several_shards_are_one_part(tmp_path: Path, hub_copy: Build, picture: Callable[..., Image.Image]) -> None:
    for shard, labels in enumerate(([0, 1], [1, 0, 1])):
        path = f"data/{{}}-{shard:05d}-of-00002.parquet"
        hub_copy(tmp_path, {"train": labels, "test": [0, 1]}, path=path, size=(70, 60))
    source = open_source(DataConfig(name="parquet", root=str(tmp_path), workers=0))
    assert source.train.labels.tolist() == [0, 1, 1, 0, 1]
    lazy = source.train.images
    assert isinstance(lazy, LazyImages)
    assert lazy.encoded.name(3) == f"in row 1 of {tmp_path / 'data' / 'train-00001-of-00002.parquet'}"
    same = next(lazy.stream([torch.tensor([1, 3])]))  # both are image 1 of their file
    assert torch.equal(same[0], same[1])


@pytest.mark.parametrize(
    ("labels", "message"),
    [([0, -1], "labels below 0"), ([0.5, 1.0], "not class numbers"), ([0, None], "1 rows without a value")],
)
def test_labels_that_are_none(tmp_path: Path, hub_copy: Build, labels: list[object], message: str) -> None:
    hub_copy(tmp_path, {"train": labels, "test": [0, 1]})
    with pytest.raises(UserError, match=message):
        open_source(DataConfig(name="parquet", root=str(tmp_path)))


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / f"{part}.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match=r"train.parquet is not a readable parquet file"):
        open_source(DataConfig(name="parquet", root=str(tmp_path)))


# --- own arrays -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "channels"), [((8, 8), 1), ((8, 8, 3), 3), ((3, 8, 8), 3), ((8, 8, 1), 1)])
def test_arrays_of_every_shape(tmp_path: Path, shape: tuple[int, ...], channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, *shape), dtype=np.uint8)
    labels = np.array([1, 2, 1, 2, 1, 2])
    np.savez(tmp_path / "mine.npz", x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2, None])
    source = open_source(DataConfig(name="npz", root=str(tmp_path / "mine.npz")))
    assert source.image_shape == (channels, 8, 8)
    assert len(source.mean) == channels
    assert source.class_names == ("1", "2")
    planes = images if shape[0] == 3 else images.reshape(6, 8, 8, channels).transpose(0, 3, 1, 2)
    assert source.train.images.numpy().tolist() == planes.tolist()
    larger = open_source(DataConfig(name="npz", root=str(tmp_path), image_size=16))
    assert larger.image_shape == (channels, 16, 16)


def test_arrays_that_are_not_images(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    good, labels = np.zeros((4, 8, 8), np.uint8), np.array([0, 0, 1, 1])
    cases = [
        ({"x_train": good / 255, "y_train": labels}, "holds float64; images must be uint8"),
        ({"x_train": good[:, :7], "y_train": labels}, "must be square"),
        ({"x_train": good, "y_train": labels[:3]}, "4 images in 'x_train' and 3 labels"),
        ({"x_train": good, "y_train": labels / 2}, "not class numbers"),
        ({"pictures": good}, "has no training images: it needs arrays x_train/y_train"),
        ({"x_train": np.array([{}] * 4), "y_train": labels}, "an array holds Python objects, which are never loaded"),
    ]
    for arrays, message in cases:
        np.savez(file, **arrays)
        with pytest.raises(UserError, match=message):
            open_source(DataConfig(name="npz", root=str(file)))
    for content in (b"PK nothing", b"hello", b""):
        file.write_bytes(content)
        with pytest.raises(UserError, match="damaged or no archive") as refused:
            open_source(DataConfig(name="npz", root=str(file)))
        assert "allow_pickle" not in str(refused.value)  # NumPy would advise to load it unsafely


def test_arrays_with_one_part_are_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((10, 8, 8), np.uint8), labels=np.arange(10) % 2)
    source = open_source(DataConfig(name="npz", root=str(tmp_path)))
    assert torch.bincount(source.test.labels).tolist() == [1, 1]
    np.savez(tmp_path / "a.npz", images=np.zeros((3, 8, 8), np.uint8), labels=np.array([0, 0, 1]))
    with pytest.raises(UserError, match="class '1' has 1 image, too few to split"):
        open_source(DataConfig(name="npz", root=str(tmp_path)))


def test_an_archive_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of zeros takes a thousandth of that on disk."""
    monkeypatch.setattr("gatf.data.layouts.npz.SMALL", 2**16)
    zeros = np.zeros((16_384, 8, 8), np.uint8)
    np.savez_compressed(tmp_path / "bomb.npz", x_train=zeros, y_train=zeros[:, 0, 0])
    with pytest.raises(UserError, match="more than 100 times its size"):
        open_source(DataConfig(name="npz", root=str(tmp_path / "bomb.npz")))
