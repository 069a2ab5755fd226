"""The anchor of GATF as it runs along with the training of a task."""

from typing import Any

import torch
from torch import Tensor, nn

from gatf.geometry import anchor


class RunningAnchor(nn.Module):
    """The exponential moving average of the anchor (Sec. 3.3): buffers, never parameters."""

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
        self.register_buffer("steps", torch.tensor(ema.steps))
        self._value: anchor.Affine | None = None

    def update(self, estimate: anchor.Affine, restart: bool = False) -> None:
        """P̄ ← m P̄ + (1 − m) P̂, b̄ likewise; with `restart` the estimate stands alone."""
        ema = self._ema()
        if restart:
            ema = anchor.AnchorEMA.empty(len(self.bias), self.momentum, bias_correct=self.bias_correct)
        self.replace(ema.update(estimate))

    def forward(self, old: Tensor) -> Tensor:
        """Ā_lin(z) = P̄ z + b̄."""
        if self._value is None:
            exact = self._ema().value()
            self._value = anchor.Affine(exact.weight.to(old.dtype), exact.bias.to(old.dtype))
        return self._value(old)

    def _ema(self) -> anchor.AnchorEMA:
        return anchor.AnchorEMA(self.weight, self.bias, int(self.steps), self.momentum, self.bias_correct)

    def _load_from_state_dict(self, *args: Any) -> None:
        self._value = None
        super()._load_from_state_dict(*args)
