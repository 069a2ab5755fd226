"""Methods solved from sums: neither order nor split of the classes matters, and all images at once give the same."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid
from torch import Tensor, nn

from gatf import IncrementalClassifier
from gatf.config import RunConfig
from gatf.experiment import Experiment, start
from gatf.io.run_folder import Summary
from gatf.methods import METHODS
from gatf.methods.base import TaskInfo
from gatf.methods.parts.closed_form import ClosedForm
from gatf.methods.ranpac import RIDGES, held_out_errors
from gatf.model import file as model_file
from gatf.nets.small import SmallNet
from gatf.settings import OptimisationConfig

NAMES = ("ncm", "slda", "ranpac", "klda", "acil")
DIM, CLASSES = 12, 6
FIXED: dict[str, dict[str, Any]] = {
    "ncm": {"metric": "euclidean"},
    "slda": {},
    "ranpac": {"projections": 40, "ridge": 5.0},
    "klda": {"projections": 40},
    "acil": {"projections": 40},
    "ds-al": {"projections": 40},
}


class Flat(nn.Module):
    """A network that is not asked."""

    feature_dim = DIM

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def build(name: str, *, seed: int = 0, **settings: Any) -> ClosedForm:
    method = METHODS[name]
    config = method.Config(name=name, **(FIXED[name] | settings))
    built = method(config, Flat(), OptimisationConfig(), seed)
    assert isinstance(built, ClosedForm)
    return built


def clouds(*counts: int) -> tuple[Tensor, Tensor]:
    """Features of classes with so many images each, in random order, as a network gives them: float32, far from 0."""
    draws = torch.Generator().manual_seed(1)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=draws)]
    mixing = torch.randn(DIM, DIM, generator=draws)
    centres = 2 * torch.randn(len(counts), DIM, generator=draws) + 5
    return centres[labels] + torch.randn(len(labels), DIM, generator=draws) @ mixing, labels


def learn(method: ClosedForm, lots: Sequence[tuple[Tensor, Tensor]]) -> ClosedForm:
    """One task after the other; a label that was seen before is a class that comes back."""
    seen = 0
    for index, (features, labels) in enumerate(lots):
        classes = max(seen, int(labels.max()) + 1)
        method.learn(features, labels, TaskInfo(index, seen, classes - seen, len(labels)))
        seen = classes
    return method


def relative(scores: Tensor) -> Tensor:
    """Scores up to what all classes of an image share."""
    return scores - scores.mean(1, keepdim=True)


@pytest.mark.parametrize("name", NAMES)
def test_neither_order_nor_split_of_the_classes_matters(name: str) -> None:
    features, labels = clouds(40, 3, 25, 1, 60, 17)
    once = learn(build(name), [(features, labels)])
    for order, sizes in (([4, 0, 3, 5, 1, 2], [1, 3, 2]), ([1, 5, 2, 0, 4, 3], [1] * 6), ([0, 1, 2, 3, 4, 5], [5, 1])):
        place = torch.tensor(order).argsort()[labels]  # number of each image's class in the new order
        ends = np.cumsum(sizes)
        tasks = [(place >= end - size) & (place < end) for size, end in zip(sizes, ends, strict=True)]
        split = learn(build(name), [(features[task], place[task]) for task in tasks])
        expected = relative(once.feature_scores(features))[:, order]
        torch.testing.assert_close(relative(split.feature_scores(features)), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_a_class_that_comes_back_is_as_if_it_had_come_at_once(name: str) -> None:
    features, labels = clouds(40, 12, 25)
    late = (labels == 1) & (torch.arange(len(labels)) % 3 > 0)
    late |= (labels == 2) & (torch.arange(len(labels)) % 2 > 0)
    whole = learn(build(name), [(features, labels)])
    split = learn(build(name), [(features[~late], labels[~late]), (features[late], labels[late])])
    torch.testing.assert_close(
        relative(split.feature_scores(features)), relative(whole.feature_scores(features)), rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("name", NAMES)
def test_hundreds_of_updates_of_one_image_lose_no_digits(name: str) -> None:
    """Sums kept in float32 would be off by 1e-5 and more: it is why they are kept in float64."""
    features, labels = clouds(90, 120, 90)
    by_class = labels.argsort(stable=True)
    features, labels = features[by_class] + 100, labels[by_class]
    once = learn(build(name), [(features, labels)])
    singly = learn(build(name), [(features[i : i + 1], labels[i : i + 1]) for i in range(len(labels))])
    asked = features[:50]
    expected = relative(once.feature_scores(asked))
    torch.testing.assert_close(relative(singly.feature_scores(asked)), expected, rtol=1e-7, atol=1e-7)


def test_ncm_is_sklearns_nearest_centroid() -> None:
    features, labels = clouds(20, 30, 9)
    ours = learn(build("ncm"), [(features, labels)]).feature_scores(features).argmax(1)
    assert ours.tolist() == NearestCentroid().fit(features.numpy(), labels.numpy()).predict(features.numpy()).tolist()


def test_ncm_with_cosine_similarity_is_simplecil() -> None:
    """SimpleCIL's head: cosine similarity with class means of the raw features (Zhou et al., IJCV 2024)."""
    features, labels = clouds(20, 30, 9)
    means = torch.stack([features[labels == label].mean(0) for label in range(3)])
    similarity = torch.cosine_similarity(features[:, None], means[None], dim=2)
    scores = learn(build("ncm", metric="cosine"), [(features, labels)]).feature_scores(features)
    torch.testing.assert_close(scores.float(), 2 * similarity - 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["slda", "klda"])
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_slda_is_sklearns_discriminant_of_all_images(name: str, share: float) -> None:
    """Classes of one size, for there sklearn's mean of class covariances is the covariance within classes, n/(n − C)
    times smaller than ours."""
    features, labels = clouds(30, 30, 30, 30)
    method = learn(build(name, shrinkage=share, few_images=False), [(features, labels)])
    seen = features if name == "slda" else method.embedded(features)  # type: ignore[operator]
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=share).fit(seen.double().numpy(), labels.numpy())
    expected = torch.from_numpy(oracle.decision_function(seen.double().numpy())) * (120 - 4) / 120
    torch.testing.assert_close(relative(method.feature_scores(features)), relative(expected), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["ranpac", "acil"])
