"""ONNX gives Python's answers on real images."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gatf import IncrementalClassifier
from gatf.errors import UserError
from gatf.model.onnx import Graph, export_onnx

pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
CIFAR = Path(__file__).parents[2] / "shared" / "data" / "cifar100" / "test.parquet"


def answers(path: Path, images: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """Scores, probabilities and labels by onnxruntime, from the file alone."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = json.loads(session.get_modelmeta().custom_metadata_map["gatf.classes"])
    scores, chances, numbers = session.run(["scores", "probabilities", "class_index"], {"images": images})
    return scores, chances, [names[number] for number in numbers]


def assert_equal(learner: Any, path: Path, images: np.ndarray) -> None:
    pixels = images[:, None] if images.ndim == 3 else images
    scores, chances, labels = answers(path, pixels)
    assert labels == learner.predict(images).tolist()
    expected = learner._look(images).scores.numpy()
    assert np.abs(scores - expected).max() < 1e-3
    np.testing.assert_allclose(chances, learner.predict_proba(images), atol=1e-3)
    one = answers(path, pixels[:1])[0]
    np.testing.assert_allclose(one, scores[:1], atol=1e-4)


def test_all_digits_get_the_same_labels(grown: Any, digit_images: Any, tmp_path: Path) -> None:
    told = export_onnx(grown.model_, tmp_path / "shop.onnx")
    assert told == "onnxruntime gives the same answers"
    assert_equal(grown, tmp_path / "shop.onnx", digit_images[0])


@pytest.mark.skipif(not CIFAR.is_file(), reason="CIFAR-100 is not beside the repository")
def test_cifar_images_get_the_same_labels(tmp_path: Path) -> None:
    import io

    from PIL import Image
    from pyarrow import parquet

    table = parquet.ParquetFile(CIFAR).read_row_group(0).slice(0, 1200).to_pylist()
    images = np.stack([np.asarray(Image.open(io.BytesIO(row["img"]["bytes"])).convert("RGB")) for row in table])
    labels = np.array([row["fine_label"] for row in table])
    learner = IncrementalClassifier(width=4, feature_dim=16, epochs=1, device="cpu", settings={"method.samples": 100})
    for first, last in ((0, 10), (10, 15)):
        chosen = (labels >= first) & (labels < last)
        learner.partial_fit(images[chosen], labels[chosen])
    export_onnx(learner.model_, tmp_path / "cifar.onnx")
    assert_equal(learner, tmp_path / "cifar.onnx", np.ascontiguousarray(images[:500].transpose(0, 3, 1, 2)))


@pytest.mark.parametrize("rule", ["mahalanobis", "nmc", "linear"])
def test_the_graph_of_every_readout_gives_the_methods_scores(
    rule: str, tiny_classifier: Callable[..., Any], digit_images: Any
) -> None:
    images, labels = digit_images
    chosen = np.isin(labels, ("d0", "d1", "d2"))
    learner = tiny_classifier(epochs=1, settings={"method.samples": 100, "method.readout": rule})
    learner.fit(images[chosen][:90], labels[chosen][:90])
    with torch.no_grad():
        scores, _, numbers = Graph(learner.model_).eval()(torch.from_numpy(images[:60, None]))
    np.testing.assert_allclose(scores.numpy(), learner._look(images[:60]).scores.numpy(), rtol=1e-4, atol=1e-3)
    assert learner.classes_[numbers.numpy()].tolist() == learner.predict(images[:60]).tolist()


def test_a_wrong_graph_is_not_written(grown: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatf.model.onnx.TOLERANCE", -1.0)
    with pytest.raises(UserError, match="nothing was written"):
        export_onnx(grown.model_, tmp_path / "shop.onnx")
    assert not list(tmp_path.iterdir())
