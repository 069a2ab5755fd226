"""DPCR, by the checks of its specification."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from gatf.config import RunConfig
from gatf.data.loader import TaskInfo
from gatf.experiment import Experiment, start
from gatf.geometry import spd
from gatf.methods.dpcr import DPCR, DPCRConfig, GramMemory, ridge_classifier, row_space, shift_projection
from gatf.methods.lwf import local_cross_entropy
from gatf.nets.heads import CosineHeads

Tiny = Callable[..., RunConfig]


def tensor(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def relu_features(count: int, dim: int, seed: int = 0) -> Tensor:
    return (rand(count, dim, seed=seed) + 0.5).relu()


def memory_of(features: Tensor, labels: Tensor) -> GramMemory:
    """What DPCR stores of these features."""
    classes = int(labels.max()) + 1
    own = [features[labels == c] for c in range(classes)]
    memory = GramMemory(features.shape[1])
    memory.triangles = spd.pack(torch.stack([rows.T @ rows for rows in own]))
    memory.means = torch.stack([rows.mean(0) for rows in own])
    memory.counts = torch.bincount(labels).double()
    return memory


def grams_of(memory: GramMemory) -> Tensor:
    return torch.cat([grams for _, grams in memory.chunks()])


class TestShift:
    def test_nothing_moved(self) -> None:
        """F_t = F_{t−1}: P = I, and nothing stored changes."""
        features = relu_features(60, 6)
        projection, report = shift_projection(features.T @ features, features.T @ features, 1e-9)
        torch.testing.assert_close(projection, torch.eye(6, dtype=torch.float64), atol=1e-9, rtol=0)
        assert report["rank"] == 6
        memory = memory_of(relu_features(40, 6, seed=1), torch.arange(40) % 4)
        grams, means = grams_of(memory), memory.means.clone()
        memory.move(projection, cip=True, tolerance=None)
        torch.testing.assert_close(grams_of(memory), grams, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(memory.means.double(), means, atol=1e-5, rtol=1e-5)

    def test_a_linear_drift_is_found_and_followed(self) -> None:
        """x_n = x_o·B: P = B, Φ ← BᵀΦB, μ ← μB, and the classifier is joint ridge regression on the new features."""
        drift = torch.eye(5, dtype=torch.float64) + 0.3 * rand(5, 5, seed=9)
        current, old = relu_features(80, 5), relu_features(60, 5, seed=1)
        labels = torch.arange(60) % 3
        projection, _ = shift_projection(current.T @ current, current.T @ (current @ drift), 1e-12)
        torch.testing.assert_close(projection, drift, atol=1e-9, rtol=1e-9)
        memory, expected = memory_of(old, labels), memory_of(old @ drift, labels)
        memory.move(projection, cip=True, tolerance=None)
        torch.testing.assert_close(grams_of(memory), grams_of(expected), atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(memory.means.double(), expected.means, atol=1e-5, rtol=1e-5)

        new = current @ drift
        new_labels = 3 + torch.arange(80) % 2
        joint, joint_labels = torch.cat([old @ drift, new]), torch.cat([labels, new_labels])
        targets = new.T @ one_hot(new_labels, 5).double()
        targets[:, :3] = (memory.counts[:, None] * memory.means.double()).T
        ours = ridge_classifier(memory.total() + new.T @ new, targets, 2.0, normalise=False)
        identity = 2.0 * torch.eye(5, dtype=torch.float64)
        theirs = torch.linalg.solve(joint.T @ joint + identity, joint.T @ one_hot(joint_labels, 5).double())
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)

    def test_fewer_images_than_dimensions(self) -> None:
        """Directions no image has seen map to zero; the images themselves map exactly."""
        old, drift = relu_features(10, 40), torch.eye(40, dtype=torch.float64) + 0.1 * rand(40, 40, seed=3)
        projection, report = shift_projection(old.T @ old, old.T @ (old @ drift), 1e-9)
        assert report["rank"] == 10
        assert projection.isfinite().all()
        torch.testing.assert_close(old @ projection, old @ drift, atol=1e-6, rtol=1e-6)
        unseen = torch.linalg.svd(old).Vh[10:]
        assert (unseen @ projection).abs().max() < 1e-9

    def test_dead_channels_map_to_zero(self) -> None:
        old = relu_features(30, 5)
        old[:, 2] = 0
        projection, _ = shift_projection(old.T @ old, old.T @ relu_features(30, 5, seed=1), 1e-9)
        assert projection[2].abs().max() < 1e-12

    def test_no_image_activates_anything(self) -> None:
        zero = torch.zeros(3, 3, dtype=torch.float64)
        projection, report = shift_projection(zero, zero, 1e-9)
        assert torch.equal(projection, zero)
        assert report["rank"] == 0


class TestRowSpace:
    GRAM, MEAN, MAP = tensor([4, 0], [0, 0]), tensor([2, 0]), tensor([1, 1], [0, 1])

    def stored(self) -> GramMemory:
        memory = GramMemory(2)
        memory.triangles, memory.means, memory.counts = spd.pack(self.GRAM[None]), self.MEAN, torch.ones(1)
        return memory

    def test_by_hand(self) -> None:
        assert torch.equal(row_space(self.GRAM, torch.tensor(3)), tensor([1, 0], [0, 0]))
        memory = self.stored()
        memory.move(self.MAP, cip=True, tolerance=None)
        assert grams_of(memory)[0].tolist() == [[4, 0], [0, 0]]
        assert memory.means.tolist() == [[2, 0]]

    def test_by_hand_without_it(self) -> None:
        memory = self.stored()
        memory.move(self.MAP, cip=False, tolerance=None)
        assert grams_of(memory)[0].tolist() == [[4, 4], [4, 4]]
        assert memory.means.tolist() == [[2, 2]]

    @pytest.mark.parametrize("images", [10, 40])
    @pytest.mark.parametrize("decades", [0, 3.6])
    def test_the_rank_is_that_of_the_images(self, images: int, decades: float) -> None:
        """Stored in float32, features of 10 or 40 images in 16 dimensions; a trained network's are steep, with
        eigenvalues down to 1e-7 of the largest. The release's strict comparison sees 16 in any case."""
        features = relu_features(images, 16) * 10.0 ** -torch.linspace(0, decades, 16, dtype=torch.float64)
        stored = spd.unpack(spd.pack((features.T @ features)[None]).float().double(), 16)
        found = row_space(stored, torch.tensor([images]))[0].diagonal().sum()
        assert found == pytest.approx(min(images, 16))
        everything = row_space(stored, torch.tensor([images]), 0.0)[0]
        torch.testing.assert_close(everything, torch.eye(16, dtype=torch.float64), atol=1e-9, rtol=0)

    def test_a_tolerance_takes_real_directions_for_none(self) -> None:
        """diag(1, 1e-3, 1e-6) at a tolerance of 1e-5: the last is gone."""
        gram = torch.diag(tensor([1, 1e-3, 1e-6])[0])
        assert torch.equal(row_space(gram, torch.tensor(9), 1e-5).diagonal(), tensor([1, 1, 0])[0])
        assert torch.equal(row_space(gram, torch.tensor(9)).diagonal(), tensor([1, 1, 1])[0])

    def test_by_default_a_class_may_leave_its_old_row_space(self) -> None:
        """30 images in 64 dimensions, x_n = x_o·B: as published, Φ ← BᵀΦB whatever the rank of Φ."""
        old, drift = relu_features(30, 64), torch.eye(64, dtype=torch.float64) + 0.1 * rand(64, 64, seed=9)
        memory, expected = (memory_of(rows, torch.zeros(30, dtype=torch.int64)) for rows in (old, old @ drift))
        memory.move(drift, cip=DPCRConfig().cip, tolerance=DPCRConfig().rank_tolerance)
        torch.testing.assert_close(grams_of(memory), grams_of(expected), atol=1e-3, rtol=1e-4)
        torch.testing.assert_close(memory.means.double(), expected.means, atol=1e-5, rtol=1e-5)

    def test_rank_never_grows_and_spaces_are_nested(self) -> None:
        memory = memory_of(relu_features(12, 8), torch.arange(12) % 2)
        before = row_space(grams_of(memory), memory.counts)
        for seed in range(4):
            memory.move(torch.eye(8, dtype=torch.float64) + 0.2 * rand(8, 8, seed=seed), cip=True, tolerance=None)
            after = row_space(grams_of(memory), memory.counts)
            distributed = [spaces.diagonal(dim1=-2, dim2=-1).sum(-1) for spaces in (before, after)]
            assert (distributed[1] <= distributed[0] + 1e-6).all()
            torch.testing.assert_close(before @ after, after, atol=1e-4, rtol=0)
            before = after

    def test_chunks_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        labels, move = torch.arange(40) % 4, torch.eye(6, dtype=torch.float64) + 0.2 * rand(6, 6)
        whole, parts = memory_of(relu_features(40, 6), labels), memory_of(relu_features(40, 6), labels)
        whole.move(move, cip=True, tolerance=None)
        monkeypatch.setattr("gatf.methods.dpcr.CHUNK_ELEMENTS", 3 * 36)
        parts.move(move, cip=True, tolerance=None)
        torch.testing.assert_close(parts.triangles, whole.triangles)
        torch.testing.assert_close(parts.total(), whole.total())