def test_ranpac_and_acil_are_ridge_regression_on_all_images(name: str) -> None:
    features, labels = clouds(20, 30, 9)
    method: Any = learn(build(name, ridge=0.7), [(features, labels)])
    projection = method.projection if name == "ranpac" else method.buffer
    seen = torch.relu(projection(features)).numpy()
    oracle = Ridge(alpha=0.7, fit_intercept=False).fit(seen, np.eye(3)[labels.numpy()])
    torch.testing.assert_close(
        method.feature_scores(features), torch.from_numpy(oracle.predict(seen)), rtol=1e-7, atol=1e-7
    )


def test_ds_al_adds_a_ridge_regression_of_the_errors_on_the_tasks_own_classes() -> None:
    features, labels = clouds(20, 30, 9, 14)
    method: Any = learn(
        build("ds-al", ridge=0.7, compensation_ridge=0.3, compensation=0.5),
        [(features[labels < 2], labels[labels < 2]), (features[labels >= 2], labels[labels >= 2])],
    )
    main, targets = np.zeros((len(labels), 4)), np.zeros((len(labels), 4))
    projected = method.buffer(features).numpy()
    seen, bent = np.maximum(projected, 0), np.tanh(projected)
    for last, own in ((2, (labels < 2).numpy()), (4, (labels >= 2).numpy())):
        known = (labels < last).numpy()
        oracle = Ridge(alpha=0.7, fit_intercept=False).fit(seen[known], np.eye(4)[labels[known].numpy()])
        main = oracle.predict(seen)
        errors = np.eye(4)[labels.numpy()] - main
        targets[own, last - 2 : last] = errors[own, last - 2 : last]
    compensation = Ridge(alpha=0.3, fit_intercept=False).fit(bent, targets).predict(bent)
    expected = torch.from_numpy(main + 0.5 * compensation)
    torch.testing.assert_close(method.feature_scores(features), expected, rtol=1e-7, atol=1e-7)


