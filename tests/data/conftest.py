"""Tiny copies of every layout a data set can lie in, and a cache of each test's own."""

import io
import json
import os
import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("GATF_CACHE", str(folder))
    monkeypatch.delenv("GATF_DATA", raising=False)
    return folder


@pytest.fixture
def few_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a benchmark's layout be tested with two or three classes, where its own hundred would be asked for."""
    monkeypatch.setattr("gatf.data.benchmarks.refuse_other_classes", lambda *args: None)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("something wants the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def picture(seed: int, width: int = 32, height: int = 32) -> Image.Image:
    """A smooth random image: JPEG keeps it nearly as it is."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(seed: int, width: int = 32, height: int = 32, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    picture(seed, width, height).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture(name="picture")
def picture_fixture() -> Callable[..., Image.Image]:
    return picture


@pytest.fixture(name="encoded")
def encoded_fixture() -> Callable[..., bytes]:
    return encoded


@pytest.fixture
def hub_copy() -> Callable[..., Path]:
    """`hub_copy(folder, {"train": [0, 0, 1], "test": [0, 1]})`: parquet files as on the hub, image number = seed."""

    def build(
        folder: Path, parts: dict[str, list[Any]], *, size: tuple[int, int] = (32, 32), label: str = "label",
        image: str = "image", names: list[str] | None = None, kind: str = "PNG", path: str = "{}.parquet",
    ) -> Path:  # fmt: skip
        import pyarrow as pa
        from pyarrow import parquet

        for part, labels in parts.items():
            start = 0 if part == "train" else 1000
            images = [{"bytes": encoded(start + n, *size, kind), "path": f"{n}"} for n in range(len(labels))]
            table = pa.table({image: images, label: labels})
            if names is not None:
                features = {image: {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
                text = json.dumps({"info": {"features": features}})
                table = table.replace_schema_metadata({"huggingface": text})
            file = folder / path.format(part)
            file.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(table, file)
        return folder

    return build


@pytest.fixture
def cifar_pickles() -> Callable[[Path], Path]:
    """cifar-100-python with 3 classes, 2 training images and 1 test image each."""

    def build(folder: Path) -> Path:
        place = folder / "cifar-100-python"
        place.mkdir(parents=True)
        draws = np.random.default_rng(0)
        for part, per_class in (("train", 2), ("test", 1)):
            labels = [label for label in range(3) for _ in range(per_class)]
            rows = draws.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
            content = {"data": rows, "fine_labels": labels, "coarse_labels": labels, "filenames": ["x"] * len(labels)}
            (place / part).write_bytes(pickle.dumps(content, protocol=2))
        (place / "meta").write_bytes(pickle.dumps({"fine_label_names": ["apple", "bear", "cup"]}, protocol=2))
        return folder

    return build


@pytest.fixture
def image_folder() -> Callable[..., Path]:
    """`image_folder(folder, {"train/cat": 3, "test/cat": 1})`: so many images in each folder."""

    def build(folder: Path, counts: dict[str, int], *, size: tuple[int, int] = (32, 32), kind: str = "PNG") -> Path:
        seed = 0
        for place, count in counts.items():
            (folder / place).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                (folder / place / f"{number:03d}.{kind.lower()}").write_bytes(encoded(seed, *size, kind))
                seed += 1
        return folder

    return build


@pytest.fixture
def tiny_imagenet(image_folder: Callable[..., Path]) -> Callable[[Path], Path]:
    """tiny-imagenet-200 with 2 classes; the validation images are listed in another order than they are named."""

    def build(folder: Path) -> Path:
        place = folder / "tiny-imagenet-200"
        counts = {"train/n02/images": 3, "train/n01/images": 3, "val/images": 2}
        image_folder(place, counts, size=(64, 64), kind="JPEG")
        rows = ["001.jpeg\tn01\t0\t0\t62\t62", "000.jpeg\tn02\t1\t2\t3\t4"]
        (place / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n")
        return folder

    return build


@pytest.fixture
def cub() -> Callable[[Path], Path]:
    """CUB_200_2011 with 2 species, 2 training images and 1 test image each."""

    def build(folder: Path) -> Path:
        place = folder / "CUB_200_2011"
        images, labels, split, number = [], [], [], 0
        for label, name in enumerate(("001.Albatross", "002.Auklet"), 1):
            (place / "images" / name).mkdir(parents=True)
            for shot in range(3):
                number += 1
                (place / "images" / name / f"{shot}.jpg").write_bytes(encoded(number, 100, 80, "JPEG"))
                images.append(f"{number} {name}/{shot}.jpg")
                labels.append(f"{number} {label}")
                split.append(f"{number} {int(shot != 1)}")
        texts = {"images": images, "image_class_labels": labels, "train_test_split": split}
        texts["classes"] = ["1 001.Albatross", "2 002.Auklet"]
        for name, lines in texts.items():
            (place / f"{name}.txt").write_text("\n".join(lines) + "\n")
        return folder

    return build


@pytest.fixture(scope="session")
def real_cifar() -> Path:
    """The folder of the real CIFAR-100 in the hub's layout: GATF_TEST_CIFAR, or beside the checkout."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar100"
    folder = Path(os.environ.get("GATF_TEST_CIFAR", beside))
    if not (folder / "train.parquet").is_file():
        pytest.skip(f"real CIFAR-100 is not at {folder}; GATF_TEST_CIFAR can name a folder with train and test.parquet")
    return folder
