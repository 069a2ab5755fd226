import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatf.geometry import blend, cholesky, clip_eigenvalues, condition_number, correlation, shrink, spd, symmetrise


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_symmetrise():
    assert symmetrise(torch.tensor([[1, 2], [4, 3]])).tolist() == [[1, 3], [3, 3]]


def test_shrink_by_hand():
    assert shrink(matrix([1, 0.5], [0.5, 3]), 3.0).tolist() == [[7, 0.5], [0.5, 9]]


def test_shrink_with_off_diagonal_by_hand():
    once = shrink(matrix([4, 1], [1, 2]), 1.0, off_diagonal=1.0)
    twice = shrink(once, 1.0, off_diagonal=1.0)
    assert once.tolist() == [[7, 2], [2, 5]]
    assert twice.tolist() == [[13, 4], [4, 11]]
    assert shrink(matrix([4, 1], [1, 2]), 3.0, off_diagonal=3.0).tolist() == twice.tolist()
    torch.testing.assert_close(correlation(once)[0, 1].item(), 0.33806, rtol=0, atol=5e-6)
    torch.testing.assert_close(correlation(twice)[0, 1].item(), 0.33450, rtol=0, atol=5e-6)


def test_shrink_of_one_dimension_has_no_off_diagonal():
    assert shrink(matrix([2.0]), 1.0, off_diagonal=1.0).tolist() == [[4]]


def test_shrink_is_per_matrix_and_survives_dead_features():
    live = torch.zeros(4, 4, dtype=torch.float64)
    live[:2, :2] = matrix([1, 0.9], [0.9, 1])  # the release's mask of zeros makes this one indefinite
    both = shrink(torch.stack([live, 10 * live]), 3.0, off_diagonal=3.0)
    assert (torch.linalg.eigvalsh(both) > 0).all()
    torch.testing.assert_close(both[1], 10 * both[0])


def test_correlation_by_hand():
    got = correlation(matrix([7, 0.5], [0.5, 9]))
    torch.testing.assert_close(got[0, 1].item(), 0.062994, rtol=0, atol=5e-7)
    assert got.diagonal().tolist() == [1, 1]
    assert torch.equal(got, got.mT)


def test_shrinking_equal_variances_by_three_divides_the_correlation_by_four():
    got = correlation(shrink(matrix([2, 1], [1, 2]), 3.0))
    torch.testing.assert_close(got[0, 1].item(), 0.5 / 4)


def test_a_dead_feature_correlates_with_nothing():
    assert correlation(matrix([4, 0], [0, 0])).tolist() == [[1, 0], [0, 1]]


def test_clip_eigenvalues_by_hand():
    diagonal = torch.tensor([-1.0, 0.5, 4.0]).diag()
    torch.testing.assert_close(clip_eigenvalues(diagonal, 1.0), torch.tensor([1.0, 1, 4], dtype=torch.float64).diag())


def test_clip_eigenvalues_keeps_the_eigenvectors(make_spd):
    cov = make_spd(torch.Generator().manual_seed(0), 3, 6)
    values, vectors = torch.linalg.eigh(cov)
    expected = vectors @ torch.diag_embed(values.clamp_min(1.0)) @ vectors.mT
    torch.testing.assert_close(clip_eigenvalues(cov, 1.0), expected)
    torch.testing.assert_close(clip_eigenvalues(cov, 0.01), cov)


def test_condition_number():
    batch = torch.stack([matrix([8, 0], [0, 2]), matrix([1, 1], [1, 1]), matrix([1, 0], [0, -1])])
    got = condition_number(batch)
    assert got[0] == 4
    assert got[1] > 1e15
    assert got[2] == torch.inf


def test_cholesky_of_a_good_matrix_is_plain(make_spd):
    cov = make_spd(torch.Generator().manual_seed(1), 2, 3, 5)
    factor = cholesky(cov)
    assert torch.equal(factor.lower, torch.linalg.cholesky(cov))
    assert factor.jitter.shape == factor.clipped.shape == (2, 3)
    assert not factor.repaired.any()


def test_cholesky_adds_the_jitter_asked_for_and_does_not_call_it_a_repair():
    factor = cholesky(torch.eye(3), 0.44)
    torch.testing.assert_close(factor.lower, 1.2 * torch.eye(3, dtype=torch.float64))
    assert not factor.repaired.any()


def test_cholesky_stops_at_the_lowest_rung_that_holds():
    cov = torch.tensor([1.0, 1.0, -5e-6], dtype=torch.float64).diag()
    mean_variance = (2 - 5e-6) / 3  # 1e-6 of it is too little, 1e-5 is enough
    factor = cholesky(cov)
    torch.testing.assert_close(factor.jitter.item(), 1e-5 * mean_variance)
    torch.testing.assert_close(
        factor.lower @ factor.lower.mT, cov + 1e-5 * mean_variance * torch.eye(3, dtype=torch.float64)
    )
    assert factor.repaired.any()
    assert not factor.clipped


def test_cholesky_ladder_starts_above_the_jitter_asked_for():
    factor = cholesky(torch.tensor([1.0, -5e-3], dtype=torch.float64).diag(), 1e-3)
    torch.testing.assert_close(factor.jitter.item(), 1e-2)


