"""Tensors alone in a safetensors file."""

from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from gatf.io.files import new_file


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write them whole or not at all; whoever may read other files of the folder may read this one. (`save_file` alone
    leaves a file that only its owner can read.)"""
    with new_file(path) as partial:
        partial.touch()
        mode = partial.stat().st_mode
        save_file(tensors, partial)
        partial.chmod(mode)
