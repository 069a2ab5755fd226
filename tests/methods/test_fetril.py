"""FeTrIL, by the checks of its specification."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from gatf.config import RunConfig
from gatf.errors import UserError
from gatf.experiment import Experiment, resume, start
from gatf.geometry.linear_models import fit_svm
from gatf.geometry.readout import nearest_mean_distances
from gatf.io import container
from gatf.io.events import Event, Step
from gatf.methods.fetril import FeTrIL, FeTrILConfig, Imitations, choose_sources, official_stages
from gatf.methods.parts.extraction import class_means
from gatf.training.loop import Interrupted
from gatf.training.optim import rate_factor

Tiny = Callable[..., RunConfig]


def clouds(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features of three new classes (3, 4, 5) of 6, 4 and 9 images, their labels, and means of three old ones."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.tensor([3] * 6 + [4] * 4 + [5] * 9)[torch.randperm(19, generator=draws)]
    features = torch.rand(19, 4, generator=draws, dtype=torch.float64) + labels[:, None]
    return features, labels, 10 * torch.rand(3, 4, generator=draws, dtype=torch.float64)


def with_means(features: Tensor, labels: Tensor, old: Tensor) -> Tensor:
    return torch.cat([old, class_means(features, labels - len(old), classes=3)])


class TestTranslation:
    def test_by_hand(self) -> None:
        """{(2,0),(4,0)} with mean (3,0) moved to (0,5): {(−1,5),(1,5)}."""
        features, labels = torch.tensor([[2.0, 0.0], [4.0, 0.0]]), torch.tensor([1, 1])
        means = torch.tensor([[0.0, 5.0], [3.0, 0.0]])
        pseudo = Imitations.of(features, labels, means, torch.tensor([1]))
        assert torch.equal(pseudo[:], torch.tensor([[-1.0, 5.0], [1.0, 5.0], [2.0, 0.0], [4.0, 0.0]]))
        assert pseudo.labels.tolist() == [0, 0, 1, 1]

    def test_means_are_the_old_ones_and_covariances_their_sources(self) -> None:
        features, labels, old = clouds()
        sources = torch.tensor([5, 3, 5])
        pseudo = Imitations.of(features, labels, with_means(features, labels, old), sources)
        assert torch.bincount(pseudo.labels).tolist() == [9, 6, 9, 6, 4, 9]
        for p, source in enumerate(sources.tolist()):
            own, real = pseudo[:][pseudo.labels == p], features[labels == source]
            torch.testing.assert_close(own.mean(0), old[p], atol=1e-5, rtol=0)
            torch.testing.assert_close(own.T.cov(), real.T.cov(), atol=1e-12, rtol=0)

    def test_new_classes_keep_their_features(self) -> None:
        features, labels, old = clouds()
        pseudo = Imitations.of(features, labels, with_means(features, labels, old), torch.tensor([3, 3, 3]))
        for c in (3, 4, 5):
            torch.testing.assert_close(pseudo[:][pseudo.labels == c], features[labels == c], atol=0, rtol=0)

    def test_nearest_mean_on_them_is_nearest_mean_on_the_stored_means(self) -> None:
        features, labels, old = clouds()
        means = with_means(features, labels, old)
        pseudo = Imitations.of(features, labels, means, torch.tensor([3, 4, 5]))
        again = class_means(pseudo[:], pseudo.labels, classes=6)
        torch.testing.assert_close(nearest_mean_distances(features, again), nearest_mean_distances(features, means))


class TestSources:
    def test_angle_and_distance_differ_as_they_should(self) -> None:
        """μ = (1,0), candidates (10,0) and (1,1): by angle the first (1 against 0.707), by distance the second."""
        old, new = torch.tensor([[1.0, 0.0]]), torch.tensor([[10.0, 0.0], [1.0, 1.0]])
        assert choose_sources(old, new, similarity="cosine").tolist() == [0]
        assert choose_sources(old, new, similarity="euclidean").tolist() == [1]

    def test_a_tie_goes_to_the_first(self) -> None:
        old, new = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [2.0, 0.0], [5.0, 0.0]])
        assert choose_sources(old, new, similarity="cosine").tolist() == [1]

    def test_later_ranks(self) -> None:
        old, new = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0]])
        distributed = [choose_sources(old, new, similarity="cosine", rank=k).item() for k in (1, 2, 3, 9)]
        assert distributed == [1, 0, 2, 2]

    def test_a_dead_mean_is_no_error(self) -> None:
        assert choose_sources(torch.zeros(1, 2), torch.ones(2, 2), similarity="cosine").tolist() == [0]


def test_the_head_of_task_0_starts_as_pycils(tiny_config: Tiny) -> None:
    """Weights uniform within ±√(3/D), no bias; the authors' own second stage has a plain linear layer."""
    experiment = Experiment(tiny_config("fetril"))
    method = experiment.method
    method.begin_task(experiment.task_info(0))
    bound = (3 / method.feature_dim) ** 0.5
    assert 0.9 * bound < method.head.weight.abs().max() <= bound
    assert torch.equal(method.head.bias, torch.zeros(2))


