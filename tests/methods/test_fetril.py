"""FeTrIL, by the checks of its specification."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gatf.config import RunConfig
from gatf.errors import UserError
from gatf.experiment import Experiment, start
from gatf.geometry.linear_models import fit_svm
from gatf.geometry.readout import nearest_mean_distances
from gatf.methods.fetril import FeTrIL, choose_sources, imitations
from gatf.methods.parts.extraction import class_means

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
        pseudo, targets = imitations(features, labels, means, torch.tensor([1]))
        assert torch.equal(pseudo, torch.tensor([[-1.0, 5.0], [1.0, 5.0], [2.0, 0.0], [4.0, 0.0]]))
        assert targets.tolist() == [0, 0, 1, 1]

    def test_means_are_the_old_ones_and_covariances_their_sources(self) -> None:
        features, labels, old = clouds()
        sources = torch.tensor([5, 3, 5])
        pseudo, targets = imitations(features, labels, with_means(features, labels, old), sources)
        assert torch.bincount(targets).tolist() == [9, 6, 9, 6, 4, 9]
        for p, source in enumerate(sources.tolist()):
            own, real = pseudo[targets == p], features[labels == source]
            torch.testing.assert_close(own.mean(0), old[p], atol=1e-5, rtol=0)
            torch.testing.assert_close(own.T.cov(), real.T.cov(), atol=1e-12, rtol=0)

    def test_new_classes_keep_their_features(self) -> None:
        features, labels, old = clouds()
        pseudo, targets = imitations(features, labels, with_means(features, labels, old), torch.tensor([3, 3, 3]))
        for c in (3, 4, 5):
            torch.testing.assert_close(pseudo[targets == c], features[labels == c], atol=0, rtol=0)

    def test_nearest_mean_on_them_is_nearest_mean_on_the_stored_means(self) -> None:
        features, labels, old = clouds()
        means = with_means(features, labels, old)
        pseudo, targets = imitations(features, labels, means, torch.tensor([3, 4, 5]))
        again = class_means(pseudo, targets, classes=6)
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
        pseudo, targets = imitations(real[new], labels[new], means, sources)
        ours = fit_svm(torch.nn.functional.normalize(pseudo, dim=1), targets, classes=4, tolerance=1e-10)
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


def test_bytes_per_class(tiny_config: Tiny) -> None:
    """One mean: 2 KiB in 512 dimensions."""
    assert Experiment(tiny_config("fetril")).method.bytes_per_class() == 4 * 32


@pytest.mark.parametrize("rotation", [False, True])
def test_runs_and_learns(tiny_config: Tiny, tmp_path: Path, rotation: bool) -> None:
    settings: dict[str, Any] = {"method.task0_rotation": rotation}
    settings["optimisation.first.epochs"] = 12
    summary = start(tiny_config("fetril", **settings), tmp_path / "run")
    assert summary.a_last > 50


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
