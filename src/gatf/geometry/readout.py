"""From Gaussians to predictions: the readouts shared by every Gaussian method (AdaGauss, FeCAM, GATF)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gatf.geometry import spd
from gatf.geometry.gaussians import Gaussians

CHUNK_ELEMENTS = 2 * 2**20
"""Float64 elements of one [classes, rows, S] intermediate (16 MB)."""
CHUNK_ROWS = 1024
"""Feature rows compared with a chunk of classes at once."""
NORM_GUARD = 1e-12
"""Smallest norm a vector is divided by."""


def _unit(vectors: Tensor) -> Tensor:
    return functional.normalize(vectors, dim=-1, eps=NORM_GUARD)


@dataclass(frozen=True)
class QuadraticReadout:
    """Squared Mahalanobis distances (u − v_c)ᵀ M_c⁻¹ (u − v_c), M_c = L_c L_cᵀ; scores are their negatives."""

    centres: Tensor
    """v_c, already of unit norm when `normalise`, [C, S]."""
    whiteners: Tensor
    """L_c⁻¹, [C, S, S]."""
    normalise: bool
    """Whether features are divided by their norm first."""
    repaired: Tensor | None = None
    """Classes whose matrix needed the ladder of spd.cholesky, bool [C]."""

    @classmethod
    def of(cls, centres: Tensor, matrices: Tensor, *, normalise: bool) -> QuadraticReadout:
        """Factorise M_c once: centres [C, S], matrices [C, S, S]."""
        centres = centres.to(torch.float64)
        factor = spd.cholesky(matrices)
        eye = torch.eye(centres.shape[-1], dtype=torch.float64, device=centres.device)
        whiteners = torch.linalg.solve_triangular(factor.lower, eye.expand_as(factor.lower), upper=False)
        return cls(_unit(centres) if normalise else centres, whiteners, normalise, factor.repaired)

    def distances(self, features: Tensor) -> Tensor:
        """‖L_c⁻¹(u − v_c)‖², [B, S] → [B, C].

        Differences are taken before whitening, so features far from the origin keep their digits; chunks keep the
        [classes, rows, S] intermediate small.
        """
        features = features.to(self.centres)
        features = _unit(features) if self.normalise else features
        classes, dim = self.centres.shape
        out = features.new_empty(len(features), classes)
        rows_at_once = min(CHUNK_ROWS, max(1, CHUNK_ELEMENTS // dim))
        for row in range(0, len(features), rows_at_once):
            rows = slice(row, row + rows_at_once)
            classes_at_once = max(1, CHUNK_ELEMENTS // (len(features[rows]) * dim))
            for start in range(0, classes, classes_at_once):
                chunk = slice(start, start + classes_at_once)
                offsets = features[rows] - self.centres[chunk, None, :]  # [c, b, S]
                out[rows, chunk] = (offsets @ self.whiteners[chunk].mT).square().sum(-1).mT
        return out


def bayes_readout(gaussians: Gaussians, shrink: float = 3.0, *, normalise: bool = True) -> QuadraticReadout:
    """The "bayes" rule of AdaGauss: M_c = sh(Σ_c, shrink), without log-determinant or prior.

    With `normalise`, M_c is the correlation matrix of that, and features and means are divided by their norms, although
    Σ_c is of features that were not: so in the release, and deliberate.
    """
    matrices = spd.shrink(gaussians.covs, shrink)
    return QuadraticReadout.of(
        gaussians.means, spd.correlation(matrices) if normalise else matrices, normalise=normalise
    )


def mahalanobis_readout(gaussians: Gaussians, shrink: float = 1e-3) -> QuadraticReadout:
    """GATF, Eq. 3 taken literally: (z − μ_c)ᵀ sh(Σ_c, shrink)⁻¹ (z − μ_c) on raw features."""
    return bayes_readout(gaussians, shrink, normalise=False)


def nearest_mean_distances(features: Tensor, means: Tensor, *, normalise: bool = False) -> Tensor:
    """‖z − μ_c‖², [B, S] and [C, S] → [B, C]; with `normalise` between unit vectors, that is 2 − 2·cosine.

    Expanded as ‖z‖² − 2zᵀμ + ‖μ‖² around the centre of the means, which spares the digits a common offset would cost.
    """
    features, means = features.to(torch.float64), means.to(torch.float64)
    if normalise:
        features, means = _unit(features), _unit(means)
    origin = means.mean(0)
    features, means = features - origin, means - origin
    squares = features.square().sum(-1)[:, None] + means.square().sum(-1)  # [B, C]
    return (squares - 2 * features @ means.mT).clamp_min(0)


def margins(distances: Tensor, labels: Tensor) -> Tensor:
    """min_{c≠y} d_c − d_y, [B, C] and [B] → [B]: positive where the label is the nearest class, +inf if alone."""
    distances = distances.to(torch.float64)
    labels = labels.to(distances.device)[:, None]
    others = distances.scatter(1, labels, torch.inf).amin(1)
    return others - distances.gather(1, labels)[:, 0]


def linear_from_samples(
    gaussians: Gaussians,
    *,
    generator: torch.Generator,
    epochs: int = 30,
    samples_per_epoch: int = 10_000,
    batch: int = 128,
    lr: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    milestone: int = 15,
    clip: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The "linear" rule of AdaGauss: a softmax classifier trained from scratch on samples of the stored Gaussians.

    Each epoch draws fresh samples (a class uniformly, then one vector of its Gaussian, covariance as stored), cross
    entropy, SGD; the rate drops tenfold at `milestone`, the gradient norm is clipped. Trained in float32; returns
    weight [C, S] and bias [C] in float64. Predict argmax of weight·z + bias on raw features.
    """
    device, home = gaussians.means.device, generator.device
    classes, dim = gaussians.means.shape
    with torch.inference_mode(False), torch.enable_grad():
        means = gaussians.means.to(torch.float32)
        lowers = spd.cholesky(gaussians.covs).lower.to(torch.float32)
        # torch's default for a linear layer, drawn from our generator: uniform within ±1/√S
        start = (2 * torch.rand(classes, dim + 1, generator=generator, device=home, dtype=torch.float32) - 1) / dim**0.5
        weight = start[:, :dim].to(device).clone().requires_grad_()
        bias = start[:, dim].to(device).clone().requires_grad_()
        optimiser = torch.optim.SGD([weight, bias], lr=lr, momentum=momentum, weight_decay=weight_decay)
        for epoch in range(epochs):
            if epoch == milestone:
                optimiser.param_groups[0]["lr"] = lr / 10
            labels = torch.randint(classes, (samples_per_epoch,), generator=generator, device=home).to(device)
            noise = torch.randn(samples_per_epoch, dim, generator=generator, device=home, dtype=torch.float32).to(
                device
            )
            for chosen, draws in zip(torch.split(labels, batch), torch.split(noise, batch), strict=True):
                drawn = means[chosen] + (lowers[chosen] @ draws[:, :, None])[:, :, 0]  # [batch, S]
                loss = functional.cross_entropy(functional.linear(drawn, weight, bias), chosen)
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                torch.nn.utils.clip_grad_norm_([weight, bias], clip)
                optimiser.step()
    return weight.detach().to(torch.float64), bias.detach().to(torch.float64)
