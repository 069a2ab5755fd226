"""Linear classifiers that grow with the tasks."""

from typing import Any

import torch
from torch import Tensor, nn


class Heads(nn.Module):
    """One linear layer a task; logits of all heads side by side. Takes whatever heads a loaded state has."""

    def __init__(self, dim: int, bias: bool = True) -> None:
        super().__init__()
        self.dim, self.bias = dim, bias
        self.layers = nn.ModuleList()

    def grow(self, classes: int) -> nn.Linear:
        """Add a head of `classes` outputs, framework-default init."""
        head = nn.Linear(self.dim, classes, bias=self.bias)
        self.layers.append(head.to(self._device()))
        return head

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([head(features) for head in self.layers], dim=1)

    def _device(self) -> torch.device:
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        sizes = []
        while (weight := state_dict.get(f"{prefix}layers.{len(sizes)}.weight")) is not None:
            sizes.append(len(weight))
        if sizes != [head.out_features for head in self.layers]:  # type: ignore[comparison-overlap]
            self.layers = nn.ModuleList()
            for size in sizes:
                self.grow(size)
        super()._load_from_state_dict(state_dict, prefix, *args)
