"""Weights tied to where they were, each as stiffly as it mattered: the penalty of EWC and of SDC's E-EWC and E-MAS."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Springs(nn.Module):
    """Importance and anchor of each parameter, by name, [penalties, *shape]: one penalty, or one a past task.

    The set is whatever a loaded state holds.
    """

    _where: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_where", torch.empty(0), persistent=False)  # knows the device

    def items(self) -> list[tuple[str, Tensor, Tensor]]:
        """Name, importance and anchor of every parameter that has one."""
        keys = [key.removeprefix("anchor/") for key in self._buffers if key.startswith("anchor/")]
        return [
            (key.replace("/", "."), getattr(self, f"importance/{key}"), getattr(self, f"anchor/{key}")) for key in keys
        ]

    def set(self, name: str, importance: Tensor, anchor: Tensor) -> None:
        key = name.replace(".", "/")  # a dot cannot be part of a buffer's name
        self.register_buffer(f"importance/{key}", importance)
        self.register_buffer(f"anchor/{key}", anchor)

    def penalty(self, parameters: dict[str, nn.Parameter]) -> Tensor:
        """½·Σ_p F_p (θ_p − θ*_p)² (Kirkpatrick et al., before λ)."""
        terms = [(importance * (parameters[name] - anchor).square()).sum() for name, importance, anchor in self.items()]
        return 0.5 * torch.stack(terms).sum()

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        for key in [key for key in self._buffers if "/" in key]:
            del self._buffers[key]
        for key, value in state_dict.items():
            if key.startswith(prefix):
                self.register_buffer(key.removeprefix(prefix), torch.empty_like(value, device=self._where.device))
        super()._load_from_state_dict(state_dict, prefix, *args)


@contextmanager
def buffers_restored(net: nn.Module) -> Iterator[None]:
    """Inside, batch-norm may move its running statistics; afterwards they are what they were."""
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    try:
        yield
    finally:
        for name, buffer in net.named_buffers():
            buffer.copy_(before[name])
