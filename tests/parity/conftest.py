"""What the official code computed: one file of numbers for each method, read by that method's test."""

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

Recorded = Callable[..., dict[str, Tensor]]


@pytest.fixture(scope="session")
def recorded() -> Recorded:
    """`recorded("fecam")`: the tensors of fecam.safetensors by name; `recorded("fecam", "head/")`: only head/…."""

    def load(method: str, prefix: str = "") -> dict[str, Tensor]:
        tensors = load_file(Path(__file__).parent / f"{method}.safetensors")
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    return load
