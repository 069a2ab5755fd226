"""Tensors alone in a safetensors file."""

from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write them; whoever may read other files of the folder may read this one. (`save_file` alone leaves a file that
    only its owner can read.)"""
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path)
    path.chmod(mode)
