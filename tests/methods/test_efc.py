"""EFC, by the checks of its specification."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gatf.config import RunConfig
from gatf.data.augment import rotation_labels_appended
from gatf.data.loader import Batch, TaskInfo, shuffled
from gatf.experiment import Experiment, resume, start
from gatf.io import container
from gatf.io.events import Event, Step, Task
from gatf.methods.efc import EFC, drift_weights, elastic_drift, feature_matrix, prototype_labels, rehearsal_counts
from gatf.training.loop import Interrupted
from gatf.training.optim import build_optimiser
from gatf.training.phase import Phase

from .conftest import begun_task_1

Tiny = Callable[..., RunConfig]
REBALANCED = {"method.preset": "efc++", "method.rebalance_lr": 0.1}
"""The published rate is for thousands of steps; here are eight per task."""


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestFeatureMatrix:
    def test_by_hand(self) -> None:
        """W = I, π = (½, ½): E = ¼·[[1, −1], [−1, 1]]; drift (1, −1) costs 10.2, (1, 1) costs 0.2."""
        efm = feature_matrix(torch.zeros(1, 2), torch.eye(2))
        assert efm.tolist() == [[0.25, -0.25], [-0.25, 0.25]]
        zero = torch.zeros(1, 2, dtype=torch.float64)
        for drift, cost in (([[1.0, -1.0]], 10.2), ([[1.0, 1.0]], 0.2)):
            new = torch.tensor(drift, dtype=torch.float64)
            assert elastic_drift(new, zero, efm, weight=10, damping=0.1).item() == pytest.approx(cost)

    def test_is_the_mean_outer_product_of_gradients(self) -> None:
        """Per-sample autograd of log π_y, y ~ π."""
        features, weight = rand(7, 5), rand(4, 5, seed=1)
        total = torch.zeros(5, 5, dtype=torch.float64)
        for feature in features:
            leaf = feature.clone().requires_grad_()
            logs = (weight @ leaf).log_softmax(0)
            for log in logs:
                (gradient,) = torch.autograd.grad(log, leaf, retain_graph=True)
                total += log.detach().exp() * torch.outer(gradient, gradient)
        torch.testing.assert_close(feature_matrix(features, weight), total / 7, atol=1e-12, rtol=0)

    def test_invariances(self) -> None:
        features, weight = rand(50, 6), rand(3, 6, seed=1)
        efm = feature_matrix(features, weight)
        values = torch.linalg.eigvalsh(efm)
        assert values.min() > -1e-12
        assert (values > 1e-10).sum() <= 2  # classes − 1
        torch.testing.assert_close(feature_matrix(features, weight + rand(6, seed=2)), efm, atol=1e-12, rtol=1e-12)
        null = torch.linalg.svd(weight).Vh[-1:]  # W·n = 0
        cost = elastic_drift(3 * null, torch.zeros_like(null), efm, weight=10, damping=0.1)
        assert cost.item() == pytest.approx(0.1 * 9)

    def test_without_it_drift_is_plain_feature_distillation(self) -> None:
        new, old = rand(8, 5), rand(8, 5, seed=1)
        cost = elastic_drift(new, old, rand(5, 5, seed=2), weight=0, damping=1)
        torch.testing.assert_close(cost, (new - old).square().sum(1).mean())


class TestDrift:
    OLD = torch.tensor([[0.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    NEW = torch.tensor([[1.0, 0.0], [2.0, 1.0]], dtype=torch.float64)
    MEANS = OLD

    def test_by_hand(self) -> None:
        weights = drift_weights(self.OLD, self.MEANS, torch.eye(2, dtype=torch.float64), width=0.2)
        assert weights[0].tolist() == pytest.approx([0.9999963, 3.7266e-6], rel=1e-4)
        moved = self.MEANS + weights @ (self.NEW - self.OLD)
        expected = torch.tensor([[1.0, 0.0], [2.0, 1.0]], dtype=torch.float64)
        torch.testing.assert_close(moved, expected, atol=1e-5, rtol=0)

    def test_the_same_drift_everywhere_moves_every_mean_by_it(self) -> None:
        old, means, drift = rand(20, 4), rand(3, 4, seed=1), rand(4, seed=2)
        efm = feature_matrix(old, rand(3, 4, seed=3))
        moves = drift_weights(old, means, efm, width=0.2) @ drift.expand(20, 4)
        torch.testing.assert_close(moves, drift.expand(3, 4))

    def test_the_scale_of_the_matrix_does_not_matter(self) -> None:
        old, means = rand(20, 4), rand(3, 4, seed=1)
        efm = feature_matrix(old, rand(3, 4, seed=3))
        weights = drift_weights(old, means, efm, width=0.2)
        torch.testing.assert_close(drift_weights(old, means, 1000 * efm, width=0.2), weights)

    def test_equal_distances_weigh_equally(self) -> None:
        weights = drift_weights(rand(5, 4), rand(2, 4, seed=1), torch.zeros(4, 4, dtype=torch.float64), width=0.2)
        assert torch.equal(weights, torch.full((2, 5), 0.2, dtype=torch.float64))

    def test_without_matrix_and_scaling_it_is_sdc(self) -> None:
        """exp(−‖g − p‖²/(2σ²)) over its sum."""
        old, means = rand(9, 4), rand(3, 4, seed=1)
        kernel = (-torch.cdist(means, old).square() / (2 * 0.7**2)).exp()
        ours = drift_weights(old, means, torch.eye(4, dtype=torch.float64), width=0.7, minmax=False)
        torch.testing.assert_close(ours, kernel / kernel.sum(1, keepdim=True))

    def test_a_wide_kernel_takes_the_mean_drift(self) -> None:
        weights = drift_weights(rand(10, 4), rand(3, 4, seed=1), torch.eye(4, dtype=torch.float64), width=1e6)
        torch.testing.assert_close(weights, torch.full((3, 10), 0.1, dtype=torch.float64))


class TestRehearsal:
    @pytest.mark.parametrize(("old", "new", "counts"), [(10, 10, (20, 20)), (20, 10, (40, 20)), (5, 5, (10, 10))])
    def test_few_classes_come_twice(self, old: int, new: int, counts: tuple[int, int]) -> None:
        assert rehearsal_counts(old, new, 64, torch.Generator().manual_seed(0)) == counts

    @pytest.mark.parametrize(("old", "new", "mean"), [(30, 10, 48.0), (90, 10, 57.6)])
    def test_many_classes_share_the_batch(self, old: int, new: int, mean: float) -> None:
        draws = torch.Generator().manual_seed(0)
        counts = [rehearsal_counts(old, new, 64, draws) for _ in range(400)]
        assert all(sum(pair) == 64 for pair in counts)
        assert sum(pair[0] for pair in counts) / 400 == pytest.approx(mean, abs=0.5)

    def test_full_batch_option(self) -> None:
        assert sum(rehearsal_counts(5, 5, 64, torch.Generator().manual_seed(0), fill=True)) == 64

    def test_prototypes_are_balanced(self) -> None:
        every = prototype_labels(10, 64, 64, torch.Generator().manual_seed(0))
        assert sorted(torch.bincount(every).tolist()) == [6] * 6 + [7] * 4
        some = prototype_labels(90, 64, 50, torch.Generator().manual_seed(0))
        assert len(some) == 50
        assert len(some.unique()) == 50  # none twice

    def test_labels_of_rotations(self) -> None:
        """Ten classes, class 3: 3, 19, 20, 21."""
        assert rotation_labels_appended(torch.tensor([3]), 10).tolist() == [3, 19, 20, 21]


def batches(experiment: Experiment, count: int) -> list[Batch]:
    data = experiment.task_data(1).batches("train", batch_size=16, order=shuffled)
    return [
        Batch(batch.images, batch.labels, 0, step, torch.Generator().manual_seed(step))
        for step, batch in zip(range(count), data, strict=False)
    ]


def begun(method: EFC, task: TaskInfo) -> Phase:
    """The phase of a task, its networks in the mode of training."""
    (phase,) = method.phases(task)
    assert phase.set_mode is not None
    phase.set_mode()
    return phase


class TestLoss:
    def test_terms_by_hand(self, tiny_config: Tiny) -> None:
        """The second step: 2 + 2 classes give 4 prototypes and 4 images of the first batch."""
        experiment, method, task = begun_task_1(tiny_config("efc"), EFC)
        phase = begun(method, task)
        first, second = batches(experiment, 2)
        phase.loss(first)
        with torch.no_grad():
            for parameter in method.backbone.parameters():
                parameter.mul_(1.05)
        drawn: list[tuple[Tensor, Tensor]] = []
        sample = method._sample

        def recording(labels: Tensor, draws: torch.Generator) -> Tensor:
            drawn.append((sample(labels, draws), labels))
            return drawn[-1][0]

        method._sample = recording  # type: ignore[method-assign]
        terms = phase.loss(second)
        ((sampled, labels),) = drawn
        assert len(labels) == 4
        assert labels.max() < 2
        features, old = method.backbone(second.images), method.teacher(second.images)
        new_head = method.heads.layers[-1](features)
        torch.testing.assert_close(terms["ce"], cross_entropy(new_head, second.labels - 2))
        expected = elastic_drift(features, old, method.efm, weight=10, damping=0.1)
        torch.testing.assert_close(terms["drift"], expected)
        rows = torch.cat([sampled, method.backbone(first.images[:4])])
        targets = torch.cat([labels, first.labels[:4]])
        torch.testing.assert_close(terms["rehearsal"], cross_entropy(method.heads(rows), targets))

    def test_the_first_step_rehearses_prototypes_only(self, tiny_config: Tiny) -> None:
        experiment, method, task = begun_task_1(tiny_config("efc"), EFC)
        (first,) = batches(experiment, 1)
        term = begun(method, task).loss(first)["rehearsal"]
        gradients = torch.autograd.grad(
            term, [p for p in method.backbone.parameters() if p.requires_grad], allow_unused=True
        )
        assert all(gradient is None or gradient.abs().max() == 0 for gradient in gradients)

    def test_prototypes_have_the_stored_moments(self, tiny_config: Tiny) -> None:
        _, method, _ = begun_task_1(tiny_config("efc"), EFC)
        drawn = method._sample(torch.ones(20_000, dtype=torch.long), torch.Generator().manual_seed(0)).double()
        stored = method.memory.get()
        scale = stored.covs[1].diagonal().max().sqrt()
        torch.testing.assert_close(drawn.mean(0), stored.means[1], atol=0.05 * float(scale), rtol=0)
        torch.testing.assert_close(drawn.T.cov(), stored.covs[1], atol=0.05 * float(scale) ** 2, rtol=0.1)


class TestBatchNorm:
    def test_is_frozen_after_task_0_while_old_heads_learn(self, tiny_config: Tiny, tmp_path: Path) -> None:
        seen: list[dict[str, Tensor]] = []
        experiment = Experiment(tiny_config("efc", **{"scenario.stop_after": 2, "optimisation.next.lr": 0.001}))

        def listen(event: Event) -> None:
            if isinstance(event, Task):
                seen.append({name: value.clone() for name, value in experiment.method.state_dict().items()})

        (tmp_path / "checkpoints").mkdir()
        experiment.run(tmp_path, (listen,))
        norms = [
            name
            for path, module in experiment.method.named_modules()
            if isinstance(module, nn.BatchNorm2d)
            for name in (f"{path}.running_mean", f"{path}.running_var", f"{path}.weight", f"{path}.bias")
        ]
        assert norms
        assert all(torch.equal(seen[0][name], seen[1][name]) for name in norms)
        assert not torch.equal(seen[0]["heads.layers.0.weight"], seen[1]["heads.layers.0.weight"])
        assert not torch.equal(seen[0]["backbone.blocks.0.0.weight"], seen[1]["backbone.blocks.0.0.weight"])

    def test_its_weights_are_not_in_the_optimiser(self, tiny_config: Tiny) -> None:
        """Weight decay alone would move them."""
        _, method, task = begun_task_1(tiny_config("efc"), EFC)
        (phase,) = method.phases(task)
        trained = {id(p) for group in build_optimiser(phase).param_groups for p in group["params"]}
        norms = [m for m in method.backbone.modules() if isinstance(m, nn.BatchNorm2d)]
        assert not any(id(p) in trained for norm in norms for p in norm.parameters())
        assert all(id(p) in trained for p in method.heads.parameters())


class TestMemory:
    def test_the_last_batch_is_no_state_and_deleted_after_the_task(self, tiny_config: Tiny) -> None:
        experiment, method, task = begun_task_1(tiny_config("efc"), EFC)
        phase, before = begun(method, task), set(method.state_dict())
        (first,) = batches(experiment, 1)
        phase.loss(first)
        assert method._last is first
        assert set(method.state_dict()) == before
        method.end_task(experiment.task_data(1))
        assert method._last is None
        assert not any(name.startswith(("teacher", "rotated")) for name in method.state_dict())

    @pytest.mark.parametrize(("preset", "stop"), [("efc", 4), ("efc", 6), ("efc++", 12), ("efc++", 13)])
    def test_interrupted_it_resumes_to_the_same_bits(
        self, tiny_config: Tiny, tmp_path: Path, preset: str, stop: int
    ) -> None:
        """Between two epochs and inside one: the batch before, which it rehearses, is made again. EFC++ also before
        re-balancing and within it, when old means have already moved."""
        settings = {"scenario.stop_after": 2, "optimisation.next.batch_size": 24, "method.preset": preset}
        config = tiny_config("efc", **settings)
        start(config, tmp_path / "whole")
        experiment, steps = Experiment(config), []
        folder = tmp_path / "stopped"
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")

        def listen(event: Event) -> None:
            if isinstance(event, Step) and event.task == 1:
                steps.append(event)
                if len(steps) == stop:  # of 4 an epoch
                    signal.raise_signal(signal.SIGTERM)

        with pytest.raises(Interrupted):
            experiment.run(folder, (listen,))
        resume(folder)
        ours, _ = container.read(folder / "model.safetensors")
        theirs, _ = container.read(tmp_path / "whole" / "model.safetensors")
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), name

    def test_bytes_per_class(self, tiny_config: Tiny) -> None:
        """D + D(D+1)/2 floats: 131 840 in 512 dimensions."""
        assert Experiment(tiny_config("efc")).method.bytes_per_class() == 4 * (32 + 32 * 33 // 2)


@pytest.mark.parametrize("settings", [{}, {"method.rotation": False, "method.stats_transform": "test"}, REBALANCED])
def test_runs_and_learns(tiny_config: Tiny, tmp_path: Path, settings: dict[str, Any]) -> None:
    longer = {f"optimisation.{stage}.epochs": 15 for stage in ("first", "next")} | {"optimisation.next.lr": 0.001}
    summary = start(tiny_config("efc", **longer, **settings), tmp_path / "run")
    assert summary.a_last > 45


def test_rebalancing_moves_old_means_once_and_trains_the_heads_alone(tiny_config: Tiny) -> None:
    experiment, method, task = begun_task_1(tiny_config("efc", **{"method.preset": "efc++"}), EFC)
    train, rebalance = method.phases(task)
    assert (train.stage.epochs, rebalance.stage.epochs) == (3, 2)
    assert rebalance.modules == {"heads": method.heads}
    with torch.no_grad():
        for weight in method.backbone.parameters():
            weight.mul_(1.1)
    data, before = experiment.task_data(1), method.memory.means.clone()
    expected = method._followed(*method._statistics(data)).means
    assert rebalance.on_epoch_start is not None
    rebalance.on_epoch_start(0, data)
    moved = method.memory.means.clone()
    torch.testing.assert_close(moved, expected.float())
    assert not torch.equal(moved, before)
    rebalance.on_epoch_start(1, data)
    method.end_task(data)
    assert torch.equal(method.memory.means[: len(moved)], moved)


def test_the_feature_matrix_is_of_full_batches_as_loaded(tiny_config: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Task 0 has 80 images, loaded 12 at a time for their rotations to make 48: six full batches, then one of 48."""
    rows = []
    monkeypatch.setattr(
        "gatf.methods.efc.feature_matrix", lambda features, weight: rows.append(len(features)) or torch.eye(32)
    )
    experiment = Experiment(tiny_config("efc"))
    for task in range(2):
        experiment.method.begin_task(experiment.task_info(task))
        experiment.method.end_task(experiment.task_data(task))
    assert rows == [72, 48]
