"""Linear classifiers that grow with the tasks."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

HeadInit = Literal["torch", "kaiming"]


def wide_linear(dim: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer as PyCIL starts it: weights uniform within ±√(3/D), a bias of zeros."""
    layer = nn.Linear(dim, outputs, bias=bias)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="linear")
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class Heads(nn.Module):
    """One linear layer per task; logits of all heads side by side. Takes whatever heads a loaded state has."""

    _where: Tensor

    def __init__(self, dim: int, bias: bool = True, init: HeadInit = "torch") -> None:
        super().__init__()
        self.dim, self.bias, self.init = dim, bias, init
        self.layers = nn.ModuleList()
        self.register_buffer("_where", torch.empty(0), persistent=False)  # knows the device while there is no head

    def grow(self, classes: int) -> nn.Linear:
        """Add a head of `classes` outputs: weights and bias uniform within ±1/√D, as torch has it, or ("kaiming") as
        `wide_linear` has it."""
        build = wide_linear if self.init == "kaiming" else nn.Linear
        head = build(self.dim, classes, bias=self.bias)
        self.layers.append(head.to(self._where.device))
        return head

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([head(features) for head in self.layers], dim=1)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        sizes: list[int] = []
        while (weight := state_dict.get(f"{prefix}layers.{len(sizes)}.weight")) is not None:
            sizes.append(len(weight))
        if sizes != [head.out_features for head in self.layers]:
            self.layers = nn.ModuleList()
            for size in sizes:
                self.grow(size)
        super()._load_from_state_dict(state_dict, prefix, *args)


class CosineHeads(nn.Module):
    """Logits s·cos(z, w_c) over all classes: one growing weight [C, D], one learned scale, no bias.

    As in LUCIR and the ADC, LDC and DPCR releases: new rows uniform within ±1/√D, the scale starts at 1 and is shared
    and trained by every task. Takes whatever shape a loaded state has.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.empty(0, dim))
        self.scale = nn.Parameter(torch.ones(()))

    def grow(self, classes: int) -> "CosineHeads":
        """Append rows for `classes` classes; the old rows and the scale stay."""
        rows = torch.empty(classes, self.dim).uniform_(-(self.dim**-0.5), self.dim**-0.5)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), rows.to(self.weight)]))
        return self

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * nn.functional.linear(
            nn.functional.normalize(features, dim=1), nn.functional.normalize(self.weight, dim=1)
        )

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        loaded = state_dict.get(prefix + "weight")
        if loaded is not None and loaded.shape != self.weight.shape:
            self.weight = nn.Parameter(self.weight.new_empty(loaded.shape))
        super()._load_from_state_dict(state_dict, prefix, *args)
