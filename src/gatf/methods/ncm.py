"""Nearest class mean on a frozen network (Mensink, Verbeek, Perronnin, Csurka: "Distance-Based Image Classification:
Generalizing to New Classes at Near-Zero Cost", PAMI 2013)."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from gatf.geometry.readout import nearest_mean_distances
from gatf.methods.base import TaskInfo
from gatf.methods.card import MethodCard
from gatf.methods.parts.closed_form import ClosedForm, ClosedFormConfig
from gatf.methods.parts.extraction import Growing
from gatf.methods.parts.prototypes import Metric


class NCMConfig(ClosedFormConfig):
    name: str = "ncm"
    metric: Metric = "cosine"
    """Distance between unit vectors (cosine), or between the vectors themselves (euclidean)."""


class MeanMemory(Growing):
    """Count and mean of every class, float64."""

    counts: Tensor
    means: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("means", torch.zeros(0, dim, dtype=torch.float64))

    def add(self, features: Tensor, labels: Tensor, *, classes: int) -> None:
        """Features [N, S], labels [N]; a class that is known goes on, others are appended."""
        members = one_hot(labels, classes).double()  # [N, C]
        more, grown = members.sum(0), classes - len(self.counts)
        counts, means = pad(self.counts, (0, grown)), pad(self.means, (0, 0, 0, grown))
        away = members.T @ features.double() - more[:, None] * means  # Σ (z − mean so far)
        self.counts = counts + more
        self.means = means + away / self.counts.clamp_min(1)[:, None]


class NCM(ClosedForm[NCMConfig]):
    """A class is the mean of its features."""

    name = "ncm"
    Config = NCMConfig
    card = MethodCard(
        summary="frozen backbone; nearest class mean, for any order of classes (TPAMI 2013)",
        when="when there are fewer than three images per class",
        keeps="mean and count of each class",
        trains="backbone at task 0, unless its weights are pretrained; later nothing",
        authors=("Thomas Mensink", "Jakob Verbeek", "Florent Perronnin", "Gabriela Csurka"),
        title="Distance-Based Image Classification: Generalizing to New Classes at Near-Zero Cost",
        venue="IEEE TPAMI",
        journal=True,
        year=2013,
        url="https://doi.org/10.1109/TPAMI.2013.83",
    )  # fmt: skip

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.memory = MeanMemory(self.feature_dim)

    def learn(self, features: Tensor, labels: Tensor, task: TaskInfo) -> None:
        self.memory.add(features, labels, classes=task.seen)

    def feature_scores(self, features: Tensor) -> Tensor:
        return -nearest_mean_distances(features, self.memory.means, normalise=self.config.metric == "cosine")

    def centres(self) -> Tensor:
        return self.memory.means

    def bytes_per_class(self) -> int:
        return self.memory.means.element_size() * (self.feature_dim + 1)
