"""Pure functions on float64 tensors: moments, covariances, the anchor, Gaussians, readouts, certificates.

>>> import torch
>>> features, labels = torch.tensor([[0.0, 1.0], [0.0, 3.0], [4.0, 1.0], [4.0, 3.0]]), torch.tensor([0, 0, 1, 1])
>>> found = gatf.geometry.class_moments(features, labels, classes=2)
>>> found.mean.tolist()
[[0.0, 2.0], [4.0, 2.0]]
>>> readout = gatf.geometry.bayes_readout(gatf.geometry.Gaussians(found.mean, found.covariance()))
>>> readout.scores(torch.tensor([[3.0, 2.0]])).argmax(1).tolist()
[1]
"""

from gatf.geometry.anchor import Affine, AnchorKind, fit_anchor, solve_ridge, solve_sylvester, solve_towards_identity
from gatf.geometry.certificate import (
    certified,
    certified_range,
    distance_range,
    score_bound,
    whitened_bound,
    whitened_errors,
)
from gatf.geometry.gaussians import Gaussians, push_affine, push_forward, sample, white_noise
from gatf.geometry.moments import Moments, PairedMoments, PooledMoments, class_moments
from gatf.geometry.readout import (
    QuadraticReadout,
    Readout,
    bayes_readout,
    linear_discriminant,
    mahalanobis_readout,
    margins,
    nearest_mean_distances,
    rda_readout,
    ridge_readout,
)
from gatf.geometry.spd import (
    Factor,
    blend,
    cholesky,
    clip_eigenvalues,
    condition_number,
    correlation,
    pack,
    shrink,
    symmetrise,
    unpack,
)

__all__ = [
    "Affine", "AnchorKind", "Factor", "Gaussians", "Moments", "PairedMoments", "PooledMoments",
    "QuadraticReadout", "Readout", "bayes_readout", "blend", "certified", "certified_range",
    "cholesky", "class_moments", "clip_eigenvalues", "condition_number", "correlation", "distance_range", "fit_anchor",
    "linear_discriminant", "mahalanobis_readout", "margins", "nearest_mean_distances", "pack",
    "push_affine", "push_forward", "rda_readout", "ridge_readout", "sample", "score_bound", "shrink", "solve_ridge",
    "solve_sylvester", "solve_towards_identity", "symmetrise", "unpack", "white_noise", "whitened_bound",
    "whitened_errors",
]  # fmt: skip
