"""Devices: which one is meant, and how tensors get there without a wait."""

import torch
from torch import Tensor

from gatf.errors import UserError


def check_device(name: str) -> None:
    """Refuse a device that gatf cannot compute on, or that this machine or this build of torch does not have."""
    if name == "mps":
        raise UserError(
            "device=mps cannot be used: the geometry is in float64, which Apple's GPUs do not have; use device=cpu"
        )
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device={name}, but torch finds no such device here; use device=cpu or auto")


def available_device(name: str) -> str:
    """The device that is meant: "auto" is CUDA where there is one, else the CPU."""
    check_device(name)
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`. From the CPU to another device it goes through pinned memory and is not waited for."""
    if tensor.device.type != "cpu" or device.type == "cpu":
        return tensor.to(device)
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)
