import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatf.geometry import (
    Gaussians,
    certified,
    certified_range,
    distance_range,
    score_bound,
    whitened_bound,
    whitened_errors,
)

F64 = torch.float64


def mahalanobis(points, means, covs):
    """[B, S], [C, S], [C, S, S] → [B, C]."""
    offsets = points[:, None, :] - means  # [B, C, S]
    return (offsets * torch.linalg.solve(covs, offsets[..., None])[..., 0]).sum(-1)


def test_bound_by_hand():
    # r = 1, η_μ = η_Σ = 0.1, λ = 0.5: (0.2 + 0.01)/0.5 + 0.2·1.21/0.25 = 0.42 + 0.968
    got = score_bound(torch.tensor(1.0), 0.1, eta_cov=0.1, lambda_min=torch.tensor(0.5))
    torch.testing.assert_close(got.item(), 1.388)


def test_bound_broadcasts_and_is_infinite_where_the_theorem_is_silent():
    distance = torch.ones(3, 2)
    got = score_bound(distance, 0.0, eta_cov=torch.tensor([0.1, 0.5]), lambda_min=torch.tensor([1.0, 1.0]))
    torch.testing.assert_close(got, torch.tensor([[0.2, torch.inf]] * 3, dtype=F64))
    assert score_bound(torch.tensor(0.0), 0.0, eta_cov=0.0, lambda_min=torch.tensor(0.0)) == torch.inf


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), torch.tensor([0.1, -1e-9]), torch.tensor([float("nan"), 0.1])])
@pytest.mark.parametrize("which", ["eta_mean", "eta_cov"])
def test_an_error_that_is_negative_or_unknown_is_refused(which, wrong):
    # Unchecked, η_μ = −0.1 would give −0.38 at r = 1 and λ = 0.5: a "bound" below zero, which certifies anything
    errors = {"eta_mean": 0.0, "eta_cov": 0.0} | {which: wrong}
    with pytest.raises(ValueError, match=rf"{which} must be at least 0, got (-|nan)"):
        score_bound(torch.ones(3, 2), **errors, lambda_min=torch.tensor([0.5, 0.5]))


def test_the_worst_case_in_one_dimension_nearly_reaches_the_bound():
    # Σ = 1, Σ̂ = 0.51, r = 1: d = 1, d̂ = 1.9608; the bound is 2·0.49, and no constant below 1.96 would do
    change = 1 / 0.51 - 1
    bound = score_bound(torch.tensor(1.0), 0.0, eta_cov=0.49, lambda_min=torch.tensor(1.0)).item()
    assert 0.95 * bound < change < bound


def perturbed(make_spd, generator, classes, dim, *, relative, adversarial):
    """True and estimated Gaussians [C, …] with η_Σ = relative·λ_min/2 of BOTH matrices at most, and the η's."""
    means = torch.randn(classes, dim, generator=generator, dtype=F64)
    covs = make_spd(generator, classes, dim, lowest=0.3)
    values, vectors = torch.linalg.eigh(covs)
    noise = torch.randn(classes, dim, dim, generator=generator, dtype=F64)
    direction = torch.randn(classes, dim, generator=generator, dtype=F64)
    if adversarial:  # where it hurts most: squeeze the thinnest axis and move along it
        noise = -vectors[:, :, :1] @ vectors[:, :, :1].mT
        direction = vectors[:, :, 0]
    noise = noise + noise.mT
    noise = noise / torch.linalg.matrix_norm(noise, ord=2)[:, None, None]
    # λ_min(Σ̂) ≥ λ − η, so η = relative·λ/3 < relative·λ_min(Σ̂)/2 for relative < 1
    eta_cov = relative * values[:, 0] / 3  # [C]
    eta_mean = relative * torch.rand(classes, generator=generator, dtype=F64)
    moved = means + eta_mean[:, None] * direction / direction.norm(dim=-1, keepdim=True)
    return (means, covs), (moved, covs + eta_cov[:, None, None] * noise), eta_mean, eta_cov