class TestRidge:
    @pytest.mark.parametrize("images", [15, 60])
    def test_errors_are_those_of_solving_for_each_ridge(self, images: int) -> None:
        """With fewer and with more images than features."""
        draws = torch.Generator().manual_seed(0)
        features = torch.randn(images, 20, generator=draws, dtype=torch.float64)
        labels = torch.arange(images) % 3 + 4
        held_out = torch.arange(images) % 5 == 0
        targets = nn.functional.one_hot(labels - 4).double()
        found = held_out_errors(features, labels, held_out)
        kept, asked = features[~held_out], features[held_out]
        for ridge, error in list(zip(RIDGES, found.tolist(), strict=True))[5:]:
            weight = torch.linalg.solve(kept.T @ kept + ridge * torch.eye(20).double(), kept.T @ targets[~held_out])
            assert error == pytest.approx(float((asked @ weight - targets[held_out]).square().sum()), rel=1e-6)

    def test_the_one_with_the_least_error_over_all_tasks_is_taken(self) -> None:
        features, labels = clouds(40, 40, 40)
        method = build("ranpac", ridge=None)
        first, later = labels < 2, labels == 2
        learn(method, [(features[first], labels[first]), (features[later], labels[later])])
        reported = [notice.values["ridge"] for notice in method.notices]
        assert reported[-1] == RIDGES[int(method.errors.argmin())]  # type: ignore[operator]
        one = learn(build("ranpac", ridge=None), [(features[first], labels[first])])
        assert bool((method.errors > one.errors).all())  # type: ignore[operator]

    def test_is_the_features_own_size_where_nothing_can_be_held_out(self) -> None:
        features, labels = clouds(2, 2)
        method = learn(build("ranpac", ridge=None), [(features, labels)])
        mean_square = method.embedded(features).square().sum(0).mean()  # type: ignore[operator]
        assert method.notices[0].values["ridge"] == pytest.approx(float(mean_square))


@pytest.mark.parametrize("name", [*NAMES, "ds-al"])
@pytest.mark.parametrize("case", ["one image per class", "dead features", "all images alike", "more features"])
def test_scores_are_finite_whatever_the_images(name: str, case: str) -> None:
    features, labels = clouds(*([1, 1, 1] if case == "one image per class" else [3, 2]))
    if case == "dead features":
        features[:, 4:] = 0
    if case == "all images alike":
        features[:] = 0
    settings = {"ridge": None} if name == "ranpac" else {}
    for shrinkage in (None, 0.0) if name in ("slda", "klda") else (None,):
        more = settings if shrinkage is None else {"shrinkage": shrinkage}
        method = learn(build(name, **more), [(features, labels)])
        scores = method.feature_scores(torch.cat([features, features + 1, 0 * features]))
        assert scores.isfinite().all()
        if case == "one image per class":
            assert scores[:3].argmax(1).tolist() == labels.tolist()


def test_full_shrinkage_is_the_nearest_mean() -> None:
    features, labels = clouds(20, 30, 9)
    nearest = learn(build("ncm"), [(features, labels)]).feature_scores(features)
    pulled = learn(build("slda", shrinkage=1.0, few_images=False), [(features, labels)]).feature_scores(features)
    assert pulled.argmax(1).tolist() == nearest.argmax(1).tolist()


def test_the_kernel_is_approximated() -> None:
    kernel = build("klda", projections=6_000, gamma=0.3).kernel
    points = torch.randn(5, DIM, generator=torch.Generator().manual_seed(0)) / 2
    embedded = kernel(points)  # type: ignore[operator]
    exact = (-0.3 * torch.cdist(points, points).square()).exp()
    torch.testing.assert_close(embedded @ embedded.T, exact.double(), rtol=0, atol=0.03)


@pytest.mark.parametrize("name", ["ranpac", "klda", "acil", "ds-al"])
def test_what_was_drawn_is_kept(name: str) -> None:
    """A method made from another seed gives the same answers once it has the state."""
    features, labels = clouds(20, 30, 9)
    method = learn(build(name), [(features, labels)])
    other = build(name, seed=7)
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.feature_scores(features), method.feature_scores(features))


# --- the network ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "pretrained", "trains"), [
    (None, False, True), (None, True, False), (True, True, True), (False, False, False),
])  # fmt: skip
def test_the_network_is_trained_in_the_first_task_unless_pretrained(
    asked: bool | None, pretrained: bool, trains: bool
) -> None:
    method = build("slda", train_first=asked)
    method.backbone.pretrained = pretrained  # type: ignore[assignment]
    assert method.network_is_fixed is not trains
    for index, expected in ((0, ["train"] if trains else []), (1, [])):
        task = TaskInfo(index, 2 * index, 2, 10)
        method.begin_task(task)
        assert [phase.name for phase in method.phases(task)] == expected


