"""The memory of class Gaussians in its four kinds: what is kept, moved, read and written, against dense matrices."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gatf import IncrementalClassifier
from gatf.config import RunConfig, load_config
from gatf.errors import UserError
from gatf.experiment import Experiment
from gatf.geometry import readout
from gatf.geometry.compact import fit_low_rank
from gatf.geometry.gaussians import Gaussians
from gatf.io import container
from gatf.io.events import Event, Notice
from gatf.methods.adagauss import AdaGaussConfig
from gatf.methods.base import TaskInfo
from gatf.methods.gatf import GATFConfig
from gatf.methods.parts import memory as memory_module
from gatf.methods.parts.memory import CovarianceConfig, GaussianMemory
from gatf.methods.parts.storage import Storage
from gatf.model import file as model_file
from gatf.model.onnx import Graph

KINDS = ["full", "lowrank"]
COMPACT = KINDS[1:]
Tiny = Callable[..., Any]


def empty(kind: str, dim: int = 6, *, rank: int = 2, rule: str = "bayes", **more: Any) -> GaussianMemory:
    config = GATFConfig(covariance=CovarianceConfig(kind=kind, rank=rank))  # type: ignore[arg-type]
    return GaussianMemory(dim, rule=rule, seed=0, storage=config.storage, **more)  # type: ignore[arg-type]


def some(classes: int = 5, dim: int = 6, seed: int = 0) -> Gaussians:
    draws = torch.Generator().manual_seed(seed)
    roots = torch.randn(classes, dim, dim, generator=draws, dtype=torch.float64)
    return Gaussians(3 * torch.randn(classes, dim, generator=draws, dtype=torch.float64), roots @ roots.mT)


def filled(kind: str, classes: int = 5, dim: int = 6, **more: Any) -> GaussianMemory:
    memory = empty(kind, dim, **more)
    memory.set(some(classes, dim))
    return memory


def kept_of(kind: str, covs: Tensor, rank: int = 2) -> Tensor:
    """What each kind should know of covariances [C, S, S]."""
    return fit_low_rank(covs, rank).dense() if kind == "lowrank" else covs


# --- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "numbers"), [("full", 64 + 2080), ("lowrank", 10 * 64)])
def test_bytes_of_a_class_are_what_the_state_grows_by(kind: str, numbers: int) -> None:
    memory = empty(kind, 64, rank=8)
    memory.set(Gaussians(torch.zeros(3, 64), torch.eye(64).repeat(3, 1, 1)))
    assert memory.bytes_per_class() == 4 * numbers
    assert sum(t.numel() * t.element_size() for t in memory.state_dict().values()) == 4 * 3 * numbers


@pytest.mark.parametrize(("kind", "names"), [("full", {"triangles"}), ("lowrank", {"factors", "diagonals"})])
def test_names_of_the_state(kind: str, names: set[str]) -> None:
    assert empty(kind).state_dict().keys() == {"means"} | names


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_known_of_the_covariances(kind: str) -> None:
    known = filled(kind).get()
    torch.testing.assert_close(known.means, some().means, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(known.covs, kept_of(kind, some().covs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_loading_takes_any_number_of_classes(kind: str) -> None:
    stored, other = filled(kind), filled(kind, classes=2)
    features = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert other.scores(features).shape == (4, 2)  # the readout of two classes is made, and must not survive
    other.load_state_dict(stored.state_dict())
    assert len(other) == 5
    assert torch.equal(other.scores(features), stored.scores(features))


@pytest.mark.parametrize("kind", KINDS)
def test_no_class_at_all(kind: str) -> None:
    memory = filled(kind)
    memory.set(Gaussians(torch.zeros(0, 6), torch.zeros(0, 6, 6)))
    assert len(memory) == len(memory.get()) == 0
    assert all(tensor.isfinite().all() for tensor in memory.state_dict().values())


def test_a_rank_beyond_the_dimension_is_reported() -> None:
    with pytest.raises(UserError, match=r"method\.covariance\.rank is 9, but features have 6 dimensions"):
        empty("lowrank", rank=9)
    assert len(empty("full", rank=9)) == 0


def test_an_unknown_kind_is_reported() -> None:
    with pytest.raises(UserError, match=r"method\.covariance"):
        load_config("digits", method="gatf", overrides={"method.covariance": "diagonal"})


def test_putting_back_what_was_taken_out() -> None:
    """As a model does that merges a class: nothing changes, or for low rank little, time after time."""
    for kind in KINDS:
        memory = filled(kind)
        before = memory.get()
        for _ in range(10):
            memory.set(memory.get())  # a task each
        off = torch.linalg.matrix_norm(memory.get().covs - before.covs) / torch.linalg.matrix_norm(before.covs)
        assert off.max() < (0.1 if kind == "lowrank" else 1e-6), kind
        torch.testing.assert_close(
            memory.get().covs.diagonal(dim1=1, dim2=2), before.covs.diagonal(dim1=1, dim2=2), rtol=1e-5, atol=1e-5
        )


# --- adding classes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_learning_appends_and_leaves_the_others_alone(kind: str, tiny_config: Tiny) -> None:
    """With pixels as features, new classes get the moments of their images and mirror images."""
    memory, data = empty(kind, 64), Experiment(tiny_config("gatf")).task_data(0)
    memory.set(some(2, 64))
    before = {name: tensor.clone() for name, tensor in memory.state_dict().items()}
    memory.learn(nn.Flatten(), data)
    images = torch.cat([batch.images[batch.labels == 0] for batch in data.batches("test")])
    both = torch.cat([images, images.flip(-1)]).flatten(1).double()
    torch.testing.assert_close(memory.get().means[2], both.mean(0), atol=1e-6, rtol=1e-6)
    for name, tensor in before.items():
        assert torch.equal(memory.state_dict()[name][:2], tensor), name
    torch.testing.assert_close(memory.get().covs[2], kept_of(kind, both.T.cov()[None])[0], atol=1e-4, rtol=1e-4)


# --- transport --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 2, 512])
def test_an_affine_map_is_followed_exactly(kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "CHUNK_ELEMENTS", chunk * 36)
    memory = filled(kind)
    before = memory.get()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.Linear(6, 6).requires_grad_(False)
    assert memory.transport(layer, samples=40, matched=True, task=1) == {"jittered": 0.0, "clipped": 0.0}
    weight = layer.weight.double()
    torch.testing.assert_close(memory.get().means, before.means @ weight.T + layer.bias, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(memory.get().covs, kept_of(kind, weight @ before.covs @ weight.T), atol=1e-4, rtol=1e-4)


def test_how_many_points_are_drawn() -> None:
    assert GATFConfig().draws(64) == 16 * 64
    assert GATFConfig(matched_noise=False).draws(64) == 10_000
    assert GATFConfig(samples=130).draws(64) == 130
    assert GATFConfig(samples=10, matched_noise=False).draws(64) == 10
    release = load_config("digits", method="gatf-release").method
    assert release.draws(64) == 10_000  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"method\.samples is 127, but .* \(64\): raise it"):
        GATFConfig(samples=127).draws(64)


@pytest.mark.parametrize(
    ("bend", "wanted"), [(0.0, 4 * 6), (0.02, 4 * 6), (1.0, 600)], ids=["affine", "nearly affine", "bent"]
)
def test_many_classes_take_fewer_points_where_these_are_enough(
    bend: float, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module, "MANY_CLASSES", 11)

    def mapping(z: Tensor) -> Tensor:
        return 0.9 * z + bend * z.square()

    memory, usual = filled("full", classes=12), filled("full", classes=12)
    report = memory.transport(mapping, samples=600, matched=True, task=1, fewer=True)
    assert report["samples"] == wanted
    assert "samples" not in usual.transport(mapping, samples=600, matched=True, task=1)
    off = (memory.get().covs - usual.get().covs).norm() / usual.get().covs.norm()
    assert off < 0.02
    few = filled("full", classes=11)
    assert "samples" not in few.transport(mapping, samples=600, matched=True, task=1, fewer=True)


def test_an_odd_number_of_points_is_made_even() -> None:
    """Pairs ±ε: a map without a linear part leaves no covariance with it, however few the points."""
    memory = filled("full")
    memory.set(Gaussians(torch.zeros(1, 6), torch.eye(6)[None]))
    memory.transport(lambda z: torch.cat([z[:, :3], z[:, 3:].abs()], dim=1), samples=13, matched=True, task=1)
    torch.testing.assert_close(memory.get().covs[0, :3, :3], torch.eye(3).double(), atol=1e-5, rtol=0)
    assert memory.get().covs[0, :3, 3:].abs().max() < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_do_not_change_a_bit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many classes are unpacked at once."""
    states = []
    for matrices in (1, 7, 1000):
        monkeypatch.setattr(memory_module, "CHUNK_ELEMENTS", matrices * 36)
        memory = filled(kind, classes=20)
        memory.transport(torch.tanh, samples=40, matched=False, task=1)
        states.append(memory.state_dict())
    for name, tensor in states[0].items():
        assert all(torch.equal(state[name], tensor) for state in states[1:]), name


