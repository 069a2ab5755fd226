"""Data of other libraries: scenarios of continuum and Avalanche, data sets of Hugging Face and torch."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, TensorDataset

import gatf
from gatf.data.inputs import read_labelled
from gatf.errors import UserError


def items(*labels: int, count: int = 3) -> list[tuple[Any, int]]:
    return [(np.full((8, 8, 3), 20 * label + number, np.uint8), label) for label in labels for number in range(count)]


def continuum(*tasks: tuple[int, ...]) -> Iterator[list[tuple[Any, int]]]:
    return (items(*task) for task in tasks)


def test_a_scenario_of_continuum_is_learnt_task_by_task_and_resumed(tmp_path: Path) -> None:
    tasks = [(5, 2), (9,)]
    scenario = gatf.Scenario.from_continuum(continuum(*tasks), continuum(*tasks), name="mine")
    assert scenario.class_names == ("2", "5", "9")
    assert scenario.task_sizes == (2, 1)
    assert scenario.members(scenario.source.train, 1, 1)[0].tolist() == [6, 7, 8]
    config = gatf.load_config("digits", method="ncm", overrides={"data.augment": []})
    summary = gatf.run(config, tmp_path / "run", scenario=scenario)
    assert summary.dataset == "python:mine"
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(UserError, match="scenario 'mine' comes from Python and must be given again"):
        gatf.resume(tmp_path / "run")
    again = gatf.resume(tmp_path / "run", scenario=scenario)
    assert again.accuracy_matrix == summary.accuracy_matrix


def test_streams_of_avalanche() -> None:
    stream = [SimpleNamespace(dataset=[(*item, 0) for item in items(*classes)]) for classes in ((0, 1), (2,))]
    scenario = gatf.Scenario.from_continuum(stream, stream)
    assert scenario.task_sizes == (2, 1)
    assert scenario.source.image_shape == (3, 8, 8)


def real_digits() -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    return np.repeat(np.rint(data.images * (255 / 16)).astype(np.uint8)[..., None], 3, -1), data.target


@pytest.mark.filterwarnings("default")
def test_the_real_continuum() -> None:
    library = pytest.importorskip("continuum", exc_type=ImportError)  # without torchvision, it does not import
    images, labels = real_digits()
    data = library.datasets.InMemoryDataset(images, labels)
    tasks = [library.ClassIncremental(data, initial_increment=4, increment=2) for _ in range(2)]
    scenario = gatf.Scenario.from_continuum(*tasks)
    assert scenario.task_sizes == (4, 2, 2, 2)
    expected = np.concatenate([images[np.isin(labels, each)] for each in ([0, 1, 2, 3], [4, 5], [6, 7], [8, 9])])
    assert np.array_equal(scenario.source.train.images.permute(0, 2, 3, 1).numpy(), expected)


@pytest.mark.filterwarnings("default")
def test_the_real_avalanche() -> None:
    library = pytest.importorskip("avalanche.benchmarks", exc_type=ImportError)
    images, labels = real_digits()
    data = TensorDataset(torch.from_numpy(images).movedim(-1, 1).float() / 255, torch.from_numpy(labels))
    data.targets = labels.tolist()
    benchmark = library.nc_benchmark(data, data, n_experiences=5, task_labels=False, seed=1)
    scenario = gatf.Scenario.from_continuum(benchmark.train_stream, benchmark.test_stream)
    classes = [sorted(task.classes_in_this_experience) for task in benchmark.train_stream]
    assert list(scenario.class_names) == [str(label) for task in classes for label in task]
    assert sorted(map(bytes, scenario.source.train.images.movedim(1, -1).numpy())) == sorted(map(bytes, images))
    benchmark = library.ni_benchmark(data, data, n_experiences=2)
    with pytest.raises(UserError, match="every class must be in exactly one task"):
        gatf.Scenario.from_continuum(benchmark.train_stream, benchmark.test_stream)


def test_classes_in_two_tasks_are_refused() -> None:
    with pytest.raises(UserError, match="every class must be in exactly one task"):
        gatf.Scenario.from_continuum(continuum((0, 1), (1, 2)), continuum((0, 1, 2)))


class Pairs(Dataset[Any]):
    def __init__(self, pairs: list[Any]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, number: int) -> Any:
        return self.pairs[number]


def test_a_torch_data_set_brings_its_labels() -> None:
    pairs = [(torch.full((1, 8, 8), label / 2), torch.tensor(label)) for label in (0, 1, 1)]
    images, labels = read_labelled(Pairs(pairs), None)
    assert labels.tolist() == [0, 1, 1]
    assert images.natural_shape() == (1, 8, 8)
    with pytest.raises(UserError, match="item 0 is Tensor"):
        read_labelled(Pairs([torch.zeros(1, 8, 8)]), None)


def test_a_hugging_face_data_set_brings_the_names_of_its_labels() -> None:
    datasets = pytest.importorskip("datasets")
    kinds = {
        "id": datasets.Value("int64"),
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["cat", "dog"]),
    }
    pictures = [Image.new("RGB", (8, 8), (40 * number, 0, 0)) for number in range(4)]
    columns = {"id": range(4), "image": pictures, "label": [0, 1, 1, 0]}
    dataset = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    images, labels = read_labelled(dataset, None)
    assert labels.tolist() == ["cat", "dog", "dog", "cat"]
    assert images.images((3, 8, 8))[:, 0, 0, 0].tolist() == [0, 40, 80, 120]
    with pytest.raises(UserError, match="needs one of images and one of labels"):
        read_labelled(dataset.remove_columns("label"), None)


def test_fit_partial_fit_and_predict_take_data_sets() -> None:
    model = gatf.IncrementalClassifier(method="ncm", backbone="small", held_out=0)
    model.fit(Pairs(items(0, 1)))
    model.partial_fit(Pairs(items(2)))
    assert model.classes_.tolist() == [0, 1, 2]
    images = np.stack([image for image, _ in items(0, 1, 2)])
    assert model.predict(Pairs(items(0, 1, 2))).tolist() == model.predict(images).tolist()


def test_data_sets_of_vectors() -> None:
    datasets = pytest.importorskip("datasets")
    vectors, labels = np.eye(4, dtype=np.float32)[[0, 1, 2] * 4], ["cup", "hat", "bag"] * 4
    kinds = {"text": datasets.Value("string"), "embedding": datasets.List(datasets.Value("float32"), length=4)}
    columns = {"text": labels, "embedding": vectors, "label": labels}
    known = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds | {"label": datasets.Value("string")}))
    model = gatf.EmbeddingClassifier(held_out=0).fit(known)
    assert model.partial_fit(Pairs([(torch.eye(4)[3], "fox")] * 4)).classes_.tolist() == ["bag", "cup", "hat", "fox"]
    assert model.predict(known.remove_columns("label")).tolist() == labels
    with pytest.raises(UserError, match="columns text, label, but needs one of vectors and one of labels"):
        model.fit(known.remove_columns("embedding"))
