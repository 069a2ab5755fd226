"""Class prototypes and the nearest-mean rule."""

from typing import Literal

import torch
from torch import Tensor, nn

from gatf.errors import NotFinite
from gatf.geometry.readout import nearest_mean_distances
from gatf.methods.base import TaskData
from gatf.methods.parts.extraction import Growing, class_means, extract

Metric = Literal["cosine", "euclidean"]


class Prototypes(Growing):
    """One raw mean per class, [C, D] float32, and the nearest-mean rule on it."""

    means: Tensor

    def __init__(self, dim: int, metric: Metric = "cosine") -> None:
        super().__init__()
        self.dim, self.metric = dim, metric
        self.register_buffer("means", torch.zeros(0, dim))

    def learn(self, net: nn.Module, data: TaskData) -> None:
        """Append the means of the task's classes: training images under the test transform, `net` in eval mode."""
        features, labels = extract(net, data)
        means = class_means(features, labels - data.info.old, classes=data.info.new)
        self.means = torch.cat([self.means, finite(means.float())])

    def scores(self, features: Tensor) -> Tensor:
        """Minus the squared distance to every prototype, [B, C]."""
        return -nearest_mean_distances(features, self.means, normalise=self.metric == "cosine")

    def bytes_per_class(self) -> int:
        return self.means.element_size() * self.dim


def finite(prototypes: Tensor) -> Tensor:
    """The prototypes, or an error: a single one that is not finite would spoil the nearest-mean test of all."""
    if not bool(prototypes.isfinite().all()):
        raise NotFinite("a class prototype is not finite: training diverged, or a class has no images")
    return prototypes