@pytest.mark.parametrize("measured_from", ["true", "estimated"])
@pytest.mark.parametrize("spectrum_of", ["true", "estimated"])
@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0, 0.999), st.booleans())
def test_no_distance_is_further_off_than_its_bound(
    make_spd, measured_from, spectrum_of, seed, dim, relative, adversarial
):
    generator = torch.Generator().manual_seed(seed)
    true, estimated, eta_mean, eta_cov = perturbed(
        make_spd, generator, 3, dim, relative=relative, adversarial=adversarial
    )
    points = true[0][0] + 3 * torch.randn(20, dim, generator=generator, dtype=F64)
    means = (true if measured_from == "true" else estimated)[0]
    covs = (true if spectrum_of == "true" else estimated)[1]
    bounds = score_bound(
        torch.cdist(points, means), eta_mean, eta_cov=eta_cov, lambda_min=torch.linalg.eigvalsh(covs)[:, 0]
    )
    exact = mahalanobis(points, *true)
    assert bounds.isfinite().all()
    assert ((mahalanobis(points, *estimated) - exact).abs() <= bounds + 1e-9 * (1 + exact)).all()


def test_beyond_the_assumption_the_formula_alone_would_lie():
    # Σ = 1, Σ̂ = 0.1, r = 1: |d̂ − d| = 9, while 2η_Σ/λ² = 1.8
    assert 1 / 0.1 - 1 > 2 * 0.9
    assert score_bound(torch.tensor(1.0), 0.0, eta_cov=0.9, lambda_min=torch.tensor(1.0)) == torch.inf


@pytest.mark.parametrize("adversarial", [False, True])
def test_a_certified_prediction_never_changes(make_spd, adversarial):
    generator = torch.Generator().manual_seed(0)
    kept = changed = 0
    for _ in range(60):
        true, estimated, eta_mean, eta_cov = perturbed(make_spd, generator, 4, 3, relative=0.1, adversarial=adversarial)
        points = 6 * torch.randn(200, 3, generator=generator, dtype=F64)
        distances = mahalanobis(points, *estimated)
        lambda_min = torch.linalg.eigvalsh(estimated[1])[:, 0]  # all that is known after transport
        bounds = score_bound(torch.cdist(points, estimated[0]), eta_mean, eta_cov=eta_cov, lambda_min=lambda_min)
        safe = certified(distances, bounds)
        same = distances.argmin(1) == mahalanobis(points, *true).argmin(1)
        assert same[safe].all()
        kept += int(safe.sum())
        changed += int((~same).sum())
    assert kept > 0, "a certificate that is never given proves nothing"
    assert changed > 0, "perturbations that change no prediction prove nothing"


def test_certified_by_hand():
    distances = torch.tensor([[1.0, 4.0, 9.0]] * 5)
    bounds = torch.tensor([[1.0, 1.9, 0.0], [1.0, 2.0, 0.0], [1.0, 0.0, 2.5], [0.0, 0.0, torch.inf], [2.0, 0.5, 0.0]])
    # margin 3 against 2.9, exactly 3, 3.5 (the largest other bound counts, whichever class is nearest), infinity, 2.5
    assert certified(distances, bounds).tolist() == [True, False, False, False, True]
    assert certified(torch.tensor([[5.0]]), torch.tensor([[2.0]])).tolist() == [True]


def test_whitened_errors_by_hand():
    # Σ̂ = diag(4, 1), Σ = diag(3, 1.5): W = diag(½, 1), W(Σ̂ − Σ)Wᵀ = diag(¼, −½); μ̂ − μ = (2, 0) → (1, 0)
    estimated = Gaussians(torch.tensor([[2.0, 0.0]]), torch.diag_embed(torch.tensor([[4.0, 1.0]])))
    true = Gaussians(torch.zeros(1, 2), torch.diag_embed(torch.tensor([[3.0, 1.5]])))
    eta_mean, eta_cov = whitened_errors(estimated, true)
    torch.testing.assert_close(eta_mean, torch.tensor([1.0], dtype=F64))
    torch.testing.assert_close(eta_cov, torch.tensor([0.5], dtype=F64))


