import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import solve_sylvester as scipy_sylvester
from torch import Tensor

from gatf.geometry import (
    Affine,
    Gaussians,
    PairedMoments,
    cholesky,
    fit_anchor,
    push_affine,
    solve_ridge,
    solve_sylvester,
    solve_towards_identity,
)
from gatf.methods.parts.anchor import RunningAnchor

F64 = torch.float64


def anchor_objective(weight: Tensor, cov_old: Tensor, *, cov_new: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """E‖P x − y‖²_{Σ_n⁻¹} + ρ‖P‖²_F over centred pairs (x, y) (GATF, Eq. 5), [].

    From moments alone: tr Σ_n⁻¹(P Σ_o Pᵀ − P Kᵀ − K Pᵀ + Σ_n) + ρ‖P‖². Differentiable in P.
    """
    weight, cov_old, cross = (each.to(torch.float64) for each in (weight, cov_old, cross))
    mixed = cross @ weight.mT
    residual = weight @ cov_old @ weight.mT - mixed - mixed.mT + cov_new  # [S_new, S_new]
    whitened = torch.cholesky_solve(residual, cholesky(cov_new).lower)
    return whitened.diagonal().sum() + ridge * weight.square().sum()


def problem(make_spd, seed, dim_old, dim_new):
    """Σ_o, Σ_n and a K such that [[Σ_o, Kᵀ], [K, Σ_n]] is a covariance."""
    joint = make_spd(torch.Generator().manual_seed(seed), dim_old + dim_new)
    return joint[:dim_old, :dim_old], joint[dim_old:, dim_old:], joint[dim_old:, :dim_old]


@pytest.mark.parametrize(
    ("dim", "ridge"), [(1, 1e-2), (2, 1e-2), (2, 3.0), (8, 1e-2), (8, 3.0), (64, 1e-2), (512, 1e-2)]
)
def test_sylvester_residual_and_scipy(make_spd, dim, ridge):
    cov_old, cov_new, cross = problem(make_spd, dim, dim, dim)
    got = solve_sylvester(cov_old, cov_new, cross=cross, ridge=ridge)
    residual = got @ cov_old + ridge * cov_new @ got - cross
    assert residual.norm() < 1e-10 * cross.norm()
    expected = scipy_sylvester((ridge * cov_new).numpy(), cov_old.numpy(), cross.numpy())
    torch.testing.assert_close(got, torch.from_numpy(expected), rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 10), st.integers(1, 10), st.floats(1e-4, 10))
def test_sylvester_holds_for_any_pair_of_sizes(make_spd, seed, dim_old, dim_new, ridge):
    cov_old, cov_new, cross = problem(make_spd, seed, dim_old, dim_new)
    got = solve_sylvester(cov_old, cov_new, cross=cross, ridge=ridge)
    residual = got @ cov_old + ridge * cov_new @ got - cross
    assert residual.norm() <= 1e-10 * cross.norm()


def test_sylvester_by_hand():
    one = solve_sylvester(torch.tensor([[4.0]]), torch.tensor([[9.0]]), cross=torch.tensor([[6.0]]), ridge=0.1)
    torch.testing.assert_close(one.item(), 1.2244898, rtol=0, atol=1e-7)
    two = solve_sylvester(
        torch.tensor([4.0, 1.0]).diag(), torch.tensor([9.0, 0.25]).diag(), cross=torch.eye(2), ridge=1.0
    )
    torch.testing.assert_close(two, torch.tensor([1 / 13, 0.8], dtype=F64).diag())


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(1e-3, 5))
def test_sylvester_minimises_equation_5(make_spd, seed, dim, ridge):
    cov_old, cov_new, cross = problem(make_spd, seed, dim, dim)
    weight = solve_sylvester(cov_old, cov_new, cross=cross, ridge=ridge).requires_grad_()
    best = anchor_objective(weight, cov_old, cov_new=cov_new, cross=cross, ridge=ridge)
    (gradient,) = torch.autograd.grad(best, weight)
    assert gradient.abs().max() < 1e-9
    generator = torch.Generator().manual_seed(seed)
    for size in (1e-3, 1e-1, 10.0):
        other = weight.detach() + size * torch.randn(dim, dim, generator=generator, dtype=F64)
        assert anchor_objective(other, cov_old, cov_new=cov_new, cross=cross, ridge=ridge) > best


