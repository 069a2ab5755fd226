"""What a run writes at its end is a model like any other: it predicts, is inspected and exported, and learns more."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gatf import IncrementalClassifier
from gatf.config import RunConfig, load_config
from gatf.data.base import ImageSet
from gatf.errors import UserError
from gatf.experiment import Experiment, start
from gatf.methods import METHODS
from gatf.model import file as model_file
from gatf.model.onnx import export_onnx

pytestmark = pytest.mark.slow

SHORT = {
    "scenario.stop_after": 2,
    "optimisation.first.epochs": 2,
    "optimisation.next.epochs": 2,
    "data.max_per_class": 40,
    "device": "cpu",
}


def pixels(images: ImageSet, members: torch.Tensor) -> np.ndarray:
    return torch.cat(list(images.stream([members]))).numpy()


def images_of_test(experiment: Experiment) -> tuple[np.ndarray, np.ndarray]:
    scenario = experiment.scenario
    members, labels = scenario.members(scenario.source.test, 0, len(scenario) - 1)
    return pixels(scenario.source.test, members), np.array(scenario.class_names)[labels.numpy()]


@pytest.mark.parametrize("method", METHODS)
def test_the_model_of_a_run_predicts_as_the_run_did(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, method: str
) -> None:
    config = tiny_config(method, **SHORT)
    summary = start(config, tmp_path / "run")
    classifier = IncrementalClassifier.load(tmp_path / "run")
    images, names = images_of_test(Experiment(config))
    assert 100 * (classifier.predict(images) == names).mean() == pytest.approx(summary.a_last)
    assert [record.accuracy_new for record in classifier.history_] == [
        pytest.approx(row[-1]) for row in summary.accuracy_matrix
    ]
    assert classifier.model_.counts.tolist() == [round(40 * (1 - config.data.val_fraction))] * 4


def test_a_run_s_model_learns_more_classes(tmp_path: Path) -> None:
    config = load_config("digits", method="gatf", overrides=SHORT | {"optimisation.next.epochs": 20})
    start(config, tmp_path / "run")
    whole = Experiment(load_config("digits", overrides={"device": "cpu"})).scenario
    members, labels = whole.members(whole.source.train, 2, 2)
    classifier = IncrementalClassifier.load(tmp_path / "run").set_params(epochs=5)
    classifier.partial_fit(pixels(whole.source.train, members), np.array(whole.class_names)[labels.numpy()])
    assert classifier.classes_.tolist() == list(whole.class_names[:6])
    assert classifier.report_.number == 2
    assert classifier.predict(pixels(whole.source.train, members), return_certificate=True)[1].dtype == bool


def test_what_a_run_did_not_measure_is_not_claimed(tmp_path: Path) -> None:
    config = load_config("digits", method="gatf", overrides=SHORT)
    start(config, tmp_path / "run")
    classifier = IncrementalClassifier.load(tmp_path / "run")
    images, _ = images_of_test(Experiment(config))
    with pytest.raises(UserError, match="gatf learn"):
        classifier.predict(images[:2], return_certificate=True)
    with pytest.raises(UserError, match="too few images were held out"):
        classifier.set_params(unknown=0.05).predict(images[:2])
    assert "not calibrated" in str(classifier.report_)


def test_a_method_that_keeps_images_is_not_updated(tmp_path: Path) -> None:
    config = load_config("digits", method="joint", overrides=SHORT)
    start(config, tmp_path / "run")
    classifier = IncrementalClassifier.load(tmp_path / "run")
    images, names = images_of_test(Experiment(config))
    with pytest.raises(UserError, match="needs all earlier images"):
        classifier.partial_fit(images, np.char.add("new ", names))


def test_a_run_s_model_is_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    start(load_config("digits", method="gatf", overrides=SHORT), tmp_path / "run")
    assert "same predictions" in export_onnx(model_file.load(tmp_path / "run"), tmp_path / "model.onnx")