def problem() -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(40, 3, generator=draws, dtype=torch.float64)
    return features, (features @ torch.randn(3, 3, generator=draws, dtype=torch.float64)).argmax(1)


class TestSvm:
    def test_without_the_penalty_on_the_bias_it_is_another_problem(self) -> None:
        """Minimising ½‖w‖² + Σ max(0, 1 − y(wᵀx + b))² for one class: with ½b² it is ours, without it is not."""
        features, labels = problem()
        signs = (2 * (labels == 0) - 1).double()
        weight, bias = fit_svm(features, labels, classes=3, tolerance=1e-12)

        def minimiser(penalise_bias: float) -> Tensor:
            free = torch.zeros(4, dtype=torch.float64, requires_grad=True)  # w, b
            lbfgs = torch.optim.LBFGS([free], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16)

            def objective() -> Tensor:
                lbfgs.zero_grad()
                hinge = (1 - signs * (features @ free[:3] + free[3])).clamp_min(0)
                value = 0.5 * (free[:3].square().sum() + penalise_bias * free[3] ** 2) + hinge.square().sum()
                value.backward()
                return value

            lbfgs.step(objective)
            return free.detach()

        ours = torch.cat([weight[0], bias[:1]])
        torch.testing.assert_close(minimiser(1.0), ours, atol=1e-6, rtol=1e-6)
        assert (minimiser(0.0) - ours).abs().max() > 1e-3

    def test_two_classes_have_opposite_rows(self) -> None:
        features, labels = problem()
        weight, bias = fit_svm(features, (labels == 0).long(), classes=2, tolerance=1e-12)
        assert torch.equal(weight[0], -weight[1])
        assert bias[0] == -bias[1]
        three, _ = fit_svm(features, labels, classes=3, tolerance=1e-12)
        torch.testing.assert_close(weight[1], three[0], atol=1e-6, rtol=1e-6)

    def test_one_class_alone(self) -> None:
        weight, bias = fit_svm(torch.rand(5, 3), torch.zeros(5, dtype=torch.long), classes=1)
        assert weight.isfinite().all()
        assert bias.isfinite().all()

    def test_translates_of_one_cloud_are_learnt_exactly(self) -> None:
        """Where the old classes really are translates, the classifier is that of the real features."""
        draws = torch.Generator().manual_seed(3)
        cloud = torch.rand(12, 4, generator=draws, dtype=torch.float64)
        places = 3 * torch.rand(4, 4, generator=draws, dtype=torch.float64)
        real, labels = (cloud + places[:, None]).flatten(0, 1), torch.arange(4).repeat_interleave(12)
        means = class_means(real, labels, classes=4)
        new = labels >= 2
        sources = 2 + choose_sources(means[:2], means[2:], similarity="cosine")
        pseudo = Imitations.of(real[new], labels[new], means, sources)
        ours = fit_svm(torch.nn.functional.normalize(pseudo[:], dim=1), pseudo.labels, classes=4, tolerance=1e-10)
        theirs = fit_svm(torch.nn.functional.normalize(real, dim=1), labels, classes=4, tolerance=1e-10)
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, atol=1e-7, rtol=1e-7)