@pytest.mark.parametrize("kind", COMPACT)
def test_few_matrices_exist_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While classes are moved or replaced, and none while they are compared with."""
    made: list[int] = []
    memory = empty(kind)
    decode, encode = memory.storage.decode, memory.storage.encode
    monkeypatch.setattr(memory_module, "CHUNK_ELEMENTS", 4 * 36)
    monkeypatch.setattr(memory.storage, "decode", lambda kept, chosen: made.append(len(chosen)) or decode(kept, chosen))
    monkeypatch.setattr(memory.storage, "encode", lambda covs: made.append(len(covs)) or encode(covs))
    memory.set(some(11))
    memory.transport(nn.Identity(), samples=20, matched=True, task=1)
    assert sum(made) == 3 * 11
    assert max(made) == 4
    made.clear()
    for rule in ("bayes", "mahalanobis", "nmc"):
        memory.rule = rule  # type: ignore[assignment]
        memory.release_readout()
        assert memory.scores(torch.zeros(3, 6)).shape == (3, 11)
    assert made == []


@pytest.mark.parametrize("kind", KINDS)
def test_singular_covariances_are_reported(kind: str) -> None:
    """A class of one image has no variance at all."""
    memory, given = empty(kind), some()
    given.covs[2] = 0
    memory.set(given)
    repairs = memory.transport(nn.Identity(), samples=40, matched=True, task=1)
    assert repairs == {"jittered": 0.0, "clipped": 1.0}
    assert memory.get().covs.isfinite().all()


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rule", "shrink"), [("bayes", None), ("mahalanobis", None), ("mahalanobis", 0.1), ("nmc", None)]
)
def test_scores_are_those_of_the_matrices(kind: str, rule: str, shrink: float | None) -> None:
    memory = filled(kind, rule=rule, readout_shrink=shrink)
    features = 4 * torch.randn(30, 6, generator=torch.Generator().manual_seed(1))
    if rule == "nmc":
        expected = (features.double()[:, None] - memory.means.double()).square().sum(-1)
    else:
        build = readout.bayes_readout if rule == "bayes" else readout.mahalanobis_readout
        expected = (build(memory.get()) if shrink is None else build(memory.get(), shrink)).distances(features)
    torch.testing.assert_close(memory.scores(features), -expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["bayes", "mahalanobis", "nmc", "rda"])
def test_the_graph_of_a_readout_gives_its_scores(kind: str, rule: str) -> None:
    memory = filled(kind, rule=rule)
    features = torch.randn(30, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(memory.readout().graph()(features), memory.scores(features), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", ["bayes", "nmc"])
def test_a_readout_does_not_outlive_a_move_to_another_device(rule: str) -> None:
    memory = filled("full", rule=rule)
    made = memory.readout()
    assert memory.readout() is made
    memory.to("cpu")
    assert memory.readout() is not made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["bayes", "mahalanobis", "nmc", "rda"])
def test_every_rule_distinguishes_far_classes(kind: str, rule: str) -> None:
    memory, means = empty(kind, 4, rule=rule), 20 * torch.eye(4)[:3]
    memory.set(Gaussians(means, some(3, 4).covs))
    noise = torch.randn(20, 3, 4, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        scores = memory.scores((means + noise).flatten(0, 1))
    assert (scores.argmax(1).reshape(20, 3) == torch.arange(3)).all()


def two_classes(seed: int, spread: float, images: int = 400) -> tuple[Tensor, Tensor]:
    """Features [images, 6] of two classes around ±½ in every coordinate, the second `spread` times as wide."""
    labels = torch.arange(images) % 2
    noise = torch.randn(images, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (labels - 0.5)[:, None] + noise * torch.where(labels == 1, spread, 1.0)[:, None], labels


def learnt_from(features: Tensor, labels: Tensor, monkeypatch: pytest.MonkeyPatch) -> GaussianMemory:
    """A memory that chooses, after learning these features of a task's two classes as those of plain images."""
    twice = (torch.cat([features, features]), torch.cat([labels, labels]))
    monkeypatch.setattr(memory_module, "own_features", lambda net, data, mirror: twice)
    memory = empty("full", rule="rda")
    memory.learn(nn.Identity(), SimpleNamespace(info=TaskInfo(0, 0, 2, len(labels))))  # type: ignore[arg-type]
    return memory


