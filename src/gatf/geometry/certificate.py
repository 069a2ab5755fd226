"""Theorem 2 of GATF (Xu & Krawczyk, ECCV 2026): how far a Mahalanobis distance can be off, and when that is harmless.

Two Gaussians of one class are compared, the true one (μ, Σ) and the estimate (μ̂, Σ̂), with ‖μ̂ − μ‖₂ ≤ η_μ and
‖Σ̂ − Σ‖₂ ≤ η_Σ (spectral norm). Distances are the raw d = (z − μ)ᵀΣ⁻¹(z − μ) of Eq. 3: the theorem says nothing of
the correlation-normalised "bayes" readout. If the matrices are shrunk by spd.shrink(Σ, a), λ_min is that of the shrunk
one and η_Σ grows to (1 + a)·η_Σ, because mean(diag) moves by at most η_Σ.

As printed, the theorem certifies next to nothing after a transport: λ_min of a trained class covariance is tiny. The
distance does not care in which coordinates it is computed, so the theorem may be applied where Σ̂ is the identity; that
is `whitened_errors` and `whitened_bound`, and `distance_range` is what can be said there without going through a bound
that is symmetric.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gatf.geometry import spd
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.readout import margins


def score_bound(distance: Tensor, eta_mean: Tensor | float, *, eta_cov: Tensor | float, lambda_min: Tensor) -> Tensor:
    """ε_c(z) ≥ |d̂_c(z) − d_c(z)| (GATF, Theorem 2), by broadcasting; +inf where η_Σ ≥ λ_min/2.

    ε = (2r·η_μ + η_μ²)/λ_min + 2η_Σ(r + η_μ)²/λ_min², where `distance` r is the EUCLIDEAN ‖z − mean_c‖.

    Which mean and which λ_min? The theorem reads as the true ones, which nobody has after transport. The bound holds
    all the same with the estimates: r = ‖z − μ̂‖ and λ_min = λ_min(Σ̂), the assumption then being η_Σ < λ_min(Σ̂)/2. For
    M either of Σ and Σ̂, |d̂ − d| splits into
    - the change of mean under M⁻¹, at most (2r·η_μ + η_μ²)/λ_min(M) from whichever of the two means r is measured;
    - the change of matrix, vᵀ(Σ̂⁻¹ − Σ⁻¹)v, with v the offset of z from the mean that does not belong to M, so that
      ‖v‖ ≤ r + η_μ, and ‖Σ̂⁻¹ − Σ⁻¹‖ ≤ η_Σ/(λ_min(Σ)·λ_min(Σ̂)) < 2η_Σ/λ_min(M)², because the smallest eigenvalue of
      the matrix that is not M is at least λ_min(M) − η_Σ > λ_min(M)/2.
    All four pairings of a mean with a matrix are therefore valid, as long as ONE λ_min serves the assumption and both
    terms; a larger r or a smaller λ_min only loosens the bound.
    An error that is negative or not a number bounds nothing and is refused.
    """
    for name, eta in (("eta_mean", eta_mean), ("eta_cov", eta_cov)):
        values = torch.as_tensor(eta)
        if not bool((values >= 0).all()):  # NaN is not
            raise ValueError(f"{name} must be at least 0, got {float(values.min())}")
    distance, lambda_min = distance.to(torch.float64), lambda_min.to(torch.float64)
    mean_part = (2 * distance * eta_mean + eta_mean**2) / lambda_min
    cov_part = 2 * eta_cov * ((distance + eta_mean) / lambda_min) ** 2
    return torch.where(eta_cov < lambda_min / 2, mean_part + cov_part, torch.inf)


def whitened_errors(estimated: Gaussians, true: Gaussians) -> tuple[Tensor, Tensor]:
    """η_μ = ‖Σ̂^{-1/2}(μ̂ − μ)‖₂ and η_Σ = ‖Σ̂^{-1/2}(Σ̂ − Σ)Σ̂^{-1/2}‖₂ of each class, both [C].

    Any W with W Σ̂ Wᵀ = I serves as Σ̂^{-1/2}, for two of them differ by a rotation; here it is the inverse of the
    Cholesky factor of Σ̂. Where a readout shrinks covariances, give both Gaussians shrunk as it does: η_Σ is then of the
    matrices it uses.
    """
    lower = spd.cholesky(estimated.covs).lower  # [C, S, S]
    offset = (estimated.means - true.means).to(lower)[..., None]
    moved = torch.linalg.solve_triangular(lower, offset, upper=False)[..., 0]
    half = torch.linalg.solve_triangular(lower, (estimated.covs - true.covs).to(lower), upper=False)
    whole = torch.linalg.solve_triangular(lower, half.mT, upper=False)
    return moved.norm(dim=-1), torch.linalg.matrix_norm(spd.symmetrise(whole), ord=2)


def whitened_bound(distances: Tensor, eta_mean: Tensor | float, eta_cov: Tensor | float) -> Tensor:
    """ε_c(z) ≥ |d̂_c(z) − d_c(z)| from the errors of `whitened_errors` (a corollary of GATF, Theorem 2), by
    broadcasting; +inf where η_Σ ≥ 1/2. `distances` are the squared Mahalanobis d̂_c(z), [..., C].

    ε = 2r·η_μ + η_μ² + 2η_Σ(r + η_μ)² with r = √d̂.

    Proof. Let W Σ̂ Wᵀ = I, and put z' = W z, μ' = W μ, Σ' = W Σ Wᵀ for the true Gaussian, likewise for the estimate.
    Then (z' − μ')ᵀ Σ'⁻¹ (z' − μ') = (z − μ)ᵀ Σ⁻¹ (z − μ): neither distance changes. In these coordinates the estimate
    has the covariance I, so λ_min = 1; its mean is off by ‖W(μ̂ − μ)‖ = η_μ and its covariance by ‖W(Σ̂ − Σ)Wᵀ‖ = η_Σ;
    and z' lies ‖W(z − μ̂)‖ = √d̂ from it. Theorem 2 with these numbers is the bound.

    It is never looser than the printed one. ‖W‖² = 1/λ_min(Σ̂), so r ≤ ‖z − μ̂‖/√λ_min, η_μ is at most the printed one
    over √λ_min, and η_Σ the printed one over λ_min. Each term is then at most its printed twin, and η_Σ < 1/2 holds
    wherever the printed assumption does.
    """
    one = torch.ones((), dtype=torch.float64, device=distances.device)
    return score_bound(distances.to(torch.float64).clamp_min(0).sqrt(), eta_mean, eta_cov=eta_cov, lambda_min=one)


def distance_range(distances: Tensor, eta_mean: Tensor | float, eta_cov: Tensor | float) -> tuple[Tensor, Tensor]:
    """Between which values the true d_c(z) lies, by broadcasting, for the errors of `whitened_errors`; `distances` are
    the squared Mahalanobis d̂_c(z), [..., C].

    (r − η_μ)₊²/(1 + η_Σ) ≤ d ≤ (r + η_μ)²/(1 − η_Σ) with r = √d̂, for η_Σ < 1; beyond that the upper end is +inf.

    Proof. Where Σ̂ is I, the true covariance is I + E with ‖E‖ ≤ η_Σ, so the eigenvalues of its inverse lie between
    1/(1 + η_Σ) and 1/(1 − η_Σ), and z is between r − η_μ and r + η_μ from the true mean. For η_Σ < 1/2 this range lies
    within the bound of Theorem 2 on both sides.
    """
    reach = distances.to(torch.float64).clamp_min(0).sqrt()
    eta_cov = torch.as_tensor(eta_cov, dtype=torch.float64, device=reach.device)
    low = (reach - eta_mean).clamp_min(0).square() / (1 + eta_cov)
    high = (reach + eta_mean).square() / (1 - eta_cov)
    return low, torch.where(eta_cov < 1, high, torch.inf)


def certified_range(low: Tensor, high: Tensor, predicted: Tensor) -> Tensor:
    """Where the true distance of the predicted class is below that of every other, whatever they are within their
    ranges, bool [B]: low and high [B, C] of `distance_range`, predicted [B]."""
    own = predicted[:, None]
    others = low.scatter(1, own, torch.inf).amin(1)
    return high.gather(1, own)[:, 0] < others


def certified(distances: Tensor, bounds: Tensor) -> Tensor:
    """Where no distance within its bound can change the prediction (GATF, Theorem 2), bool [B].

    `distances` [B, C] are the known ones (d̂), `bounds` [B, C] their ε from `score_bound`. With y = argmin d̂, certified
    means min_{c≠y} d̂_c − d̂_y > ε_y + max_{c≠y} ε_c; then d_c ≥ d̂_c − ε_c > d̂_y + ε_y ≥ d_y for every c ≠ y.
    """
    predicted = distances.argmin(1)  # [B]
    own = predicted[:, None]
    bounds = bounds.to(torch.float64)
    worst_other = bounds.scatter(1, own, 0.0).amax(1)
    return margins(distances, predicted) > bounds.gather(1, own)[:, 0] + worst_other
