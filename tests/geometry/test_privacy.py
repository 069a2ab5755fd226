import math

import pytest
import torch

from gatf.geometry.moments import Moments, class_moments
from gatf.geometry.privacy import clipped, noise_multiplier, noisy, sensitivity


def test_the_noise_is_calibrated_as_published() -> None:
    """The exact condition of Balle & Wang holds with equality; the classical formula asks for more."""

    def phi(x: float) -> float:
        return (1 + math.erf(x / math.sqrt(2))) / 2

    for epsilon, delta in ((0.5, 1e-5), (1.0, 1e-5), (8.0, 1e-6)):
        s = noise_multiplier(epsilon, delta)
        found = phi(1 / (2 * s) - epsilon * s) - math.exp(epsilon) * phi(-1 / (2 * s) - epsilon * s)
        assert found == pytest.approx(delta, rel=1e-3)
        if epsilon <= 1:
            assert s < math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    assert noise_multiplier(1.0, 1e-5) == pytest.approx(3.7304, abs=1e-3)


def test_no_image_moves_the_sums_by_more_than_the_sensitivity() -> None:
    """The worst replacements: a feature by its opposite, and by one at a right angle."""
    norm, along, across = 2.0, torch.tensor([2.0, 0.0]), torch.tensor([0.0, 2.0])

    def sums(*features: torch.Tensor) -> torch.Tensor:
        z = torch.stack(features)
        return torch.cat([z.sum(0), (z.T @ z / norm).flatten()])

    for one in (-along, across, 0 * along):
        for rows in (1, 2):
            moved = (sums(*[along] * rows) - sums(*[one] * rows)).norm()
            assert moved <= sensitivity(norm, rows) + 1e-6


def test_clipping_scales_long_features_only() -> None:
    features = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert torch.allclose(clipped(features, 1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


def test_noisy_moments_are_near_for_many_images_and_never_twice_the_same() -> None:
    draw = torch.Generator().manual_seed(0)
    features = clipped(0.3 * torch.randn(200_000, 3, generator=draw) + torch.tensor([0.2, 0.0, -0.1]), 1.0)
    labels = torch.arange(len(features)) % 2
    true = class_moments(features, labels, classes=2)
    first, second = (noisy(true, 1.0, 1e-5, 1.0) for _ in range(2))
    sigma = noise_multiplier(1.0, 1e-5) * sensitivity(1.0)
    assert not torch.equal(first.means, second.means)
    assert (first.means - true.mean).abs().max() < 6 * sigma / 100_000
    assert (first.covs - true.covariance()).abs().max() < 12 * sigma / 100_000


def test_a_noisy_covariance_of_few_images_is_still_positive_definite() -> None:
    features = clipped(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), 1.0)
    found = noisy(class_moments(features, torch.zeros(5, dtype=torch.int64), classes=1), 0.5, 1e-5, 1.0)
    assert torch.linalg.eigvalsh(found.covs).min() >= 1e-4 * 0.999


def test_the_noise_has_the_same_size_in_every_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of moments of nothing: σ in the sums, σ on the diagonal of Σzzᵀ/C and σ/√2 beside it."""
    monkeypatch.setattr("gatf.geometry.privacy.clip_eigenvalues", lambda cov, floor: cov)
    sigma = noise_multiplier(1.0, 1e-5) * sensitivity(1.0)
    found = noisy(Moments.zeros(2, (20_000,)), 1.0, 1e-5, 1.0)
    second = found.covs + found.means[:, :, None] * found.means[:, None, :]
    assert found.means.std() == pytest.approx(sigma, rel=0.05)
    assert second[:, 0, 0].std() == pytest.approx(sigma, rel=0.05)
    assert second[:, 0, 1].std() == pytest.approx(sigma / math.sqrt(2), rel=0.05)