def run_tasks(config: RunConfig, tasks: int = 2) -> tuple[Experiment, list[Tensor]]:
    """Tasks without training the network; features of fixed images after each."""
    experiment = Experiment(config)
    method = experiment.method
    assert isinstance(method, FeTrIL)
    images = next(iter(experiment.task_data(0).batches("test"))).images
    seen = []
    for task in range(tasks):
        method.train()
        method.begin_task(experiment.task_info(task))
        assert (method.phases(experiment.task_info(task)) == []) == (task > 0)
        method.eval()
        method.end_task(experiment.task_data(task))
        with torch.no_grad():
            seen.append(method.backbone(images))
    return experiment, seen


def test_the_backbone_is_bit_identical_after_task_0(tiny_config: Tiny) -> None:
    experiment, seen = run_tasks(tiny_config("fetril"), 3)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[1], seen[2])
    assert "head" not in dict(experiment.method.named_children())


def test_fc_starts_from_the_trained_head_and_keeps_old_rows(tiny_config: Tiny) -> None:
    """With a rate of nearly zero the old rows are those of task 0, the new ones within ±√(3/D), their bias zero."""
    fc = {"method.classifier": "fc", "method.fc_lr": 1e-12, "method.fc_epochs": 1, "method.fc_weight_decay": 0}
    experiment = Experiment(tiny_config("fetril", **fc))
    method = experiment.method
    assert isinstance(method, FeTrIL)
    method.begin_task(experiment.task_info(0))
    trained = method.head.weight.detach().clone()
    method.end_task(experiment.task_data(0))
    assert torch.equal(method.memory.weight, trained)
    method.begin_task(experiment.task_info(1))
    method.end_task(experiment.task_data(1))
    torch.testing.assert_close(method.memory.weight[:2], trained)
    assert method.memory.weight[2:].abs().max() <= (3 / method.feature_dim) ** 0.5
    assert method.memory.bias[2:].abs().max() < 1e-6
    assert method.bytes_per_class() == 4 * (2 * 32 + 1)


def test_bytes_per_class(tiny_config: Tiny) -> None:
    """One mean: 2 KiB in 512 dimensions."""
    assert Experiment(tiny_config("fetril")).method.bytes_per_class() == 4 * 32


@pytest.mark.parametrize("classifier", ["svc", "fc"])
@pytest.mark.parametrize("rotation", [False, True])
def test_runs_and_learns(tiny_config: Tiny, tmp_path: Path, classifier: str, rotation: bool) -> None:
    settings: dict[str, Any] = {"method.classifier": classifier, "method.task0_rotation": rotation}
    settings["optimisation.first.epochs"] = 12
    summary = start(tiny_config("fetril", **settings), tmp_path / "run")
    assert summary.a_last > 50


