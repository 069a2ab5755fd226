"""ONNX gives Python's answers on real images."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from gatf import IncrementalClassifier
from gatf.cli import app
from gatf.data.inputs import read_images
from gatf.data.preprocessing import Preprocessing
from gatf.errors import UserError
from gatf.model.exported import Exported, beside
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
    expected = learner.decision_function(images)
    assert np.abs(scores - expected).max() < 1e-3
    np.testing.assert_allclose(chances, learner.predict_proba(images), atol=1e-3)
    one = answers(path, pixels[:1])[0]
    np.testing.assert_allclose(one, scores[:1], atol=1e-4)


def test_all_digits_get_the_same_labels(grown: Any, digit_images: Any, tmp_path: Path) -> None:
    reported = export_onnx(grown.model_, tmp_path / "shop.onnx")
    assert reported == "onnxruntime gives the same predictions"
    assert_equal(grown, tmp_path / "shop.onnx", digit_images[0])


@pytest.mark.skipif(not CIFAR.is_file(), reason="CIFAR-100 is not beside the repository")
def test_cifar_images_get_the_same_labels(tmp_path: Path) -> None:
    import io

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


@pytest.mark.parametrize("rule", ["mahalanobis", "nmc"])
def test_the_graph_of_every_readout_gives_the_methods_scores(
    rule: str, tiny_classifier: Callable[..., Any], digit_images: Any
) -> None:
    images, labels = digit_images
    chosen = np.isin(labels, ("d0", "d1", "d2"))
    learner = tiny_classifier(epochs=1, settings={"method.samples": 100, "method.readout": rule})
    learner.fit(images[chosen][:90], labels[chosen][:90])
    with torch.no_grad():
        scores, _, numbers = Graph(learner.model_).eval()(torch.from_numpy(images[:60, None]))
    np.testing.assert_allclose(scores.numpy(), learner.decision_function(images[:60]), rtol=1e-4, atol=1e-3)
    assert learner.classes_[numbers.numpy()].tolist() == learner.predict(images[:60]).tolist()


PREDICT = """
import sys
from gatf.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def predict(*arguments: str | Path) -> tuple[list[str], list[str]]:
    """What `gatf predict` prints in a process of its own, and what it says beside that with the modules it imported."""
    command = [sys.executable, "-c", PREDICT, "predict", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines(), done.stderr.split()


def test_one_image_is_predicted_by_the_export_beside_the_model_without_torch(
    grown: Any, digit_images: Any, tmp_path: Path
) -> None:
    model, export = tmp_path / "shop.gatf", tmp_path / "shop.onnx"
    grown.save(model)
    done = CliRunner().invoke(app, ["export", str(model), str(export)])
    assert done.exit_code == 0, done.output
    files = [tmp_path / f"{number}.png" for number in range(6)]
    for file, pixels in zip(files, digit_images[0], strict=False):
        Image.fromarray(pixels).save(file)
    (tmp_path / "bad.png").write_bytes(b"no image")
    printed, said = predict(model, *files, tmp_path / "bad.png", "--skip-bad", "--json", "--top", "2")
    assert "torch" not in said
    assert "onnxruntime" in said
    answers = json.loads("\n".join(printed))
    expected = grown.predict_proba([str(file) for file in files])
    assert [row["label"] for row in answers] == grown.predict([str(file) for file in files]).tolist()
    for row, chances in zip(answers, expected, strict=True):
        assert row["probability"] == pytest.approx(chances.max(), abs=1e-4)
        assert len(row["top"]) == 2
    with_certificates = CliRunner().invoke(app, ["predict", str(model), str(files[0]), "--certificate"])
    assert with_certificates.exit_code == 0  # by torch, for the graph has no features


def test_an_export_of_another_version_is_not_asked(grown: Any, tmp_path: Path) -> None:
    model, export = tmp_path / "shop.gatf", tmp_path / "shop.onnx"
    grown.save(model)
    assert beside(model) == (None, None)
    export.write_bytes(b"something else")
    assert beside(model) == (None, f"{export} is not an export of a model and is ignored")
    export_onnx(grown.model_, export, digest="0" * 32)
    assert beside(model) == (
        None, f"{export} belongs to another version of shop.gatf and is ignored; renew it with gatf export",
    )  # fmt: skip


def test_large_and_grey_images_are_resized_as_in_python(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    for shape in ((1, 16, 16), (3, 16, 16), (3, 72, 72)):
        shown, _, _ = Exported(None, ("a",), shape).read([str(tmp_path / "wide.png")], skip_bad=False)
        expected = next(
            Preprocessing(shape, (), ()).images(read_images(tmp_path / "wide.png")).stream([torch.arange(1)])
        )
        assert np.array_equal(shown, expected.numpy())


def test_scores_of_millions_are_compared_by_their_size(tiny_classifier: Callable[..., Any], tmp_path: Path) -> None:
    """Photos that are nearly alike within a class: a float32 network cannot give their scores to a thousandth."""
    draws = np.random.default_rng(0)
    colours = draws.integers(40, 216, (4, 1, 1, 1, 3))
    images = np.clip(colours + draws.normal(0, 1, (4, 12, 16, 16, 3)), 0, 255).astype(np.uint8).reshape(-1, 16, 16, 3)
    learner = tiny_classifier(method="slda", feature_dim=None, settings={"method.shrinkage": 1e-6})
    learner.fit(images, np.repeat(["sky", "sand", "sea", "snow"], 12))
    assert export_onnx(learner.model_, tmp_path / "shop.onnx") == "onnxruntime gives the same predictions"
    scores, _, labels = answers(tmp_path / "shop.onnx", np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    assert labels == learner.predict(images).tolist()
    np.testing.assert_allclose(scores, learner.decision_function(images), atol=1e-5 * np.abs(scores).max())


def test_a_wrong_graph_is_not_written(grown: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here one that shifts every pixel by a hundredth of the images' spread."""
    from gatf.model import onnx

    def shifted(exporter: Callable[..., Any], graph: Graph, examples: Any) -> Any:
        graph.shift += 0.01
        return exporter(graph, examples)

    for name in ("_traced", "_exported"):
        monkeypatch.setattr(onnx, name, partial(shifted, getattr(onnx, name)))
    with pytest.raises(UserError, match=r"does not give PyTorch's scores .* nothing was written"):
        export_onnx(grown.model_, tmp_path / "shop.onnx")
    assert not list(tmp_path.iterdir())
