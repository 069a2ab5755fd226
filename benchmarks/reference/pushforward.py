"""Transport of class Gaussians as it is usually written: a loop over classes, fresh samples for each.

What `benchmarks/pushforward.py` compares with, from the description of AdaGauss (Rypeść et al., NeurIPS 2024, Alg. 1):
draw from N(μ_c, Σ_c), map, take mean and covariance of the images. In float32, as networks are.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal


@torch.no_grad()
def push_forward(
    means: Tensor, covs: Tensor, adapter: Callable[[Tensor], Tensor], samples: int
) -> tuple[Tensor, Tensor]:
    """Means [C, S] and covariances [C, S, S] of the images of all classes."""
    new_means, new_covs = [], []
    for mean, cov in zip(means, covs, strict=True):
        drawn = MultivariateNormal(mean, cov).sample((samples,))
        mapped = adapter(drawn)
        new_means.append(mapped.mean(0))
        new_covs.append(torch.cov(mapped.T))
    return torch.stack(new_means), torch.stack(new_covs)