def test_the_objective_is_equation_5_on_samples(make_spd):
    generator = torch.Generator().manual_seed(4)
    old = torch.randn(30, 3, generator=generator, dtype=F64)
    new = old @ torch.randn(3, 2, generator=generator, dtype=F64) + torch.randn(30, 2, generator=generator, dtype=F64)
    weight = torch.randn(2, 3, generator=generator, dtype=F64)
    pairs = PairedMoments.of(old, new)
    errors = (old - old.mean(0)) @ weight.mT - (new - new.mean(0))
    expected = (errors @ torch.linalg.inv(pairs.cov_new) * errors).sum() / 29 + 0.7 * weight.square().sum()
    got = anchor_objective(weight, pairs.cov_old, cov_new=pairs.cov_new, cross=pairs.cross, ridge=0.7)
    torch.testing.assert_close(got, expected)


def test_ridge_and_sylvester_coincide_only_for_isotropic_new_features(make_spd):
    cov_old, cov_new, cross = problem(make_spd, 5, 6, 6)
    ridge, variance = 0.3, 2.5
    isotropic = variance * torch.eye(6, dtype=F64)
    plain = solve_ridge(cov_old, cross, ridge=ridge * variance)
    torch.testing.assert_close(solve_sylvester(cov_old, isotropic, cross=cross, ridge=ridge), plain)
    coupled = solve_sylvester(cov_old, cov_new, cross=cross, ridge=ridge)
    assert (coupled - solve_ridge(cov_old, cross, ridge=ridge)).norm() > 0.05 * coupled.norm()


def test_ridge_is_the_textbook_formula_and_no_ridge_is_least_squares(make_spd):
    cov_old, cov_new, cross = problem(make_spd, 6, 5, 3)
    torch.testing.assert_close(
        solve_ridge(cov_old, cross, ridge=0.2), cross @ torch.linalg.inv(cov_old + 0.2 * torch.eye(5, dtype=F64))
    )
    least_squares = cross @ torch.linalg.inv(cov_old)
    torch.testing.assert_close(solve_ridge(cov_old, cross, ridge=0.0), least_squares)
    torch.testing.assert_close(solve_sylvester(cov_old, cov_new, cross=cross, ridge=0.0), least_squares)


@pytest.mark.parametrize("ridge", [0.0, 1e-6])
@pytest.mark.parametrize("kind", ["sylvester", "ridge"])
def test_few_samples_and_dead_features_give_a_finite_anchor_that_fits(kind, ridge):
    generator = torch.Generator().manual_seed(7)
    old = torch.randn(5, 12, generator=generator, dtype=F64)  # rank 4 of 12
    old[:, 3] = 0.0
    anchor = fit_anchor(PairedMoments.of(old, 2 * old + 1), ridge, kind=kind)
    assert anchor.weight.isfinite().all()
    assert anchor.weight.norm() < 100
    torch.testing.assert_close(anchor(old), 2 * old + 1, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["sylvester", "ridge"])
def test_features_without_any_variance_map_to_the_new_mean(kind):
    still = torch.full((4, 3), 2.0)
    anchor = fit_anchor(PairedMoments.of(still, still + 1), 0.0, kind=kind)
    assert anchor.weight.abs().max() == 0
    assert anchor.bias.tolist() == [3, 3, 3]


def test_a_negative_ridge_and_an_unknown_kind_are_refused():
    pairs = PairedMoments.of(torch.eye(3), torch.eye(3))
    with pytest.raises(ValueError, match="ridge"):
        fit_anchor(pairs, -1.0)
    with pytest.raises(ValueError, match="'lasso'"):
        fit_anchor(pairs, 1.0, kind="lasso")


@pytest.mark.parametrize("kind", ["sylvester", "ridge"])
def test_an_exact_affine_drift_is_recovered_and_carries_gaussians_exactly(make_spd, kind):
    generator = torch.Generator().manual_seed(8)
    old = torch.randn(200, 6, generator=generator, dtype=F64) + 3
    linear, shift = torch.randn(6, 6, generator=generator, dtype=F64), torch.randn(6, generator=generator, dtype=F64)
    anchor = fit_anchor(PairedMoments.of(old, old @ linear.mT + shift), 1e-12, kind=kind)
    torch.testing.assert_close(anchor.weight, linear, rtol=0, atol=1e-8)
    torch.testing.assert_close(anchor.bias, shift, rtol=0, atol=1e-7)
    before = Gaussians(torch.randn(4, 6, generator=generator), make_spd(generator, 4, 6))
    after = push_affine(before, anchor)
    torch.testing.assert_close(after.means, before.means @ linear.mT + shift, rtol=0, atol=1e-7)
    torch.testing.assert_close(after.covs, linear @ before.covs @ linear.mT, rtol=0, atol=1e-7)


