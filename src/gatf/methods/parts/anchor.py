"""The running estimate of the Analytic Geometric Anchor: settings, state, and the moments it is solved from."""

from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from gatf.geometry import anchor
from gatf.geometry.moments import PairedMoments
from gatf.methods.base import TaskData
from gatf.methods.parts.extraction import feature_pairs, of_all_processes
from gatf.settings import AffectsReadoutOnly, Fraction, Positive, Strict


class RunningAnchorConfig(Strict):
    """How the anchor is estimated during training."""

    ridge: Positive = 0.01
    """Regularisation ρ of the anchor."""
    refresh: PositiveInt = 10
    """K: epochs between two estimates."""
    ema: Fraction = 0.9
    """m: weight of earlier estimates in the running anchor."""


class AnchorConfig(RunningAnchorConfig):
    """The anchor of the map from old to new features."""

    kind: Literal["sylvester", "identity", "none"] = "sylvester"
    """Theorem 1; Theorem 1 shrunk towards the identity instead of zero, which needs fewer images; or no anchor, only an
    MLP."""
    final_refresh: AffectsReadoutOnly[bool] = False
    """After training, estimate the anchor once more for the drift that the residual does not explain."""


class RunningAnchor(nn.Module):
    """The exponential moving average of anchors over refreshes (GATF, Sec. 3.3), as buffers.

    With `bias_correct` it starts from zero and is divided by 1 − mᵏ, so that short runs do not stay near their first
    estimate, which is ≈ I. Without, the first estimate is the start, as in the release.
    """

    weight: Tensor
    """Accumulated P, [S, S]; not yet divided by 1 − mᵏ."""
    bias: Tensor
    """Accumulated b, [S]."""
    steps: Tensor
    """k, the refreshes seen."""

    def __init__(self, dim: int, momentum: float, bias_correct: bool) -> None:
        super().__init__()
        self.momentum, self.bias_correct = momentum, bias_correct
        self.register_buffer("weight", torch.zeros(dim, dim, dtype=torch.float64))
        self.register_buffer("bias", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self._value: anchor.Affine | None = None

    def update(self, estimate: anchor.Affine, restart: bool = False) -> None:
        """P̄ ← m P̄ + (1 − m) P̂, b̄ likewise; with `restart` the estimate replaces the average."""
        if restart:
            self.weight, self.bias, self.steps = (torch.zeros_like(each) for each in self.buffers())
        start = int(self.steps) == 0 and not self.bias_correct
        keep, take = (0.0, 1.0) if start else (self.momentum, 1 - self.momentum)
        self.weight = keep * self.weight + take * estimate.weight.to(self.weight)
        self.bias = keep * self.bias + take * estimate.bias.to(self.bias)
        self.steps = self.steps + 1
        self._value = None

    def value(self) -> anchor.Affine:
        """P̄ and b̄, float64."""
        if int(self.steps) == 0:
            raise ValueError("the moving average of the anchor has no value before its first update")
        seen = 1 - self.momentum ** int(self.steps) if self.bias_correct else 1.0
        return anchor.Affine(self.weight / seen, self.bias / seen)

    def forward(self, old: Tensor) -> Tensor:
        """Ā_lin(z) = P̄ z + b̄, [B, S] → [B, S]."""
        if self._value is None:
            exact = self.value()
            self._value = anchor.Affine(exact.weight.to(old.dtype), exact.bias.to(old.dtype))
        return self._value(old)

    def _load_from_state_dict(self, *args: Any) -> None:
        self._value = None
        super()._load_from_state_dict(*args)


@torch.no_grad()
def drift_moments(
    teacher: nn.Module, student: nn.Module, data: TaskData, *, dim: int, batch_size: int, purpose: str, epoch: int = 0,
    residual: nn.Module | None = None,
) -> PairedMoments:  # fmt: skip
    """Moments of (z_old, z_new) over one epoch of the task's augmented images, or of (z_old, z_new − g(z_old)) for a
    `residual` g."""
    total = PairedMoments.zeros(dim, dim, device=next(teacher.parameters()).device)
    for old, new in feature_pairs(teacher, student, data, batch_size=batch_size, purpose=purpose, epoch=epoch):
        total = total.merge(PairedMoments.of(old, new if residual is None else new - residual(old)))
    return of_all_processes(total)
