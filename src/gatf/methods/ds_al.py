"""DS-AL (Zhuang, He, Tong, Zeng, Chen, Lin: "DS-AL: A Dual-Stream Analytic Learning for Exemplar-Free Class-Incremental
Learning", AAAI 2024)."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from gatf.geometry import spd
from gatf.geometry.readout import ridge_readout
from gatf.methods.base import TaskInfo
from gatf.methods.parts.closed_form import ROWS, Analytic, AnalyticConfig, LinearRule
from gatf.methods.parts.extraction import Growing
from gatf.settings import NotNegative, Positive


class DSALConfig(AnalyticConfig):
    name: str = "ds-al"
    compensation: NotNegative = 0.6
    """C: weight of the compensation stream (paper: 0.6 on CIFAR-100, 1.5 on ImageNet)."""
    compensation_ridge: Positive = 0.1
    """γ of the regression in the compensation stream."""


class ResidualSums(Growing):
    """Gram matrix, as a packed triangle, and products with real-valued targets of all images seen; float64."""

    triangle: Tensor
    products: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("triangle", torch.zeros(dim * (dim + 1) // 2, dtype=torch.float64))
        self.register_buffer("products", torch.zeros(0, dim, dtype=torch.float64))

    def add(self, inputs: Tensor, targets: Tensor) -> None:
        """Inputs [N, D] and targets [N, C]; C may have grown."""
        self.triangle = self.triangle + spd.pack(inputs.mT @ inputs)
        grown = targets.shape[1] - len(self.products)
        self.products = pad(self.products, (0, 0, 0, grown)) + targets.mT @ inputs

    def gram(self) -> Tensor:
        return spd.unpack(self.triangle, self.dim)


class DSAL(Analytic[DSALConfig]):
    """ACIL, and a second regression, on tanh features, of its errors.

    Both streams share one random projection. The errors are those on a task right after the main stream learnt it, of
    the task's own classes alone (the paper's cleansing of previous labels). So the second stream depends on the order
    of the tasks, unlike the first.
    """

    name = "ds-al"
    Config = DSALConfig

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        width = self.config.projections
        self.residuals = ResidualSums(width)
        self.main, self.compensation = LinearRule(width), LinearRule(width)

    def learn(self, features: Tensor, labels: Tensor, task: TaskInfo) -> None:
        total = self.memory.add(features, labels, classes=task.seen, transform=self.embedded)
        self.main.set(ridge_readout(total.gram(), total.sums(), self.config.ridge))
        present = one_hot(labels, task.seen).amax(0)  # [C], 1 for the task's own classes
        for rows, numbers in zip(features.split(ROWS), labels.split(ROWS), strict=True):
            projected = self.buffer(rows)
            errors = one_hot(numbers, task.seen) - self.main(torch.relu(projected))
            self.residuals.add(torch.tanh(projected), errors * present)
        ridge = self.config.compensation_ridge
        self.compensation.set(ridge_readout(self.residuals.gram(), self.residuals.products, ridge))

    def feature_scores(self, features: Tensor) -> Tensor:
        projected = self.buffer(features)
        scores: Tensor = self.main(torch.relu(projected))
        return scores + self.config.compensation * self.compensation(torch.tanh(projected))

    def bytes_per_class(self) -> int:
        """A mean and a count for the main stream, a row of products for the other."""
        return self.memory.bytes_per_class() + self.residuals.products.element_size() * self.config.projections
