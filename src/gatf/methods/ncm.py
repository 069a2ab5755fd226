"""Nearest class mean on a frozen network (Mensink, Verbeek, Perronnin, Csurka: "Distance-Based Image Classification:
Generalizing to New Classes at Near-Zero Cost", PAMI 2013)."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.functional import one_hot, pad

from gatf.geometry.moments import PooledMoments
from gatf.geometry.readout import nearest_mean_distances
from gatf.methods.parts.closed_form import ClosedForm, ClosedFormConfig, MomentMemory
from gatf.methods.parts.prototypes import Metric


class NCMConfig(ClosedFormConfig):
    name: str = "ncm"
    metric: Metric = "cosine"
    """Distance between unit vectors (cosine), or between the vectors themselves (euclidean)."""


class MeanMemory(MomentMemory):
    """Count and mean of every class, float64, without a scatter."""

    has_scatter = False

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        del self.triangle

    def get(self) -> PooledMoments:
        return PooledMoments(self.counts, self.means, self.means.new_zeros(0, 0))

    def set(self, total: PooledMoments) -> PooledMoments:
        self.counts, self.means = total.counts, total.means
        return total

    def add(
        self, features: Tensor, labels: Tensor, *, classes: int, transform: Callable[[Tensor], Tensor]
    ) -> PooledMoments:
        """Features [N, S], labels [N]; known classes are updated, new ones appended."""
        features = transform(features)
        members = one_hot(labels, classes).double()  # [N, C]
        more, grown = members.sum(0), classes - len(self.counts)
        counts, means = pad(self.counts, (0, grown)), pad(self.means, (0, 0, 0, grown))
        away = members.T @ features.double() - more[:, None] * means  # Σ (z − mean before)
        self.counts = counts + more
        self.means = means + away / self.counts.clamp_min(1)[:, None]
        return self.get()


class NCM(ClosedForm[NCMConfig]):
    """A class is the mean of its features."""

    name = "ncm"
    Config = NCMConfig

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.memory = MeanMemory(self.feature_dim)

    def solve(self, total: PooledMoments) -> None:
        """The means are the classifier."""

    def feature_scores(self, features: Tensor) -> Tensor:
        return -nearest_mean_distances(features, self.memory.means, normalise=self.config.metric == "cosine")

    def centres(self) -> Tensor:
        return self.memory.means