@pytest.mark.parametrize(("spread", "mixtures"), [(1.0, (0.75, 1.0)), (5.0, (0.0, 0.25))])
def test_rda_chooses_by_held_out_images(
    spread: float, mixtures: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 20 tasks: few images of equal spread share a covariance, a class five times as wide has its own."""
    evidence = sum(learnt_from(*two_classes(seed, spread, images=40), monkeypatch).evidence for seed in range(20))
    assert memory_module.RDA_CHOICES[int(evidence.argmax())][0] in mixtures


def test_what_rda_holds_back_is_part_of_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = two_classes(0, 1.0, images=60)
    memory = learnt_from(features, labels, monkeypatch)
    torch.testing.assert_close(memory.get().means[0], features[labels == 0].mean(0), rtol=1e-5, atol=1e-5)


def test_the_evidence_of_rda_is_the_accuracy_on_held_out_images(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = two_classes(1, 2.0)
    memory = learnt_from(features, labels, monkeypatch)
    held = torch.arange(400) % 5 == 0
    rest = [features[~held & (labels == each)].repeat(2, 1) for each in (0, 1)]
    fitted = Gaussians(torch.stack([each.mean(0) for each in rest]), torch.stack([each.T.cov() for each in rest]))
    number = memory_module.RDA_CHOICES.index((0.25, 0.1))
    right = readout.rda_readout(fitted, 0.25, 0.1).scores(features[held]).argmax(1) == labels[held]
    assert 0 < right.sum() < 80
    assert memory.evidence[number] == 2 * right.sum()  # plain and mirrored


def test_given_rda_settings_are_not_chosen(tiny_config: Tiny) -> None:
    features = torch.randn(9, 6, generator=torch.Generator().manual_seed(1))
    for reported, used in (((0.9, None), (0.9, 0.03)), ((0.0, 0.2), (0.0, 0.2))):
        memory = filled("full", rule="rda", rda=reported)
        torch.testing.assert_close(memory.scores(features), readout.rda_readout(memory.get(), *used).scores(features))
    for method in ("gatf", "adagauss"):
        config = tiny_config(method, **{"method.rda.mixture": 0.9, "method.rda.shrinkage": 0.2})
        assert Experiment(config).method.memory.rda == (0.9, 0.2)


def test_rda_adds_up_evidence_and_has_a_choice_before_there_is_any(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = filled("full", rule="rda")
    features = torch.randn(9, 6, generator=torch.Generator().manual_seed(1))
    expected = readout.rda_readout(memory.get(), 0.5, 0.03).scores(features)
    torch.testing.assert_close(memory.scores(features), expected)
    memory = learnt_from(*two_classes(2, 2.0), monkeypatch)
    once = memory.evidence.clone()
    memory.learn(nn.Identity(), SimpleNamespace(info=TaskInfo(0, 0, 2, 400)))  # type: ignore[arg-type]
    assert torch.equal(memory.evidence, 2 * once)
    assert memory.bytes_per_class() == empty("full").bytes_per_class()


# --- in methods -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gatf", "adagauss"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_chooses_comes_back_from_its_file(
    method: str, kind: str, tiny_classifier: Tiny, digit_images: Any, tmp_path: Path
) -> None:
    images, labels = digit_images
    reported = {"method.samples": 100, "method.readout": "rda", "method.covariance": kind}
    classifier = tiny_classifier(method=method, epochs=10, settings=reported)
    for names in (("d0", "d1", "d2"), ("d1", "d3")):
        chosen = np.isin(labels, names)
        classifier.partial_fit(images[chosen][:240], labels[chosen][:240])
    assert classifier.model_.method.memory.evidence.unique().numel() > 1
    classifier.save(tmp_path / "shop.gatf")
    loaded = IncrementalClassifier.load(tmp_path / "shop.gatf", device="cpu")
    assert (loaded.predict_proba(images[:50]) == classifier.predict_proba(images[:50])).all()
    with torch.no_grad():
        scores, _, _ = Graph(loaded.model_).eval()(torch.from_numpy(images[:50, None]))
    torch.testing.assert_close(scores, torch.from_numpy(loaded.decision_function(images[:50])), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("method", ["gatf", "adagauss"])
@pytest.mark.parametrize("kind", KINDS)
def test_methods_keep_what_their_settings_say(
    method: str, kind: str, tiny_config: Tiny, learn: Callable[..., Experiment]
) -> None:
    config = tiny_config(method, **{"method.covariance.kind": kind, "method.covariance.rank": 2})
    done = learn(config, tasks=2).method
    known = done.stored()
    off = torch.linalg.matrix_norm(kept_of(kind, known.covs) - known.covs) / torch.linalg.matrix_norm(known.covs)
    assert off.max() < (0.05 if kind == "lowrank" else 1e-6)
    numbers = {"full": 8 + 36, "lowrank": 4 * 8}
    assert done.bytes_per_class() == 4 * numbers[kind]
    fresh = Experiment(config).method
    fresh.load_state_dict(done.state_dict())
    images = torch.rand(7, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(fresh.eval().scores(images), done.eval().scores(images))


def test_the_default_is_the_whole_covariance() -> None:
    for config in (GATFConfig(), AdaGaussConfig()):
        assert config.covariance.kind == "full"
        assert isinstance(config.storage(8), Storage)


# --- in models that grow ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=COMPACT)
def grown_compact(request: Any, tiny_classifier: Tiny, digit_images: Any) -> Any:
    """A classifier that learnt d0 … d2, then d1 again together with d3."""
    images, labels = digit_images
    reported = {"method.samples": 100, "method.covariance.kind": request.param, "method.covariance.rank": 2}
    classifier = tiny_classifier(epochs=15, width=16, settings=reported)
    for names in (("d0", "d1", "d2"), ("d1", "d3")):
        chosen = np.isin(labels, names)
        classifier.partial_fit(images[chosen][:240], labels[chosen][:240])
    return classifier


def test_a_class_that_comes_back_is_merged(grown_compact: Any, digit_images: Any) -> None:
    images, labels = digit_images
    method = grown_compact.model_.method
    assert grown_compact.classes_.tolist() == ["d0", "d1", "d2", "d3"]
    assert len(method.memory) == 4
    assert grown_compact.report_.revisited == ("d1",)
    assert all(tensor.isfinite().all() for tensor in method.memory.state_dict().values())
    chosen = np.isin(labels, grown_compact.classes_)
    assert grown_compact.score(images[chosen], labels[chosen]) > 0.6  # chance is 0.25
    certified = grown_compact.predict(images[:20], return_certificate=True)
    assert len(certified[0]) == 20


def test_a_compact_model_comes_back_from_its_file(grown_compact: Any, digit_images: Any, tmp_path: Path) -> None:
    grown_compact.save(tmp_path / "shop.gatf")
    loaded = IncrementalClassifier.load(tmp_path / "shop.gatf", device="cpu")
    assert (loaded.predict_proba(digit_images[0][:50]) == grown_compact.predict_proba(digit_images[0][:50])).all()


def test_a_file_with_other_sizes_is_refused(grown_compact: Any, tmp_path: Path) -> None:
    grown_compact.save(tmp_path / "shop.gatf")
    for name in grown_compact.model_.method.memory.storage.shapes(0):
        tensors, header = container.read(tmp_path / "shop.gatf")
        tensors[f"method.memory.{name}"] = tensors[f"method.memory.{name}"][..., 1:].contiguous()
        container.write(tmp_path / "forged.gatf", tensors, header.model)
        with pytest.raises(UserError, match="not a model, or a damaged one"):
            model_file.load(tmp_path / "forged.gatf")


@pytest.mark.parametrize(
    "setting", [{"method.covariance.kind": "full"}, {"method.covariance": {"rank": 3}}, {"method.covariance_rank": 3}]
)
def test_the_kind_cannot_change_in_an_update(grown_compact: Any, digit_images: Any, setting: dict[str, Any]) -> None:
    again = IncrementalClassifier.from_model(grown_compact.model_, device="cpu").set_params(settings=setting)
    with pytest.raises(UserError, match="was fixed when the model was first fitted"):
        again.partial_fit(digit_images[0][:60], digit_images[1][:60])


@pytest.mark.parametrize("rule", ["bayes", "mahalanobis"])
def test_the_exported_graph_gives_the_methods_scores(grown_compact: Any, digit_images: Any, rule: str) -> None:
    images = digit_images[0][:60]
    memory = grown_compact.model_.method.memory
    before = memory.rule
    try:
        memory.rule = rule
        memory.release_readout()
        with torch.no_grad():
            scores, _, _ = Graph(grown_compact.model_).eval()(torch.from_numpy(images[:, None]))
        expected = torch.from_numpy(grown_compact.decision_function(images))
    finally:
        memory.rule = before
        memory.release_readout()
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-4)


def test_noise_on_stored_moments_is_reported_and_stored(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    """With little noise (a large ε) the moments are those of clipped features, and nothing is longer than the norm."""
    small = {"scenario.stop_after": 1, "optimisation.first.epochs": 1, "data.max_per_class": 20}
    noise = {"method.noise.epsilon": 100.0, "method.noise.clip": 0.5}
    reported: list[Event] = []
    experiment = Experiment(tiny_config("adagauss", **small, **noise))
    (tmp_path / "checkpoints").mkdir()
    experiment.run(tmp_path, (reported.append,))
    (notice,) = [event for event in reported if isinstance(event, Notice) and event.name == "privacy"]
    assert notice.values == {"epsilon": 100.0, "delta": 1e-5, "clip": 0.5}
    assert experiment.method.stored().means.norm(dim=1).max() < 0.6


def test_noise_is_refused_with_a_readout_that_uses_single_images(
    tmp_path: Path, tiny_config: Callable[..., RunConfig]
) -> None:
    small = {"scenario.stop_after": 1, "optimisation.first.epochs": 1, "data.max_per_class": 20}
    (tmp_path / "checkpoints").mkdir()
    config = tiny_config("gatf", **small, **{"method.noise.epsilon": 1.0, "method.readout": "rda"})
    with pytest.raises(UserError, match=r"cannot be combined with method\.noise\.epsilon"):
        Experiment(config).run(tmp_path, ())
