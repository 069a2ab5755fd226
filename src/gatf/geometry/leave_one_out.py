"""Leave-one-out in closed form for the linear discriminant: how each learnt vector is classified by the rule that all
other vectors give, without learning again. No vector need be held out, and small updates are measured on all they have.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gatf.geometry import spd
from gatf.geometry.moments import PooledMoments


@dataclass(frozen=True)
class LeaveOneOut:
    """`linear_discriminant` of moments without one vector at a time. Shrinkage and noise are those of all vectors."""

    total: PooledMoments
    share: float
    allows_for_noise: bool = True
    """Whether the rule was solved with the counts of images (`linear_discriminant`)."""

    @cached_property
    def _lower(self) -> Tensor:
        """L of M = L·Lᵀ, the covariance as its divisor is without one vector, shrunk towards the level of all."""
        cov = self.total.covariance()
        level = cov.diagonal().mean()
        freedom = self.total.freedom()
        scale = freedom / max(freedom - 1, 1)
        eye = torch.eye(len(cov), dtype=cov.dtype, device=cov.device)
        return spd.cholesky((1 - self.share) * scale * cov + self.share * level * eye).lower

    def _whitened(self, vectors: Tensor) -> Tensor:
        solved: Tensor = torch.linalg.solve_triangular(self._lower, vectors.double().mT, upper=False)
        return solved.mT

    @cached_property
    def _means(self) -> Tensor:
        return self._whitened(self.total.means - self.total.means.mean(0))

    @cached_property
    def _noise(self) -> tuple[Tensor, Tensor]:
        """tr(M⁻¹Σ), and the mean squared distance of class means from their centre without its noise."""
        inverse = torch.cholesky_inverse(self._lower)
        trace = (inverse * self.total.covariance()).sum()
        lengths = self._means.square().sum(1)
        return trace, (lengths - trace / self.total.counts.clamp_min(1)).mean().clamp_min(0)

    def distances(self, vectors: Tensor) -> Tensor:
        """Squared distances of vectors [N, S] that were not learnt to the class means and, last, to the centre of the
        means, [N, C + 1]."""
        points = self._whitened(vectors.double() - self.total.means.mean(0))
        centre = torch.zeros(1, points.shape[1], dtype=points.dtype, device=points.device)
        return torch.cdist(points, torch.cat([self._means, centre])).square()

    def scores(self, vectors: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [N, C] of learnt vectors [N, S] of classes with two vectors or more, and squared distances in the
        same rule's metric from vectors to class means and, last, to the centre of the means, [N, C + 1].

        Without vector z of class c, the scatter loses n/(n − 1)·ddᵀ with d = z − μ_c, its mean moves by −d/(n − 1) and
        the centre of the means by a C-th of that. M⁻¹ follows by Sherman and Morrison, so all products are products of
        whitened vectors with all means, corrected along d.
        """
        counts, classes = self.total.counts, len(self.total.counts)
        vectors, n = vectors.double(), counts[labels]
        points = self._whitened(vectors - self.total.means.mean(0))  # y = L⁻¹(z − o)
        means = self._means
        products, gram = points @ means.mT, means @ means.mT  # [N, C], [C, C]
        lengths = gram.diagonal()
        own = products.gather(1, labels[:, None])[:, 0]
        along_point = points.square().sum(1) - own  # y·d
        along = products - gram[labels]  # x_k·d
        size = along_point - along.gather(1, labels[:, None])[:, 0]  # d·d
        gamma = (1 - self.share) / max(self.total.freedom() - 1, 1) * n / (n - 1)
        gain = (gamma / (1 - gamma * size).clamp_min(1e-9))[:, None]
        mine = torch.nn.functional.one_hot(labels, classes).double()
        step = 1 / ((n - 1) * classes)  # y and all x_k move by step·d, x_c by −d/(n − 1) more
        steps = step[:, None] - mine / (n - 1)[:, None]
        size, step = size[:, None], step[:, None]
        along_mean = along + steps * size
        product = products + step * along + steps * along_point[:, None] + steps * step * size
        product = product + gain * along_mean * (along_point[:, None] + step * size)
        length = lengths + 2 * steps * along + steps.square() * size + gain * along_mean.square()
        point = points.square().sum(1)[:, None] + 2 * step * along_point[:, None] + step.square() * size
        point = point + gain * (along_point[:, None] + step * size).square()
        distances = torch.cat([point - 2 * product + length, point], dim=1).clamp_min(0)
        if not self.allows_for_noise:
            return product - length / 2, distances
        trace, apart = self._noise
        noise = trace / (counts - mine).clamp_min(1)
        kept = torch.where(noise > 0, apart / (apart + noise), 1.0) if apart > 0 else torch.ones_like(noise)
        return kept * product - kept.square() * (length - noise) / 2, distances