def test_as_gaussians() -> None:
    """Mean and covariance of what was stored, and of what it was moved to: both go through the same map."""
    features, labels = relu_features(40, 6), torch.arange(40) % 4
    memory, move = memory_of(features, labels), torch.eye(6, dtype=torch.float64) + 0.2 * rand(6, 6)
    memory.move(move, cip=False, tolerance=None)
    moved = memory.as_gaussians()
    for c in range(4):
        own = features[labels == c] @ move
        torch.testing.assert_close(moved.means[c], own.mean(0), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(moved.covs[c], own.T.cov(correction=0), atol=1e-4, rtol=1e-4)


class TestClassifier:
    def test_by_hand(self) -> None:
        """μ = (1,0), (0,1), n = 2, γ = 2: R = 4I, Q = 2I, W = ½I, normalised I."""
        gram, targets = tensor([2, 0], [0, 2]), tensor([2, 0], [0, 2])
        torch.testing.assert_close(ridge_classifier(gram, targets, 2.0, normalise=False), tensor([0.5, 0], [0, 0.5]))
        torch.testing.assert_close(ridge_classifier(gram, targets, 2.0), tensor([1, 0], [0, 1]))

    def test_counts_do_not_matter_once_normalised(self) -> None:
        features = relu_features(50, 6)
        gram, means = features.T @ features, rand(6, 4, seed=1)
        ours = ridge_classifier(gram, means * torch.tensor([1.0, 7.0, 500.0, 0.1]), 3.0)
        torch.testing.assert_close(ours, ridge_classifier(gram, means, 3.0))
        solved = torch.linalg.solve(gram + 3 * torch.eye(6, dtype=torch.float64), means)
        torch.testing.assert_close(ours, normalize(solved, dim=0))

    def test_a_class_projected_away_is_no_error(self) -> None:
        weight = ridge_classifier(torch.eye(3, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64), 1.0)
        assert torch.equal(weight, torch.zeros(3, 2, dtype=torch.float64))


def two_tasks(config: RunConfig) -> tuple[Experiment, DPCR]:
    """Two tasks whose network never moves."""
    experiment = Experiment(config)
    method = experiment.method
    assert isinstance(method, DPCR)
    for task in range(2):
        method.begin_task(experiment.task_info(task))
        method.end_task(experiment.task_data(task))
    return experiment, method.eval()


@torch.no_grad()
def joint_ridge(experiment: Experiment, ridge: float) -> Tensor:
    """(XᵀX + γI)⁻¹XᵀY over both tasks' plain images."""
    batches = [batch for task in range(2) for batch in experiment.task_data(task).batches("test")]
    features = torch.cat([experiment.method.backbone(batch.images) for batch in batches]).double()
    labels = torch.cat([batch.labels for batch in batches])
    identity = ridge * torch.eye(features.shape[1], dtype=torch.float64)
    return torch.linalg.solve(features.T @ features + identity, features.T @ one_hot(labels, 4).double())


@pytest.mark.parametrize("tssp", [True, False])
def test_without_drift_it_is_joint_ridge_regression(tiny_config: Tiny, tssp: bool) -> None:
    """With P = I it is the frozen-backbone analytic classifier; else up to what the rank tolerance cuts off."""
    settings = {"method.stats_transform": "test", "method.cn": False, "method.cip": tssp, "method.tssp": tssp}
    experiment, method = two_tasks(tiny_config("dpcr", **settings))
    expected = joint_ridge(experiment, 200.0)
    assert (method.readout.weight - expected).norm() < 1e-3 * expected.norm()


def test_cross_entropy_leaves_old_rows_alone() -> None:
    """The loss on new classes has no gradient in the rows of old ones."""
    heads = CosineHeads(4).grow(5)
    loss = local_cross_entropy(heads(torch.rand(6, 4)), torch.tensor([3, 4, 3, 4, 3, 4]), 3)
    (gradient,) = torch.autograd.grad(loss, [heads.weight])
    assert torch.equal(gradient[:3], torch.zeros(3, 4))
    assert gradient[3:].abs().max() > 0


def test_the_method_distils_old_logits_and_trains_new_ones(tiny_config: Tiny) -> None:
    experiment, method = two_tasks(tiny_config("dpcr"))
    task: TaskInfo = experiment.task_info(2)
    method.begin_task(task)
    (phase,) = method.phases(task)
    method.train()
    terms = phase.loss(next(iter(experiment.task_data(2).batches("train", batch_size=8))))
    (from_ce,) = torch.autograd.grad(terms["ce"], [method.base.heads.weight], retain_graph=True)
    (from_kd,) = torch.autograd.grad(terms["distill"], [method.base.heads.weight])
    assert from_ce[:4].abs().max() == 0
    assert from_kd[4:].abs().max() == 0


def test_bytes_per_class(tiny_config: Tiny) -> None:
    """D(D+1)/2 + D floats and the count."""
    assert Experiment(tiny_config("dpcr")).method.bytes_per_class() == 4 * (32 * 33 // 2 + 32 + 1)


def test_finishes_with_fewer_images_than_dimensions(tiny_config: Tiny, tmp_path: Path) -> None:
    """Eight images per class, 16 a task, in 32 dimensions."""
    summary = start(tiny_config("dpcr", **{"data.max_per_class": 8}), tmp_path / "run")
    assert summary.accuracy_seen[0] > 60
    assert all(accuracy >= 0 for accuracy in summary.accuracy_seen)


@pytest.mark.parametrize("settings", [{}, {"method.stats_transform": "train", "method.relative_shift_ridge": True}])
def test_runs_and_learns(tiny_config: Tiny, tmp_path: Path, settings: dict[str, Any]) -> None:
    longer = {f"optimisation.{stage}.epochs": 12 for stage in ("first", "next")} | {"optimisation.next.lr": 0.005}
    summary = start(tiny_config("dpcr", **longer, **settings), tmp_path / "run")
    assert summary.a_last > 40
