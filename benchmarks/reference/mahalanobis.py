"""Bayes scoring as it is usually written: all differences of a batch broadcast against all inverse covariances.

What `benchmarks/scoring.py` compares with. AdaGauss (Rypeść et al., NeurIPS 2024) describes the rule: squared
Mahalanobis distance of unit vectors, the covariance shrunk and normalised to a correlation matrix, then inverted.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

BATCH = 256
"""Features a batch: what a test loader hands over."""


def invert(covs: Tensor, shrink: float = 3.0) -> Tensor:
    """Inverses of the shrunk correlation matrices, float32 [C, S, S]."""
    covs = covs.float()
    variances = torch.diagonal(covs, dim1=1, dim2=2)  # [C, S]
    shrunk = covs + shrink * variances.mean(1)[:, None, None] * torch.eye(covs.shape[1])
    std = torch.diagonal(shrunk, dim1=1, dim2=2).sqrt()
    return torch.inverse(shrunk / (std[:, :, None] * std[:, None, :]))


def distances(features: Tensor, means: Tensor, inverses: Tensor) -> Tensor:
    """[B, S], [C, S], [C, S, S] → [B, C], as [B, C, 1, S] @ [C, S, S] @ [B, C, S, 1]."""
    offsets = normalize(features)[:, None] - normalize(means)[None]  # [B, C, S]
    return (offsets[:, :, None, :] @ inverses @ offsets[:, :, :, None])[:, :, 0, 0]


def score(features: Tensor, means: Tensor, inverses: Tensor, batch: int = BATCH) -> Tensor:
    """Distances of all features, a batch at a time, [N, S] → [N, C]."""
    return torch.cat([distances(part, means, inverses) for part in torch.split(features, batch)])
