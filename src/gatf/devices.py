"""Devices: which one is meant, how tensors get there without a wait, and whether results repeat bit for bit."""

import os
from typing import Literal

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


def check_float64(device: torch.device) -> None:
    """Refuse a device that has no float64, in which the geometry is computed."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        raise UserError(
            f"device={device.type} cannot be used: it has no float64, in which the geometry is computed; use device=cpu"
        ) from None


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`. From the CPU to another device it goes through pinned memory and is not waited for."""
    if tensor.device.type != "cpu" or device.type == "cpu":
        return tensor.to(device)
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)


Determinism = Literal["auto"] | bool


def set_determinism(wanted: Determinism, device: torch.device) -> None:
    """What a CUDA device may do for speed, for the whole process; a CPU repeats its bits anyway.

    `auto`: cuDNN and cuBLAS choose algorithms that repeat their bits, and float32 products are not rounded to TF32.
    `True`: also refuse operations that do not repeat theirs. `False`: cuDNN times its algorithms, TF32 is used.
    """
    if device.type != "cuda":
        return
    repeats = wanted is not False
    if repeats:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
    torch.backends.cudnn.deterministic = repeats
    torch.backends.cudnn.benchmark = not repeats
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not repeats
    torch.use_deterministic_algorithms(wanted is True)


def numerics(device: torch.device) -> str:
    """What the bits of a forward pass depend on beside network and images, for the key of a cache."""
    return f"cuda, tf32 {torch.backends.cudnn.allow_tf32}" if device.type == "cuda" else device.type