def test_a_frozen_network_stays_as_it_was(
    tiny_config: Callable[..., RunConfig], learn: Callable[..., Experiment], own_cache: Path
) -> None:
    config = tiny_config("slda", **{"method.train_first": False})
    fresh = Experiment(config).method.backbone.state_dict()
    for name, value in learn(config, tasks=2).method.backbone.state_dict().items():
        assert torch.equal(value, fresh[name]), name


FROZEN: dict[str, dict[str, Any]] = {
    "ncm": {"method.train_first": False},
    "slda": {"method.train_first": False},
    "ranpac": {"method.train_first": False, "method.projections": 50},
    "klda": {"method.train_first": False, "method.projections": 50},
    "acil": {"method.train_first": False, "method.projections": 50},
    "ds-al": {"method.train_first": False, "method.projections": 50},
    "fecam": {"method.train_network": False, "method.first_task_rule": "maha"},
    "fetril": {"method.train_network": False},
}


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class TestFeaturesAreComputedOnce:
    def runs(self, config: RunConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Summary, int]:
        """A run's summary, and how many images its network saw."""
        seen = 0
        forward = SmallNet.forward

        def counted(net: SmallNet, images: Tensor) -> Tensor:
            nonlocal seen
            seen += len(images)
            return forward(net, images)

        with monkeypatch.context() as patch:
            patch.setattr(SmallNet, "forward", counted)
            patch.setattr("gatf.methods.base.folded", lambda net: net)  # a folded copy would run uncounted
            patch.setattr("gatf.methods.parts.extraction.folded", lambda net: net)
            patch.setattr("gatf.model.file.save", lambda model, path: None)  # it asks the model what it wrote
            patch.setattr("gatf.session.multiplications", lambda net, shape: 0)  # an image of zeros goes through it
            return start(config, folder), seen

    def test_by_the_first_of_all_methods_with_the_network(
        self, tiny_config: Callable[..., RunConfig], own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = True
        for name, settings in FROZEN.items():
            config = tiny_config(name, **settings)
            scenario = Experiment(config).scenario
            images = sum(len(scenario.members(part, 0, 2)[0]) for part in scenario.parts)
            assert images < len(scenario.source.train) + len(scenario.source.test), "three of five tasks"
            _, seen = self.runs(config, tmp_path / name, monkeypatch)
            assert seen == (images if first else 0), name
            first = False
        assert len(list(own_cache.glob("features-*.safetensors"))) == 2

    @pytest.mark.parametrize("name", FROZEN)
    def test_results_are_those_of_running_the_network(
        self, name: str, tiny_config: Callable[..., RunConfig], own_cache: Path, tmp_path: Path
    ) -> None:
        """A network handed over from Python is not cached."""
        config = tiny_config(name, **FROZEN[name])
        cached = start(config, tmp_path / "cached")
        network = Experiment(config).method.backbone
        assert Experiment(config, backbone=network).features is None
        plain = start(config, tmp_path / "plain", backbone=network)
        assert plain.accuracy_matrix == cached.accuracy_matrix

    def test_for_each_weights_pixels_and_normalisation(
        self, tiny_config: Callable[..., RunConfig], own_cache: Path, tmp_path: Path
    ) -> None:
        changes: list[dict[str, Any]] = [{}, {"seed": 1}, {"data.max_per_class": 30}, {"data.test_crop": 6}]
        found = [Experiment(tiny_config("ncm", **FROZEN["ncm"], **change)).features for change in changes]
        assert len(list(own_cache.glob("features-*.safetensors"))) == 7  # fewer training images, the same test images
        assert found[0] is not None
        for other in found[1:]:
            assert other is not None
            assert not torch.equal(other.train[:5], found[0].train[:5]) or len(other.train) < len(found[0].train)

    @pytest.mark.parametrize("settings", [{"method.train_first": None}, {"backbone.bottleneck": 4}])
    def test_not_of_a_network_that_changes(
        self, settings: dict[str, Any], tiny_config: Callable[..., RunConfig], own_cache: Path
    ) -> None:
        assert Experiment(tiny_config("slda", **FROZEN["slda"] | settings)).features is None

    def test_and_are_deleted_with_the_task(self, tiny_config: Callable[..., RunConfig], own_cache: Path) -> None:
        data = Experiment(tiny_config("ncm", **FROZEN["ncm"])).task_data(0)
        assert data.known_features() is not None
        data.close()
        with pytest.raises(RuntimeError, match="are deleted"):
            data.known_features()


# --- as a classifier --------------------------------------------------------------------------------------------------

Digits = tuple[np.ndarray, np.ndarray]


def some(digits: Digits, *names: str, part: int | None = None) -> Digits:
    images, labels = digits
    chosen = np.isin(labels, names) & (np.arange(len(labels)) % 5 > 0)
    if part is not None:
        chosen &= np.arange(len(labels)) % 2 == part
    return images[chosen], labels[chosen]


def classifier(name: str, **parameters: Any) -> IncrementalClassifier:
    settings: dict[str, Any] = {"method.train_first": False}
    settings |= {"method.projections": 200} if name in ("ranpac", "klda") else {}
    settings |= {"method.ridge": 1.0} if name == "ranpac" else {}
    return IncrementalClassifier(method=name, width=8, device="cpu", settings=settings, **parameters)


@pytest.mark.parametrize("name", NAMES)
def test_an_update_continues_with_known_classes_exactly(name: str, digit_images: Digits) -> None:
    """In three updates, and the second and third together."""
    one, other = classifier(name, held_out=0.0), classifier(name, held_out=0.0)
    for learner in (one, other):
        learner.fit(*some(digit_images, "d0", "d1", "d2", part=0))
    lots = [some(digit_images, "d1", "d4", part=0), some(digit_images, "d1", "d2", part=1)]
    for images, labels in lots:
        one.partial_fit(images, labels)
    other.partial_fit(*(np.concatenate(each) for each in zip(*lots, strict=True)))
    assert one.classes_.tolist() == other.classes_.tolist() == ["d0", "d1", "d2", "d4"]
    assert one.report_.added == ()
    assert one.report_.revisited == ("d1", "d2")
    assert one.model_.counts.tolist() == other.model_.counts.tolist()
    images = digit_images[0][:200]
    expected = relative(torch.from_numpy(other.decision_function(images)))
    torch.testing.assert_close(
        relative(torch.from_numpy(one.decision_function(images))), expected, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_model_file_gives_the_same_predictions_and_continues_learning(
    name: str, digit_images: Digits, tmp_path: Any
) -> None:
    learner = classifier(name).fit(*some(digit_images, "d0", "d1", "d2"))
    learner.save(tmp_path / "model.gatf")
    read = IncrementalClassifier.load(tmp_path / "model.gatf", device="cpu")
    images = digit_images[0][:50]
    assert np.array_equal(read.decision_function(images), learner.decision_function(images))
    read.partial_fit(*some(digit_images, "d3"))
    assert read.score(*some(digit_images, "d0", "d1", "d2", "d3")) > 0.7
    assert model_file.load(tmp_path / "model.gatf").method.bytes_per_class() == learner.report_.bytes_per_class


def test_slda_rejects_unknown_images_and_certifies_predictions(digit_images: Digits) -> None:
    """Nothing is transported, so nothing is off: an answer is certified where it has the nearest mean."""
    learner = classifier("slda", unknown=0.1, held_out=0.3)
    learner.fit(*some(digit_images, "d0", "d1", "d2")).partial_fit(*some(digit_images, "d3", "d4"))
    images, labels = digit_images
    unseen = np.arange(len(labels)) % 5 == 0
    known = unseen & np.isin(labels, learner.classes_)
    assert (learner.predictions(images[known]).labels == "unknown").mean() < 0.2
    assert (learner.predictions(images[unseen & ~np.isin(labels, learner.classes_)]).labels == "unknown").mean() > 0.4
    assert learner.model_.errors.tolist() == [0.0] * 5
    answers = learner.predictions(images[known], certificate=True)
    assert answers.certified[answers.labels != "unknown"].mean() > 0.9
    assert learner.report_.expected_old is not None
    assert 80 < learner.report_.expected_old <= 100


@pytest.mark.parametrize("name", NAMES)
def test_onnx_gives_the_same_predictions(name: str, digit_images: Digits, tmp_path: Any) -> None:
    pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    from gatf.model.onnx import export_onnx

    learner = classifier(name).fit(*some(digit_images, "d0", "d1", "d2"))
    assert export_onnx(learner.model_, tmp_path / "model.onnx") == "onnxruntime gives the same predictions"
