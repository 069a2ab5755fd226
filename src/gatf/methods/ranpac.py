"""RanPAC (McDonnell, Gong, Parvaneh, Abbasnejad, van den Hengel: "RanPAC: Random Projections and Pre-trained Models for
Continual Learning", NeurIPS 2023)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn.functional import one_hot

from gatf.geometry.moments import PooledMoments
from gatf.geometry.readout import ridge_readout
from gatf.methods.parts.closed_form import ClosedForm, ClosedFormConfig, LinearRule, MomentMemory, RandomFeatures
from gatf.seeding import generator
from gatf.settings import Positive

RIDGES = tuple(10.0**power for power in range(-8, 9))
HELD_OUT = 0.2
FEWEST_TO_SPLIT = 5
"""Images that a task must have for some to be held out."""


class RanPACConfig(ClosedFormConfig):
    name: str = "ranpac"
    preset: Literal["light", "paper"] = "light"
    """A projection for a CPU, or the paper's, whose sums take 400 MB."""
    projections: PositiveInt = 2000
    """M: number of random features."""
    ridge: Positive | None = None
    """λ of the regression. Default: of 10⁻⁸ … 10⁸ the one with the least squared error on a held-out fifth of the
    images of all seen tasks (paper: of the current task)."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"method": {"projections": 10_000}}}


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
    errors: Tensor

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        width = self.config.projections
        self.projection = self.make(lambda: RandomFeatures(torch.randn(self.feature_dim, width)), "projection")
        self.memory = MomentMemory(width)
        self.rule = LinearRule(width)
        self.register_buffer("errors", torch.zeros(len(RIDGES), dtype=torch.float64))

    def embedded(self, features: Tensor) -> Tensor:
        return torch.relu(self.projection(features))

    def tune(self, features: Tensor, labels: Tensor, task: int) -> None:
        if self.config.ridge is None and len(features) >= FEWEST_TO_SPLIT:
            mixed = torch.randperm(len(features), generator=generator(self.seed, "ridge", task))
            held_out = torch.zeros(len(features), dtype=torch.bool)
            held_out[mixed[: int(HELD_OUT * len(features))]] = True
            self.errors += held_out_errors(self.embedded(features), labels, held_out.to(labels.device))

    def solve(self, total: PooledMoments) -> None:
        ridge = self.config.ridge
        if ridge is None and bool(self.errors.any()):
            ridge = RIDGES[int(self.errors.argmin())]
        elif ridge is None:  # no task had images to hold out: the mean square of the features shrinks strongly
            ridge = float(total.gram().diagonal().mean()) or 1.0
        self.rule.set(ridge_readout(total.gram(), total.sums(), ridge))
        self.note("regression", ridge=ridge)
