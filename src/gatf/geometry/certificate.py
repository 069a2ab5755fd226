"""Theorem 2 of GATF (Xu & Krawczyk, ECCV 2026): how far a Mahalanobis distance can be off, and when that is harmless.

Two Gaussians of one class are compared, the true one (μ, Σ) and the estimate (μ̂, Σ̂), with ‖μ̂ − μ‖₂ ≤ η_μ and
‖Σ̂ − Σ‖₂ ≤ η_Σ (spectral norm). Distances are the raw d = (z − μ)ᵀΣ⁻¹(z − μ) of Eq. 3: the theorem says nothing of
the correlation-normalised "bayes" readout. If the matrices are shrunk by spd.shrink(Σ, a), λ_min is that of the shrunk
one and η_Σ grows to (1 + a)·η_Σ, because mean(diag) moves by at most η_Σ.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
