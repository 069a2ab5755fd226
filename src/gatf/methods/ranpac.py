"""RanPAC (McDonnell, Gong, Parvaneh, Abbasnejad, van den Hengel: "RanPAC: Random Projections and Pre-trained Models for
Continual Learning", NeurIPS 2023)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import one_hot

from gatf.geometry.moments import PooledMoments
from gatf.geometry.readout import ridge_readout
from gatf.methods.base import TaskInfo
from gatf.methods.card import MethodCard
from gatf.methods.parts.closed_form import ClosedForm, ClosedFormConfig, LinearRule, MomentMemory
from gatf.seeding import generator
from gatf.settings import Positive

RIDGES = tuple(10.0**power for power in range(-8, 9))
HELD_OUT = 0.2
FEWEST_TO_SPLIT = 5
"""Images that a task must have for some to be held out."""


class RanPACConfig(ClosedFormConfig):
    name: str = "ranpac"
    preset: Literal["light", "paper"] = "light"
    """A projection that is quickly solved on a CPU, or the paper's, whose sums take 400 MB."""
    projections: PositiveInt = 2000
    """M: random features that the backbone's are projected to."""
    ridge: Positive | None = None
    """λ of the regression. Default: of 10⁻⁸, 10⁻⁷, … 10⁸ the one with the least squared error on a fifth of each task's
    images, held out from the rest of it, summed over the tasks so far (the paper takes the current task's alone)."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"method": {"projections": 10_000}}}


class RandomReLU(nn.Module):
    """relu(zᵀW), float64. W is drawn once from a standard normal law and kept: another machine or version might draw
    another."""

    weight: Tensor

    def __init__(self, dim: int, features: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(dim, features))

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(features.double() @ self.weight.double())  # rounded alike in batches of any size


def held_out_errors(features: Tensor, labels: Tensor, held_out: Tensor) -> Tensor:
    """For each of `RIDGES` the squared error on the held-out rows (bool [N]) of ridge regression on the others.

    Features [N, M] in float64, labels [N]; targets are one-hot among the classes there are. One eigendecomposition, of
    the smaller of FᵀF and FFᵀ, serves all ridges.
    """
    targets = one_hot(labels.unique(return_inverse=True)[1]).double()
    kept, asked = features[~held_out], features[held_out]
    if len(kept) < kept.shape[1]:  # W = Fᵀ(FFᵀ + λI)⁻¹Y
        values, vectors = torch.linalg.eigh(kept @ kept.mT)
        left, right = asked @ (kept.mT @ vectors), vectors.mT @ targets[~held_out]
    else:  # W = (FᵀF + λI)⁻¹FᵀY
        values, vectors = torch.linalg.eigh(kept.mT @ kept)
        left, right = asked @ vectors, vectors.mT @ (kept.mT @ targets[~held_out])
    values = values.clamp_min(0)
    answers = (left / (values + ridge) @ right for ridge in RIDGES)
    return torch.stack([(answer - targets[held_out]).square().sum() for answer in answers])


class RanPAC(ClosedForm[RanPACConfig]):
    """Ridge regression on random features of the frozen network's features."""

    name = "ranpac"
    Config = RanPACConfig
    card = MethodCard(
        summary="frozen backbone; ridge regression on a random projection, solved from sums (NeurIPS 2023)",
        when="when the backbone is frozen, features have few dimensions and there are many images",
        keeps="mean and count of each class in the projection; one Gram matrix for all",
        trains="backbone at task 0, unless its weights are pretrained; later nothing",
        authors=("Mark D. McDonnell", "Dong Gong", "Amin Parvaneh", "Ehsan Abbasnejad", "Anton van den Hengel"),
        title="RanPAC: Random Projections and Pre-trained Models for Continual Learning",
        venue="NeurIPS",
        year=2023,
        url="https://arxiv.org/abs/2307.02251",
    )  # fmt: skip
    errors: Tensor

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        width = self.config.projections
        self.projection = self.make(lambda: RandomReLU(self.feature_dim, width), "projection")
        self.memory = MomentMemory(width)
        self.rule = LinearRule(width)
        self.register_buffer("errors", torch.zeros(len(RIDGES), dtype=torch.float64))

    def learn(self, features: Tensor, labels: Tensor, task: TaskInfo) -> None:
        total = self.memory.add(features, labels, classes=task.seen, transform=self.projection)
        ridge = self.config.ridge
        if ridge is None:
            if len(features) >= FEWEST_TO_SPLIT:
                self.errors += self._held_out_errors(features, labels, task)
            ridge = self._best_ridge(total)
        self.rule.set(ridge_readout(total.gram(), total.sums(), ridge))
        self.note("regression", ridge=ridge)

    def _held_out_errors(self, features: Tensor, labels: Tensor, task: TaskInfo) -> Tensor:
        mixed = torch.randperm(len(features), generator=generator(self.seed, "ridge", task.index))
        held_out = torch.zeros(len(features), dtype=torch.bool)
        held_out[mixed[: int(HELD_OUT * len(features))]] = True
        return held_out_errors(self.projection(features), labels, held_out.to(labels.device))

    def _best_ridge(self, total: PooledMoments) -> float:
        """Where no task had images to hold out, the features' mean square, which shrinks strongly."""
        if bool(self.errors.any()):
            return RIDGES[int(self.errors.argmin())]
        return float(total.gram().diagonal().mean()) or 1.0

    def feature_scores(self, features: Tensor) -> Tensor:
        scores: Tensor = self.rule(self.projection(features))
        return scores

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()