class TestOfficialRecipe:
    """The authors' two stages of task 0."""

    SMALL: ClassVar[dict[str, Any]] = {
        "method.recipe": "official", "method.official_epochs": (3, 5), "backbone.name": "resnet18", "backbone.width": 4,
        "data.augment": ["crop:1", "augmix:5,7"], "scenario.stop_after": 2, "checkpoint_every": None,
    }  # fmt: skip

    def test_published_stages(self) -> None:
        first, second = official_stages(FeTrILConfig())
        assert (first.epochs, first.batch_size, first.lr, first.weight_decay) == (90, 128, 0.1, 1e-4)
        assert (second.epochs, second.batch_size, second.lr, second.weight_decay) == (290, 64, 0.01, 1e-4)
        assert (first.lookahead, second.lookahead, second.lookahead_rate) == (None, 5, 0.8)
        for stage in (first, second):
            assert (stage.optimiser, stage.momentum, stage.clip, stage.warmup) == ("sgd", 0.9, None, 0.0)
            assert not stage.drop_last

    def test_learning_rates(self) -> None:
        first, second = official_stages(FeTrILConfig())
        rates = [0.1 * rate_factor(first, epoch) for epoch in (0, 29, 30, 59, 60, 89)]
        assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
        assert [epoch for epoch in range(290) if rate_factor(second, epoch) < 1] == [80, 120]
        _, stepped = official_stages(FeTrILConfig(decay="step"))
        rates = [0.01 * rate_factor(stepped, epoch) for epoch in (79, 80, 119, 120, 289)]
        assert rates == pytest.approx([0.01, 0.001, 0.001, 0.0001, 0.0001])

    def test_the_last_relu_is_out_in_the_first_stage_alone(self, tiny_config: Tiny, train: Any) -> None:
        experiment = Experiment(tiny_config("fetril", **self.SMALL))
        method, task, data = experiment.method, experiment.task_info(0), experiment.task_data(0)
        assert isinstance(method, FeTrIL)
        method.begin_task(task)
        fresh = method.head.weight.detach().clone()
        images = next(iter(data.batches("test"))).images
        first, second = method.phases(task)
        train(experiment, first, data)
        signed = method.eval().backbone(images)
        assert (signed < 0).any()
        assert torch.equal(method.head.weight, fresh)  # the second stage begins with a fresh linear head
        scale = method.cosine_head.scale.detach().clone()
        assert scale != 1
        train(experiment, second, data)
        assert (method.eval().backbone(images) >= 0).all()
        assert method.cosine_head.scale == scale
        assert not torch.equal(method.head.weight, fresh)
        method.end_task(data)
        assert not any("head" in name for name in method.state_dict())

    @pytest.mark.parametrize("steps", [4, 10])
    def test_stopped_in_either_stage_it_resumes_to_the_same_bits(
        self, tiny_config: Tiny, tmp_path: Path, steps: int
    ) -> None:
        """80 images: 3 steps of the first stage, then 10 of the second; Lookahead goes back after 5 and 10 of them."""
        config = tiny_config("fetril", **self.SMALL)
        start(config, tmp_path / "whole")
        taken = []

        def stop_later(event: Event) -> None:
            taken.extend([event.phase] if isinstance(event, Step) else [])
            if isinstance(event, Step) and len(taken) == steps:
                signal.raise_signal(signal.SIGTERM)

        with pytest.raises(Interrupted):
            start(config, tmp_path / "stopped", (stop_later,))
        assert taken == (["cosine"] * 3 + ["train"] * 10)[:steps]
        resume(tmp_path / "stopped")
        ours, _ = container.read(tmp_path / "stopped" / "model.safetensors")
        theirs, _ = container.read(tmp_path / "whole" / "model.safetensors")
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), name

    def test_needs_a_resnet(self, tiny_config: Tiny) -> None:
        with pytest.raises(UserError, match=r"backbone.name=resnet18"):
            Experiment(tiny_config("fetril", **{"method.recipe": "official"}))


def test_small_training_windows_and_test_crops(tiny_config: Tiny) -> None:
    """The released TinyImageNet pipeline in small: windows to train on, a larger centre for statistics and tests."""
    settings: dict[str, Any] = {"data.augment": ["pad:1", "window:5"], "data.test_crop": 6}
    settings |= {"backbone.name": "resnet18", "backbone.width": 4}
    experiment = Experiment(tiny_config("fetril", **settings))
    sizes = []
    experiment.method.backbone.register_forward_pre_hook(lambda module, inputs: sizes.append(inputs[0].shape[-2:]))
    data = experiment.task_data(0)
    experiment.method.begin_task(data.info)
    (phase,) = experiment.method.phases(data.info)
    phase.loss(next(iter(data.batches("train", batch_size=8))))
    experiment.method.end_task(data)
    experiment.test_scores(0)
    assert sizes == [(5, 5), (6, 6), (6, 6)]
    with pytest.raises(UserError, match=r"data.test_crop is 9, but the images have 8 × 8 pixels"):
        Experiment(tiny_config("fetril", **{"data.test_crop": 9}))
