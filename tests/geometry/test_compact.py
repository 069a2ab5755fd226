"""Covariances in few numbers: the fit by hand and by its properties, distances against the dense readout."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gatf.geometry import compact
from gatf.geometry.compact import LowRank, fit_low_rank, low_rank_readout
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.readout import bayes_readout

MakeSpd = Callable[..., Tensor]
RULES = [(3.0, True), (1e-3, False), (0.0, False), (0.0, True)]


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=draws(seed), dtype=torch.float64)


def low_rank(classes: int, dim: int, rank: int, seed: int = 0) -> LowRank:
    variances = 0.1 + torch.rand(classes, dim, generator=draws(seed), dtype=torch.float64)
    return LowRank(rand(classes, dim, rank, seed=seed + 1), variances)


def left_over(covs: Tensor, fitted: LowRank) -> Tensor:
    """Frobenius norm of what the fit misses, [C]."""
    return torch.linalg.matrix_norm(covs - fitted.dense())


class TestFit:
    @pytest.mark.parametrize(("steps", "off"), [(1, 1.5), (2, 1.25), (5, 1.03125)])
    def test_two_features_by_hand(self, steps: int, off: float) -> None:
        """[[2, 1], [1, 2]] with one direction: the leading eigenvalue is 3 − d, so U·Uᵀ has (3 − d)/2 everywhere and
        the distance from 1 halves with each step."""
        cov = torch.tensor([[[2.0, 1.0], [1.0, 2.0]]])
        fitted = fit_low_rank(cov, 1, steps=steps)
        torch.testing.assert_close(fitted.dense()[0], torch.tensor([[2.0, off], [off, 2.0]]).double())
        torch.testing.assert_close(fitted.diagonals[0], torch.tensor([2 - off, 2 - off]).double())

    @settings(max_examples=30, deadline=None)
    @given(dim=st.integers(2, 9), data=st.data(), seed=st.integers(0, 1000))
    def test_variances_are_kept_and_no_step_is_a_loss(self, dim: int, data: st.DataObject, seed: int) -> None:
        rank, samples = data.draw(st.integers(1, dim)), data.draw(st.integers(1, 2 * dim))
        features = rand(2, samples, dim, seed=seed) * torch.arange(1, dim + 1)
        covs = features.mT @ features
        fits = [fit_low_rank(covs, rank, steps=steps) for steps in (1, 2, 3, 4, 8)]
        for fitted in fits:
            assert (fitted.diagonals >= 0).all()
            torch.testing.assert_close(fitted.variances(), covs.diagonal(dim1=1, dim2=2), rtol=1e-9, atol=1e-9)
        free = [fitted for fitted in fits if (fitted.diagonals > 1e-9 * fitted.variances()).all()]  # no clamp
        errors = [left_over(covs, fitted) for fitted in free]
        for before, after in pairwise(errors):
            assert (after <= before * (1 + 1e-9) + 1e-9).all()

    def test_steps_continue_where_principal_components_stop(self) -> None:
        """Leading eigenpairs spend themselves on the diagonal, which is stored anyway."""
        truth = low_rank(6, 12, 3)
        plain, more, many = (fit_low_rank(truth.dense(), 3, steps=steps) for steps in (1, compact.FIT_STEPS, 500))
        assert (left_over(truth.dense(), more) < 0.5 * left_over(truth.dense(), plain)).all()
        torch.testing.assert_close(many.dense(), truth.dense(), rtol=1e-5, atol=1e-5)

    def test_full_rank_and_singular_matrices_are_kept_whole(self, make_spd: MakeSpd) -> None:
        covs = make_spd(draws(0), 4, 6)
        torch.testing.assert_close(fit_low_rank(covs, 6).dense(), covs)
        few = rand(2, 3, 6)  # three images: rank 3
        torch.testing.assert_close(fit_low_rank(few.mT @ few, 3).dense(), few.mT @ few)

    def test_a_variance_that_one_factor_would_exceed_is_kept(self) -> None:
        """Correlations 0.9, 0.9 and 0.7: one factor would explain 0.9·0.9/0.7 > 1 of the first feature."""
        cov = torch.tensor([[[1.0, 0.9, 0.9], [0.9, 1.0, 0.7], [0.9, 0.7, 1.0]]])
        fitted = fit_low_rank(cov, 1, steps=200)
        assert fitted.diagonals[0, 0] == 0
        torch.testing.assert_close(fitted.variances(), torch.ones(1, 3).double())

    def test_no_classes(self) -> None:
        assert fit_low_rank(torch.zeros(0, 4, 4), 2).dense().shape == (0, 4, 4)

    @pytest.mark.parametrize("rank", [0, 5])
    def test_data_that_cannot_be_fitted_are_reported(self, rank: int) -> None:
        with pytest.raises(ValueError, match="rank"):
            fit_low_rank(torch.eye(4)[None], rank)

    def test_shapes_that_do_not_belong_together(self) -> None:
        with pytest.raises(ValueError, match=r"\[2, 4, 1\] and \[3, 4\]"):
            LowRank(torch.zeros(2, 4, 1), torch.zeros(3, 4))


class TestLowRankDistances:
    def test_by_hand(self) -> None:
        """M = [[2, 1], [1, 2]] = (1, 1)(1, 1)ᵀ + I around (1, 0): (2, 0) has M⁻¹ = [[2, −1], [−1, 2]]/3 → 2/3."""
        covs = LowRank(torch.ones(1, 2, 1), torch.ones(1, 2))
        readout = low_rank_readout(torch.tensor([[1.0, 0.0]]), covs, 0.0, normalise=False)
        assert readout.distances(torch.tensor([[2.0, 0.0], [1.0, 0.0]]))[:, 0].tolist() == pytest.approx([2 / 3, 0])

    @pytest.mark.parametrize(("shrink", "normalise"), RULES)
    @pytest.mark.parametrize("rank", [1, 4, 12])
    def test_agree_with_the_dense_readout(self, shrink: float, normalise: bool, rank: int) -> None:
        covs, means, features = low_rank(7, 12, rank), 3 * rand(7, 12, seed=5), 4 * rand(40, 12, seed=6)
        dense = bayes_readout(Gaussians(means, covs.dense()), shrink, normalise=normalise)
        ours = low_rank_readout(means, covs, shrink, normalise=normalise)
        torch.testing.assert_close(ours.distances(features), dense.distances(features), rtol=1e-8, atol=1e-8)

    def test_chunks_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        readout = low_rank_readout(rand(11, 6), low_rank(11, 6, 2), 3.0, normalise=True)
        whole = readout.distances(rand(10, 6, seed=3))
        monkeypatch.setattr(compact, "CHUNK_ROWS", 3)
        monkeypatch.setattr(compact, "CHUNK_ELEMENTS", 24)
        torch.testing.assert_close(readout.distances(rand(10, 6, seed=3)), whole, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("rank", [1, 3])
    def test_a_common_offset_costs_no_digits(self, rank: int) -> None:
        covs, means, features = low_rank(5, 8, rank), rand(5, 8, seed=5), rand(20, 8, seed=6)
        near = low_rank_readout(means, covs, 1e-3, normalise=False).distances(features)
        far = low_rank_readout(means + 1e6, covs, 1e-3, normalise=False).distances(features + 1e6)
        torch.testing.assert_close(far, near, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize(("shrink", "normalise"), RULES)
    def test_dead_features_and_dead_classes_are_repaired_as_ever(self, shrink: float, normalise: bool) -> None:
        variances = 0.1 + torch.rand(4, 5, generator=draws(0), dtype=torch.float64)
        variances[1, 2], variances[3] = 0.0, 0.0
        means, features = rand(4, 5), rand(9, 5, seed=2)
        dense = bayes_readout(Gaussians(means, torch.diag_embed(variances)), shrink, normalise=normalise)
        ours = low_rank_readout(means, LowRank(torch.zeros(4, 5, 1), variances), shrink, normalise=normalise)
        torch.testing.assert_close(ours.distances(features), dense.distances(features), rtol=1e-8, atol=1e-8)

    def test_a_factor_without_a_diagonal_stays_finite(self) -> None:
        """Rank 2 in 5 dimensions and nothing else: singular without shrinkage."""
        covs = LowRank(rand(3, 5, 2), torch.zeros(3, 5))
        distances = low_rank_readout(rand(3, 5), covs, 0.0, normalise=False).distances(rand(9, 5, seed=2))
        assert distances.isfinite().all()
        assert (distances >= 0).all()

    def test_entries_that_are_not_finite_are_reported(self) -> None:
        covs = LowRank(torch.zeros(1, 2, 1), torch.tensor([[1.0, torch.nan]]))
        with pytest.raises(ValueError, match="not finite"):
            low_rank_readout(torch.zeros(1, 2), covs, 1.0, normalise=True)
