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
    """The exponential moving average of the anchor (GATF, Sec. 3.3), as buffers.

    With `bias_correct` the average is divided by 1 − mᵏ, so that short runs do not stay near their first estimate.
    """

    weight: Tensor
    bias: Tensor
    steps: Tensor

    def __init__(self, dim: int, momentum: float, bias_correct: bool) -> None:
        super().__init__()
        self.momentum, self.bias_correct = momentum, bias_correct
        self.replace(anchor.AnchorEMA.empty(dim, momentum, bias_correct=bias_correct))

    def replace(self, ema: anchor.AnchorEMA) -> None:
        self.register_buffer("weight", ema.weight)
        self.register_buffer("bias", ema.bias)
        self.register_buffer("steps", torch.full((), ema.steps, device=ema.weight.device))
        self._value: anchor.Affine | None = None

    def update(self, estimate: anchor.Affine, restart: bool = False) -> None:
        """P̄ ← m P̄ + (1 − m) P̂, b̄ likewise; with `restart` the estimate replaces the average."""
        ema = self._ema()
        if restart:
            ema = anchor.AnchorEMA.empty(
                len(self.bias), self.momentum, bias_correct=self.bias_correct, device=self.weight.device
            )
        self.replace(ema.update(estimate))

    def forward(self, old: Tensor) -> Tensor:
        """Ā_lin(z) = P̄ z + b̄, [B, S] → [B, S]."""
        if self._value is None:
            exact = self._ema().value()
            self._value = anchor.Affine(exact.weight.to(old.dtype), exact.bias.to(old.dtype))
        return self._value(old)

    def _ema(self) -> anchor.AnchorEMA:
        return anchor.AnchorEMA(self.weight, self.bias, int(self.steps), self.momentum, self.bias_correct)

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
