"""Pure functions on float64 tensors: moments, covariances, the anchor, Gaussians, readouts, certificates."""

from gatf.geometry.anchor import (
    Affine,
    AnchorEMA,
    AnchorKind,
    anchor_objective,
    fit_anchor,
    solve_ridge,
    solve_sylvester,
    solve_towards_identity,
)
from gatf.geometry.certificate import (
    certified,
    certified_range,
    distance_range,
    score_bound,
    whitened_bound,
    whitened_errors,
)
from gatf.geometry.gaussians import Gaussians, pack, push_affine, push_forward, sample, unpack, white_noise
from gatf.geometry.moments import Moments, PairedMoments, class_moments
from gatf.geometry.readout import (
    QuadraticReadout,
    bayes_readout,
    linear_from_samples,
    mahalanobis_readout,
    margins,
    nearest_mean_distances,
)
from gatf.geometry.spd import (
    Factor,
    cholesky,
    clip_eigenvalues,
    condition_number,
    correlation,
    shrink,
    symmetrise,
)

__all__ = [
    "Affine",
    "AnchorEMA",
    "AnchorKind",
    "Factor",
    "Gaussians",
    "Moments",
    "PairedMoments",
    "QuadraticReadout",
    "anchor_objective",
    "bayes_readout",
    "certified",
    "certified_range",
    "cholesky",
    "class_moments",
    "clip_eigenvalues",
    "condition_number",
    "correlation",
    "distance_range",
    "fit_anchor",
    "linear_from_samples",
    "mahalanobis_readout",
    "margins",
    "nearest_mean_distances",
    "pack",
    "push_affine",
    "push_forward",
    "sample",
    "score_bound",
    "shrink",
    "solve_ridge",
    "solve_sylvester",
    "solve_towards_identity",
    "symmetrise",
    "unpack",
    "white_noise",
    "whitened_bound",
    "whitened_errors",
]
