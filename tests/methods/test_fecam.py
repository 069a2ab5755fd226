"""FeCAM, by the checks of its specification."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gatf.config import RunConfig
from gatf.errors import UserError
from gatf.experiment import Experiment, start
from gatf.geometry import moments, spd
from gatf.geometry.readout import nearest_mean_distances
from gatf.methods.fecam import FeCAM, FeCAMConfig, TukeyMemory, shrink, tukey
from gatf.methods.parts.extraction import class_means

Tiny = Callable[..., RunConfig]

BY_HAND = torch.tensor([[4.0, 1.0], [1.0, 2.0]], dtype=torch.float64)


def memory_of(features: Tensor, labels: Tensor, **settings: Any) -> TukeyMemory:
    """What FeCAM stores of these features."""
    config = FeCAMConfig(**settings)
    classes = int(labels.max()) + 1
    memory = TukeyMemory(features.shape[1], config)
    covs = moments.class_moments(tukey(features, config.tukey), labels, classes=classes).covariance()
    spreads = {"identity": covs.new_zeros(classes, 0), "diag": covs.diagonal(dim1=-2, dim2=-1)}
    memory.add(class_means(features, labels, classes=classes), spreads.get(config.covariance, spd.pack(covs)))
    return memory


def clouds() -> tuple[Tensor, Tensor]:
    """Non-negative features of 4 classes in 6 dimensions, 30 each."""
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 4
    centres = 2 * torch.rand(4, 6, generator=draws, dtype=torch.float64)
    noise = torch.randn(120, 6, generator=draws, dtype=torch.float64)
    return (centres[labels] + 0.7 * noise).clamp_min(0), labels


class TestShrinkage:
    def test_by_hand(self) -> None:
        assert shrink(BY_HAND, 1, 1).tolist() == [[7, 2], [2, 5]]
        assert shrink(BY_HAND, 1, 1, passes=2).tolist() == [[13, 4], [4, 11]]

    def test_correlations_by_hand(self) -> None:
        """2/√35 and 4/√143."""
        assert spd.correlation(shrink(BY_HAND, 1, 1))[0, 1].item() == pytest.approx(0.33806, abs=1e-5)
        assert spd.correlation(shrink(BY_HAND, 1, 1, passes=2))[0, 1].item() == pytest.approx(0.33450, abs=1e-5)

    @pytest.mark.parametrize("mask_zeros", [False, True])
    def test_two_passes_are_one_with_other_weights(self, mask_zeros: bool) -> None:
        features, labels = clouds()
        covs = moments.class_moments(features, labels, classes=4).covariance()
        twice = shrink(covs, 0.7, 0.3, passes=2, mask_zeros=mask_zeros)
        once = shrink(covs, 1.7**2 - 1, 1.3**2 - 1, mask_zeros=mask_zeros)
        torch.testing.assert_close(twice, once)

    def test_dead_features_break_the_release_and_not_the_default(self) -> None:
        """Live block [[1,.9],[.9,1]], two dead channels: eigenvalues −0.45, −0.35, 0.39, 8.41 with zeros masked."""
        cov = torch.zeros(4, 4, dtype=torch.float64)
        cov[:2, :2] = torch.tensor([[1.0, 0.9], [0.9, 1.0]])
        released = torch.linalg.eigvalsh(shrink(cov, 1, 1, passes=2, mask_zeros=True))
        assert released.tolist() == pytest.approx([-0.45, -0.35, 0.39, 8.41], abs=0.01)
        assert torch.linalg.eigvalsh(shrink(cov, 1, 1, passes=2)).min() > 0


class TestDistance:
    @pytest.mark.parametrize(("passes", "expected"), [(2, 1.14184), (1, 1.14750)])
    def test_by_hand(self, passes: int, expected: float) -> None:
        """x = (1,0), μ = (9,16), β = ½: u = (1,0), v = (0.6,0.8)."""
        memory = TukeyMemory(2, FeCAMConfig(shrink_passes=passes))
        memory.add(torch.tensor([[9.0, 16.0]]), spd.pack(BY_HAND[None]))
        assert memory.distances(torch.tensor([[1.0, 0.0]])).item() == pytest.approx(expected, abs=1e-5)

    def test_euclidean_by_hand(self) -> None:
        memory = TukeyMemory(2, FeCAMConfig(covariance="identity"))
        memory.add(torch.tensor([[9.0, 16.0]]), torch.zeros(1, 0))
        assert memory.distances(torch.tensor([[1.0, 0.0]])).item() == pytest.approx(0.8)

    def test_does_not_depend_on_the_scale_of_features(self) -> None:
        features, labels = clouds()
        plain, scaled = memory_of(features, labels), memory_of(37 * features, labels)
        expected = plain.distances(features)
        torch.testing.assert_close(scaled.distances(37 * features), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(plain.distances(0.01 * features), expected)

    @pytest.mark.parametrize("settings", [{"shrink_diagonal": 1e9}, {"covariance": "identity"}])
    @pytest.mark.parametrize("power", [0.5, 1.0])
    def test_without_covariances_it_is_cosine_nearest_mean(self, settings: dict[str, Any], power: float) -> None:
        features, labels = clouds()
        memory = memory_of(features, labels, tukey=power, **settings)
        means = class_means(features, labels, classes=4)
        cosine = nearest_mean_distances(features**power, means**power, normalise=True)
        assert torch.equal(memory.distances(features).argmin(1), cosine.argmin(1))

    def test_is_never_negative_even_where_the_release_is_indefinite(self) -> None:
        memory = TukeyMemory(4, FeCAMConfig(mask_zeros=True))
        cov = torch.zeros(1, 4, 4, dtype=torch.float64)
        cov[0, :2, :2] = torch.tensor([[1.0, 0.9], [0.9, 1.0]])
        memory.add(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), spd.pack(cov))
        distances = memory.distances(torch.rand(50, 4, generator=torch.Generator().manual_seed(0)))
        assert distances.min() >= 0
        assert memory.build().repaired is not None
        assert bool(memory.build().repaired.all())  # type: ignore[union-attr]

    def test_the_transform_of_the_mean_is_used(self) -> None:
        """Features {0, 4}: the centre is √2, not the mean 1 of the roots."""
        features = torch.tensor([[0.0, 1.0], [4.0, 1.0]], dtype=torch.float64)
        memory = memory_of(features, torch.zeros(2, dtype=torch.long))
        raw = memory.build().centres[0]
        assert (raw[0] / raw[1]).item() == pytest.approx(2**0.5)

    def test_diag_is_the_normalised_diagonal(self) -> None:
        features, labels = clouds()
        memory = memory_of(features, labels, covariance="diag")
        matrices = memory.matrices(memory.spreads)
        covs = moments.class_moments(tukey(features, 0.5), labels, classes=4).covariance()
        diagonals = shrink(covs, 1, 1, passes=2).diagonal(dim1=-2, dim2=-1)
        expected = torch.diag_embed(diagonals / diagonals.norm(dim=1, keepdim=True))
        torch.testing.assert_close(matrices, expected, atol=1e-6, rtol=1e-6)


def test_tukey() -> None:
    features = torch.tensor([0.0, 4.0, 9.0])
    assert tukey(features, 0.5).tolist() == [0, 2, 3]
    assert tukey(features, None) is features
    assert tukey(features, 0.0)[1:].tolist() == pytest.approx([1.386294, 2.197225], abs=1e-5)
    assert tukey(features, 0.0).isfinite().all()


def trained_on(config: RunConfig, tasks: int) -> tuple[Experiment, FeCAM]:
    experiment = Experiment(config)
    method = experiment.method
    assert isinstance(method, FeCAM)
    for task in range(tasks):
        method.begin_task(experiment.task_info(task))
        assert (method.phases(experiment.task_info(task)) == []) == (task > 0)
        method.end_task(experiment.task_data(task))
    return experiment, method.eval()


@pytest.mark.parametrize("covariance", ["per_class", "diag", "identity"])
def test_statistics_do_not_depend_on_when_a_class_comes(tiny_config: Tiny, covariance: str) -> None:
    """The same four classes in one task or in two; the backbone is the same untrained one."""
    fixed = {"scenario.order": list(range(10)), "scenario.stop_after": None, "method.covariance": covariance}
    _, whole = trained_on(tiny_config("fecam", **{**fixed, "scenario.task_sizes": [4, 6]}), 1)
    _, split = trained_on(tiny_config("fecam", **{**fixed, "scenario.task_sizes": [1, 3, 6]}), 2)
    torch.testing.assert_close(whole.memory.means, split.memory.means, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(whole.memory.spreads, split.memory.spreads, atol=1e-6, rtol=1e-6)


def test_the_first_task_is_classified_by_the_head(tiny_config: Tiny) -> None:
    experiment, method = trained_on(tiny_config("fecam"), 1)
    images = next(iter(experiment.task_data(0).batches("test"))).images
    with torch.no_grad():
        assert torch.equal(method.scores(images), method.head(method.backbone(images)))
        _, paper = trained_on(tiny_config("fecam", **{"method.first_task_rule": "maha"}), 1)
        expected = -paper.memory.distances(paper.backbone(images))
        assert torch.equal(paper.scores(images), expected)
    experiment, method = trained_on(tiny_config("fecam"), 2)
    with torch.no_grad():
        assert torch.equal(method.scores(images), -method.memory.distances(method.backbone(images)))


def test_common_covariance_is_a_running_mean(tiny_config: Tiny) -> None:
    """One matrix for all, not shrunk at task 0, then ρΣ + (1 − ρ)·sh(Σ⁽ᵗ⁾) with ρ = 2/4."""
    experiment, method = trained_on(tiny_config("fecam", **{"method.covariance": "common"}), 1)
    first = spd.unpack(method.memory.spreads.double(), method.feature_dim)[0]
    method.begin_task(experiment.task_info(1))
    data = experiment.task_data(1)
    with torch.no_grad():
        batches = data.batches("train", purpose="common covariance")
        features = torch.cat([method.backbone(batch.images) for batch in batches]).double().sqrt()
    method.end_task(data)
    expected = 0.5 * first + 0.5 * shrink(features.T.cov(), 1, 1)
    stored = spd.unpack(method.memory.spreads.double(), method.feature_dim)
    assert len(stored) == 1
    torch.testing.assert_close(stored[0], expected, atol=1e-6, rtol=1e-5)
    assert method.bytes_per_class() == 4 * 32


def test_signed_features_are_refused(tiny_config: Tiny) -> None:
    with pytest.raises(UserError, match=r"bottleneck=null"):
        trained_on(tiny_config("fecam", **{"backbone.bottleneck": 8}), 1)


def test_vit_preset() -> None:
    """Unit features, no Tukey, one shrinkage of the diagonal alone; distances from the mean of unit features."""
    config = FeCAMConfig.model_validate({"name": "fecam", "preset": "vit"})
    assert (config.tukey, config.shrink_off_diagonal, config.shrink_passes, config.unit_features) == (None, 0, 1, True)
    memory = TukeyMemory(2, config)
    memory.add(torch.tensor([[0.5, 0.5]]), spd.pack(torch.eye(2)[None]))
    assert memory.distances(torch.tensor([[3.0, -4.0]])).item() == pytest.approx(0.1**2 + 1.3**2)


def test_a_network_taken_as_it_is(tiny_config: Tiny, learn: Callable[..., Experiment]) -> None:
    """Nothing is trained, and the first task has no head to be reported apart by."""
    config = tiny_config("fecam", **{"method.train_network": False, "method.first_task_rule": "maha"})
    before, after = (
        experiment.method.backbone.state_dict() for experiment in (Experiment(config), learn(config, tasks=2))
    )
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    with pytest.raises(UserError, match="first_task_rule=maha"):
        tiny_config("fecam", **{"method.train_network": False})


def test_bytes_per_class(tiny_config: Tiny) -> None:
    """D + D(D+1)/2 floats: 131 840 in 512 dimensions."""
    assert Experiment(tiny_config("fecam")).method.bytes_per_class() == 4 * (32 + 32 * 33 // 2)
    assert TukeyMemory(512, FeCAMConfig()).bytes_per_class() == 4 * 131_840


@pytest.mark.parametrize("settings", [{}, {"method.covariance": "diag"}, {"method.task0_rotation": True}])
def test_runs_and_learns(tiny_config: Tiny, tmp_path: Path, settings: dict[str, Any]) -> None:
    summary = start(tiny_config("fecam", **settings, **{"optimisation.first.epochs": 12}), tmp_path / "run")
    assert summary.a_last > 50
