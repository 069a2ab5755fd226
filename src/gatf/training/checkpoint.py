"""Checkpoints: the file format of models, with the position of the training. Loading runs no code."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gatf.errors import UserError
from gatf.io import container


def save(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Write tensors and JSON-able metadata atomically."""
    container.write(path, tensors, meta, container.CHECKPOINT)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read and verify a checkpoint."""
    if not path.is_file():
        raise UserError(f"there is no checkpoint at {path}")
    try:
        tensors, header = container.read(path, container.CHECKPOINT)
    except container.Damaged as error:
        raise UserError(
            f"checkpoint {path} is damaged ({error.reason}); delete it to continue from an earlier one"
        ) from None
    return tensors, header.model


BUFFERS = {
    torch.optim.SGD: frozenset({"momentum_buffer"}),
    torch.optim.Adam: frozenset({"step", "exp_avg", "exp_avg_sq"}),
}
"""What each kind of optimiser keeps of a parameter."""


def flatten_optimiser(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's per-parameter tensors, named `optimiser.<parameter>.<buffer>`."""
    state = optimiser.state_dict()["state"]
    return {
        f"optimiser.{index}.{name}": value
        for index, buffers in state.items()
        for name, value in buffers.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore saved tensors in the memory layout of their parameters; a `UserError` if they belong to another kind of
    optimiser or to other parameters."""
    known = frozenset[str]().union(*(names for kind, names in BUFFERS.items() if isinstance(optimiser, kind)))
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimiser."):
            index, _, name = key.removeprefix("optimiser.").partition(".")
            if name not in known or not index.isdecimal() or int(index) >= len(parameters):
                raise UserError("the checkpoint's optimiser differs from the config's; start a new run")
            parameter = parameters[int(index)]
            if value.ndim and value.shape != parameter.shape:
                raise UserError("the checkpoint's optimiser has other parameters than the config's; start a new run")
            if value.shape == parameter.shape:
                value = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
            state.setdefault(int(index), {})[name] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