def test_cholesky_clips_what_jitter_cannot_save():
    factor = cholesky(torch.tensor([4.0, -1.0], dtype=torch.float64).diag())
    assert factor.clipped
    assert factor.jitter == 0
    torch.testing.assert_close(factor.lower, torch.tensor([2.0, 1e-2], dtype=torch.float64).diag())


def test_cholesky_repairs_only_the_matrices_that_need_it(make_spd):
    good = make_spd(torch.Generator().manual_seed(2), 2, 3)
    slightly = torch.tensor([1.0, 1.0, -1e-8], dtype=torch.float64).diag()
    batch = torch.stack([good[0], torch.zeros(3, 3), slightly, good[1]])
    factor = cholesky(batch)
    assert factor.repaired.tolist() == [False, True, True, False]
    assert factor.clipped.tolist() == [False, True, False, False]
    assert torch.equal(factor.lower[[0, 3]], torch.linalg.cholesky(good))
    torch.testing.assert_close(factor.lower[1], 1e-2 * torch.eye(3, dtype=torch.float64))


def test_cholesky_survives_fewer_samples_than_dimensions():
    features = torch.randn(5, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    cov = torch.cov(features.T)
    lower = cholesky(cov).lower
    torch.testing.assert_close(lower @ lower.mT, cov, rtol=0, atol=1e-4 * cov.diagonal().mean().item())


def test_cholesky_of_no_matrices():
    assert cholesky(torch.zeros(0, 3, 3)).lower.shape == (0, 3, 3)


def test_cholesky_names_how_many_matrices_are_not_finite():
    batch = torch.eye(2).repeat(3, 1, 1)
    batch[1, 0, 1] = torch.nan
    with pytest.raises(ValueError, match="1 of 3 covariance matrices"):
        cholesky(batch)


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(0, 6),
    st.sampled_from([0.0, 1e-9, 1e-3, 10.0]),
    st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_cholesky_never_fails_on_finite_input_and_only_ever_adds(seed, dim, rank, indefinite, scale):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(dim, rank, generator=generator, dtype=torch.float64)
    noise = symmetrise(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    cov = scale * (root @ root.mT + indefinite * noise)
    factor = cholesky(cov)
    assert torch.equal(factor.lower, factor.lower.tril())
    assert (factor.lower.diagonal() > 0).all()
    added = torch.linalg.eigvalsh(factor.lower @ factor.lower.mT - cov)
    size = max(1e-4, cov.abs().max().item())
    assert added.min() > -1e-9 * size
    if not factor.repaired.any():
        assert added.max() < 1e-9 * size


def test_blend_by_hand():
    """Variances 1 and 3, mean 2; a quarter of the way."""
    cov = torch.tensor([[1.0, 0.8], [0.8, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(blend(cov, 0.25), torch.tensor([[1.25, 0.6], [0.6, 2.75]], dtype=torch.float64))
    assert torch.equal(blend(cov, 0.0), cov)
    torch.testing.assert_close(blend(cov, 1.0), 2 * torch.eye(2, dtype=torch.float64))


def test_the_ladder_is_counted_by_who_asks() -> None:
    good = torch.eye(3, dtype=torch.float64)
    singular = torch.diag(torch.tensor([1.0, 1.0, -1e-7], dtype=torch.float64))  # the first jitter is enough
    indefinite = torch.diag(torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64))  # none is
    spd.cholesky(singular)
    with spd.counting() as outer:
        spd.cholesky(torch.stack([good, singular, indefinite, singular]))
        with spd.counting() as inner:
            spd.cholesky(indefinite)
        spd.cholesky(good)
    spd.cholesky(indefinite)
    assert (outer.jittered, outer.clipped, outer.used) == (2, 1, 3)
    assert (inner.jittered, inner.clipped, inner.used) == (0, 1, 1)


@pytest.mark.parametrize("condition", [1e4, 1e8, 1e12])
def test_an_ill_conditioned_covariance_gives_finite_distances(condition: float) -> None:
    """Mahalanobis distances of vectors along the eigenvectors, to what float64 leaves of them: x²/λ."""
    dim = 12
    vectors = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    values = torch.logspace(0, -math.log10(condition), dim, dtype=torch.float64)
    factor = spd.cholesky((vectors * values) @ vectors.T)
    assert not factor.repaired.any()
    whitened = torch.linalg.solve_triangular(factor.lower, vectors * values.sqrt(), upper=False)
    assert whitened.square().sum(0).sub(1).abs().max() < 1e-15 * condition * dim


def test_the_ladder_reaches_a_thousand_times_the_jitter_asked_for():
    """Its rungs are 10, 100 and 1 000 times that: -0.5 needs the last one."""
    factor = cholesky(matrix([1.0, 0.0], [0.0, -0.5]), 1e-3)
    assert factor.jitter == pytest.approx(1.0)
    assert not factor.clipped


def test_eigenvalues_are_not_clipped_to_what_float64_cannot_tell_from_zero():
    """The largest being 1e8, the smallest becomes 1e-10 of it and not the floor."""
    factor = cholesky(matrix([1e8, 0.0], [0.0, -1e8]))
    assert factor.clipped
    assert torch.allclose(factor.lower, matrix([1e4, 0.0], [0.0, 0.1]))
