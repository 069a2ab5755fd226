"""Checkpoints: tensors in safetensors, everything else as JSON in its header. Loading runs no code."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gatf.errors import UserError

FORMAT = 1


def save(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Write tensors and JSON-able metadata; the file appears complete, by rename, or not at all."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": str(FORMAT), "digest": _digest(plain), "meta": json.dumps(meta)}
    partial = path.with_name(path.name + ".partial")
    save_file(plain, partial, metadata=header)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint back, checking that it is whole."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint at {path}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"checkpoint {path} is damaged ({error}); delete it to go on from an earlier one") from None
    if header.get("format") != str(FORMAT):
        raise UserError(f"checkpoint {path} has format {header.get('format')}, this version reads {FORMAT}")
    if header.get("digest") != _digest(tensors):
        raise UserError(f"checkpoint {path} is damaged (its contents do not match its checksum); delete it to go on")
    return tensors, json.loads(header["meta"])


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


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
    """Put saved tensors back, in the memory layout of their parameters."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimiser."):
            _, index, name = key.split(".")
            parameter = parameters[int(index)]
            if value.shape == parameter.shape:
                value = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
            state.setdefault(int(index), {})[name] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