def test_affine_by_hand_in_the_dtype_of_its_input():
    affine = Affine(torch.tensor([[1.0, 2.0], [0.0, 3.0]], dtype=F64), torch.tensor([10.0, 20.0], dtype=F64))
    assert affine(torch.tensor([1.0, 2.0])).tolist() == [15, 26]  # columns: P z, not z P
    assert affine(torch.ones(5, 4, 2)).dtype == torch.float32


def scalar_anchor(weight, bias):
    return Affine(torch.tensor([[weight]], dtype=F64), torch.tensor([bias], dtype=F64))


@pytest.mark.parametrize(
    ("bias_correct", "expected"),
    # m = 0.5 over P = 1, 2, 4: corrected 0.5/0.5, (0.25+1)/0.75, (0.125+0.5+2)/0.875; plain 1, 1.5, 2.75
    [(True, [1.0, 5 / 3, 3.0]), (False, [1.0, 1.5, 2.75])],
)
def test_moving_average_by_hand(bias_correct, expected):
    average = RunningAnchor(1, 0.5, bias_correct=bias_correct)
    for step, (weight, value) in enumerate(zip([1.0, 2.0, 4.0], expected, strict=True), start=1):
        average.update(scalar_anchor(weight, -10 * weight))
        assert average.steps == step
        torch.testing.assert_close(average.value().weight.item(), value)
        torch.testing.assert_close(average.value().bias.item(), -10 * value)


def test_moving_average_refuses_to_invent_a_value():
    with pytest.raises(ValueError, match="before its first update"):
        RunningAnchor(2, 0.9, bias_correct=True).value()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 8), st.floats(1e-3, 5))
def test_without_drift_shrinking_towards_the_identity_is_the_identity(make_spd, seed, dim, ridge):
    cov = make_spd(torch.Generator().manual_seed(seed), dim)
    eye = torch.eye(dim, dtype=F64)
    torch.testing.assert_close(solve_towards_identity(cov, cov, cov, ridge), eye, rtol=0, atol=1e-8)
    # Eq. 5 itself gives I/(1 + ρ)
    torch.testing.assert_close(solve_sylvester(cov, cov, cov, ridge), eye / (1 + ridge), rtol=0, atol=1e-8)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(1e-3, 5))
def test_the_identity_anchor_minimises_its_objective(make_spd, seed, dim, ridge):
    cov_old, cov_new, cross = problem(make_spd, seed, dim, dim)
    eye = torch.eye(dim, dtype=F64)

    def objective(weight):
        fit = anchor_objective(weight, cov_old, cov_new=cov_new, cross=cross, ridge=0.0)
        return fit + ridge * (weight - eye).square().sum()

    weight = solve_towards_identity(cov_old, cov_new, cross, ridge).requires_grad_()
    (gradient,) = torch.autograd.grad(objective(weight), weight)
    assert gradient.abs().max() < 1e-8


def test_identity_by_hand():
    # P = (K + ρΣ_n)/(Σ_o + ρΣ_n) = (6 + 0.9)/(4 + 0.9)
    numbers = (torch.tensor([[value]]) for value in (4.0, 9.0, 6.0))
    torch.testing.assert_close(solve_towards_identity(*numbers, 0.1).item(), 6.9 / 4.9, rtol=0, atol=1e-7)


def test_directions_that_no_image_shows_stay_where_they_are():
    """Three pairs in ten dimensions: in the plane they span the map is theirs, outside it nothing moves."""
    generator = torch.Generator().manual_seed(3)
    old = torch.randn(3, 10, generator=generator, dtype=F64)
    old[:, 5:] = 0.0
    anchor = fit_anchor(PairedMoments.of(old, 2 * old), 1e-6, kind="identity")
    unseen = torch.zeros(10, dtype=F64)
    unseen[7] = 3.0
    torch.testing.assert_close(anchor.weight @ unseen, unseen, rtol=0, atol=1e-6)
    spread = old - old.mean(0)
    torch.testing.assert_close(spread @ anchor.weight.mT, 2 * spread, rtol=0.05, atol=0.05)


def test_without_drift_nothing_moves_even_with_few_images():
    old = torch.randn(5, 12, generator=torch.Generator().manual_seed(7), dtype=F64)
    anchor = fit_anchor(PairedMoments.of(old, old), 0.01, kind="identity")
    torch.testing.assert_close(anchor.weight, torch.eye(12, dtype=F64), rtol=0, atol=1e-6)
    assert anchor.bias.abs().max() < 1e-6
