"""PASS, by the checks of its specification."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gatf.config import RunConfig, load_config
from gatf.data.augment import four_rotations, rotation_labels_class_major
from gatf.data.loader import Batch, TaskInfo
from gatf.experiment import Experiment, start
from gatf.methods.pass_ import PASS, NoisyPrototypes, PASSConfig, class_variances, frobenius_distance, prototype_noise
from gatf.settings import StageConfig
from gatf.training.optim import rate_factor

from .conftest import begun_task_1

Tiny = Callable[..., RunConfig]

TWO_CLASSES = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
LABELS = torch.tensor([0, 0, 1, 1])


def at_task_1(config: RunConfig) -> tuple[PASS, TaskInfo, Batch]:
    """A PASS about to take its first step of task 1, with made-up prototypes of task 0."""
    experiment, method, task = begun_task_1(config, PASS)
    method.train()
    method.teacher.eval()
    return method, task, next(iter(experiment.task_data(1).batches("train", batch_size=12)))


def learnt(rule: str, features: Tensor = TWO_CLASSES) -> NoisyPrototypes:
    prototypes = NoisyPrototypes(2)
    prototypes.learn(features, LABELS, new=2, rule=rule)
    return prototypes


def test_prototype_noise_has_the_given_radius() -> None:
    prototypes = torch.arange(4.0, dtype=torch.float64).repeat_interleave(25_000).view(4, 25_000)
    noisy = prototype_noise(prototypes, 0.5, torch.Generator().manual_seed(0))
    assert noisy.dtype == torch.float64
    residual = noisy - prototypes
    assert residual.mean() == pytest.approx(0.0, abs=0.01)
    assert residual.std() == pytest.approx(0.5, rel=0.02)
    assert torch.equal(noisy, prototype_noise(prototypes, 0.5, torch.Generator().manual_seed(0)))


class TestRadius:
    def test_of_task_0(self) -> None:
        """trace/D is 1 and 4, r = √2.5."""
        prototypes = learnt("first")
        assert prototypes.squared_radius.sqrt().item() == pytest.approx(1.5811, abs=1e-4)
        assert torch.equal(prototypes.means, torch.tensor([[1.0, 0.0], [0.0, 2.0]]))

    def test_of_the_imagenet_release(self) -> None:
        """Population deviations 1, 0, 0, 2: mean 0.75."""
        assert learnt("deviation").squared_radius.sqrt().item() == pytest.approx(0.75)

    def test_stays_after_task_0(self) -> None:
        for rule in ("first", "deviation"):
            prototypes = learnt(rule)
            before = prototypes.squared_radius.clone()
            prototypes.learn(100 * TWO_CLASSES, LABELS, new=2, rule=rule)
            assert torch.equal(prototypes.squared_radius, before)
            assert len(prototypes.means) == 4

    def test_running(self) -> None:
        """r₀² = 2.5 over two classes, two new ones with trace/D of 1: r₁² = (2·2.5 + 2)/4 = 1.75."""
        prototypes = learnt("running")
        unit = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
        prototypes.learn(unit, LABELS, new=2, rule="running")
        assert prototypes.squared_radius.item() == pytest.approx(1.75)

    def test_of_a_class_with_one_image(self) -> None:
        variances = class_variances(torch.tensor([[1.0, 5.0]]), torch.tensor([0]), classes=1)
        assert torch.equal(variances, torch.zeros(1, 2, dtype=torch.float64))

    def test_variances_are_those_of_torch(self) -> None:
        features = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(30) % 3
        expected = torch.stack([features[labels == c].double().var(0) for c in range(3)])
        torch.testing.assert_close(class_variances(features, labels, classes=3), expected)


@pytest.mark.parametrize(("recipe", "dropped"), [("cifar100", False), ("tinyimagenet", True), ("imagenet100", True)])
@pytest.mark.parametrize("tasks", ["t10", "t20"])
def test_incomplete_batches_are_left_out_where_the_release_does(recipe: str, tasks: str, dropped: bool) -> None:
    stages = load_config(f"{recipe}-{tasks}", method="pass").optimisation
    assert (stages.first.drop_last, stages.next.drop_last) == (dropped, dropped)


def terms_of(method: PASS, task: TaskInfo, batch: Batch) -> dict[str, Tensor]:
    (phase,) = method.phases(task)
    return phase.loss(batch)


class TestLoss:
    def test_prototypes_never_train_the_backbone(self, tiny_config: Tiny) -> None:
        method, task, batch = at_task_1(tiny_config("pass"))
        term = terms_of(method, task, batch)["prototype"]
        gradients = torch.autograd.grad(term, list(method.backbone.parameters()), allow_unused=True, retain_graph=True)
        assert all(gradient is None for gradient in gradients)
        assert all(gradient.abs().max() > 0 for gradient in torch.autograd.grad(term, list(method.heads.parameters())))

    def test_without_its_terms_it_is_finetuning_with_one_softmax(self, tiny_config: Tiny) -> None:
        off = {"prototype": 0, "distill": 0, "rotation": False, "temperature": 1.0}
        method, task, batch = at_task_1(tiny_config("pass", **{f"method.{name}": value for name, value in off.items()}))
        method.eval()
        terms = terms_of(method, task, batch)
        assert set(terms) == {"ce"}
        logits = method.heads(method.backbone(batch.images))
        assert logits.shape[1] == 4  # two classes a task, global
        torch.testing.assert_close(terms["ce"], cross_entropy(logits, batch.labels))

    def test_distillation_is_zero_with_a_finite_gradient_where_nothing_moved(self, tiny_config: Tiny) -> None:
        method, task, batch = at_task_1(tiny_config("pass"))
        method.teacher = deepcopy(method.backbone)  # to the last bit, which folded batch-norm is not
        method.eval()
        term = terms_of(method, task, batch)["distill"]
        assert term.item() == 0
        gradients = torch.autograd.grad(term, list(method.backbone.parameters()))
        assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)

    def test_a_doubled_batch_distils_by_root_two(self, tiny_config: Tiny) -> None:
        method, task, batch = at_task_1(tiny_config("pass"))
        with torch.no_grad():
            for parameter in method.backbone.parameters():
                parameter.mul_(1.1)
        method.eval()

        def terms(times: int) -> dict[str, Tensor]:
            images, labels = batch.images.repeat(times, 1, 1, 1), batch.labels.repeat(times)
            return terms_of(method, task, Batch(images, labels, 0, 0, torch.Generator().manual_seed(0)))

        once, twice = terms(1), terms(2)
        assert once["distill"].item() > 0
        torch.testing.assert_close(twice["distill"], 2**0.5 * once["distill"])
        torch.testing.assert_close(twice["ce"], once["ce"])

    def test_frobenius_distance(self) -> None:
        assert frobenius_distance(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.zeros(2, 2)).item() == 5

    def test_temperature_multiplies_logits_by_ten(self, tiny_config: Tiny) -> None:
        method, _, _ = at_task_1(tiny_config("pass"))
        features, labels = torch.rand(6, method.feature_dim), torch.arange(6)
        expected = cross_entropy(10 * method.heads(features), labels)
        torch.testing.assert_close(method._cross_entropy(features, labels), expected)

    def test_prototypes_a_step(self, tiny_config: Tiny) -> None:
        """12 images are loaded for 48 seen."""
        method, _, batch = at_task_1(tiny_config("pass"))
        counts: list[int] = []
        sample = method.prototypes.sample

        def counting(count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
            counts.append(count)
            return sample(count, draws)

        method.prototypes.sample = counting  # type: ignore[method-assign]
        terms_of(method, TaskInfo(index=1, old=4, new=2, images=80), batch)
        assert counts == [12]


class TestRotations:
    def test_labels_are_class_major(self) -> None:
        """Image i of class y has labels 4y..4y+3, at its four places in the batch."""
        labels = rotation_labels_class_major(torch.tensor([0, 7]))
        assert labels.view(4, 2)[:, 0].tolist() == [0, 1, 2, 3]
        assert labels.view(4, 2)[:, 1].tolist() == [28, 29, 30, 31]
        assert len(four_rotations(torch.rand(2, 1, 4, 4))) == 8

    def test_outputs_of_turned_classes_never_decide(self, tiny_config: Tiny) -> None:
        method, _, batch = at_task_1(tiny_config("pass"))
        method.eval()
        with torch.no_grad():
            before = method.scores(batch.images)
            for head in method.heads.layers:
                assert isinstance(head, nn.Linear)
                for turn in (1, 2, 3):
                    head.bias[turn::4] += 1000
            assert torch.equal(method.scores(batch.images), before)
        assert before.shape == (12, 4)


class TestPrototypes:
    def test_statistics_of_the_draws(self) -> None:
        """Per dimension the mean within 5r/√m of μ, the deviation within 8 % of r; classes uniform."""
        prototypes = NoisyPrototypes(6)
        prototypes.means = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
        prototypes.squared_radius = torch.tensor(1.5**2)
        drawn, labels = prototypes.sample(6000, torch.Generator().manual_seed(0))
        assert (torch.bincount(labels) - 2000).abs().max() < 5 * (6000 * 2 / 9) ** 0.5
        for c in range(3):
            own = drawn[labels == c]
            assert (own.mean(0) - prototypes.means[c]).abs().max() < 5 * 1.5 / len(own) ** 0.5
            assert (own.std(0) / 1.5 - 1).abs().max() < 0.08

    def test_augmented_view_of_the_release(self, tiny_config: Tiny) -> None:
        plain, _, _ = at_task_1(tiny_config("pass"))
        augmented, _, _ = at_task_1(tiny_config("pass", **{"method.proto_aug_view": True}))
        assert augmented.prototypes.means.shape == plain.prototypes.means.shape
        assert not torch.equal(augmented.prototypes.means, plain.prototypes.means)


def trace(milestones: list[float]) -> list[int]:
    """Epochs at each rate, of 101."""
    stage = StageConfig(epochs=101, schedule="steps", milestones=tuple(milestones))
    factors = [round(rate_factor(stage, epoch), 6) for epoch in range(101)]
    return [factors.count(factor) for factor in (1.0, 0.1, 0.01)]


def test_learning_rates() -> None:
    """×0.1 every 45 epochs, stepped at the end of an epoch; at its start, as in the release, one epoch earlier."""
    assert trace(PASS.defaults["optimisation"]["first"]["milestones"]) == [45, 45, 11]
    assert trace([0.4357, 0.8812]) == [44, 45, 12]


def test_bytes_per_class(tiny_config: Tiny) -> None:
    """512 + 2052 floats in 512 dimensions; here 32 + 4·33."""
    method = Experiment(tiny_config("pass")).method
    assert method.bytes_per_class() == 4 * (32 + 4 * 33)


def test_config_defaults() -> None:
    config = PASSConfig()
    assert (config.prototype, config.distill, config.temperature, config.radius) == (10, 10, 0.1, "first")


def test_runs_and_learns(tiny_config: Tiny, tmp_path: Path) -> None:
    longer: dict[str, Any] = {f"optimisation.{stage}.epochs": 30 for stage in ("first", "next")}
    summary = start(tiny_config("pass", **longer), tmp_path / "run")
    assert summary.a_last > 50