def test_whitened_bound_and_range_by_hand():
    # d̂ = 4, η_μ = 0.5, η_Σ = 0.2: r = 2, ε = 2 + 0.25 + 0.4·6.25 = 4.75; range 1.5²/1.2 … 2.5²/0.8
    assert whitened_bound(torch.tensor(4.0), 0.5, 0.2).item() == pytest.approx(4.75)
    low, high = distance_range(torch.tensor(4.0), 0.5, 0.2)
    assert (low.item(), high.item()) == (pytest.approx(1.875), pytest.approx(7.8125))
    assert whitened_bound(torch.tensor(4.0), 0.0, 0.5) == torch.inf
    assert distance_range(torch.tensor(4.0), 3.0, 1.0)[0] == 0
    assert distance_range(torch.tensor(4.0), 0.0, 1.0)[1] == torch.inf


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0, 0.999), st.booleans())
def test_whitened_bounds_hold_and_are_never_looser_than_the_printed_one(make_spd, seed, dim, relative, adversarial):
    generator = torch.Generator().manual_seed(seed)
    true, estimated, eta_mean, eta_cov = perturbed(
        make_spd, generator, 3, dim, relative=relative, adversarial=adversarial
    )
    points = true[0][0] + 3 * torch.randn(20, dim, generator=generator, dtype=F64)
    known, exact = mahalanobis(points, *estimated), mahalanobis(points, *true)
    printed = score_bound(
        torch.cdist(points, estimated[0]), eta_mean, eta_cov=eta_cov,
        lambda_min=torch.linalg.eigvalsh(estimated[1])[:, 0],
    )  # fmt: skip
    errors = whitened_errors(Gaussians(*estimated), Gaussians(*true))
    bound = whitened_bound(known, *errors)
    slack = 1e-9 * (1 + exact)
    assert ((known - exact).abs() <= bound + slack).all()
    assert (bound <= printed + slack).all()
    low, high = distance_range(known, *errors)
    assert ((low - slack <= exact) & (exact <= high + slack)).all()
    # the range lies within the bound
    assert ((known - bound <= low + slack) & (high <= known + bound + slack)).all()


@pytest.mark.parametrize("adversarial", [False, True])
def test_a_whitened_certificate_is_sound_and_tighter(make_spd, adversarial):
    generator = torch.Generator().manual_seed(0)
    shares = {"printed": 0, "whitened": 0, "range": 0}
    changed = 0
    for _ in range(60):
        true, estimated, eta_mean, eta_cov = perturbed(make_spd, generator, 4, 3, relative=0.3, adversarial=adversarial)
        points = 6 * torch.randn(200, 3, generator=generator, dtype=F64)
        distances = mahalanobis(points, *estimated)
        lambda_min = torch.linalg.eigvalsh(estimated[1])[:, 0]
        printed = score_bound(torch.cdist(points, estimated[0]), eta_mean, eta_cov=eta_cov, lambda_min=lambda_min)
        errors = whitened_errors(Gaussians(*estimated), Gaussians(*true))
        safe = {
            "printed": certified(distances, printed),
            "whitened": certified(distances, whitened_bound(distances, *errors)),
            "range": certified_range(*distance_range(distances, *errors), distances.argmin(1)),
        }
        same = distances.argmin(1) == mahalanobis(points, *true).argmin(1)
        changed += int((~same).sum())
        for name, sure in safe.items():
            assert same[sure].all()
            shares[name] += int(sure.sum())
    assert changed > 0
    assert 0 < shares["printed"] < shares["whitened"] < shares["range"]
