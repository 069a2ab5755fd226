"""Random inputs the geometry tests share."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

MakeSpd = Callable[..., Tensor]


@pytest.fixture(scope="session")
def make_spd() -> MakeSpd:
    """make_spd(generator, *batch, S, lowest=0.1): SPD [*batch, S, S], eigenvalues uniform in [lowest, lowest + 2]."""

    def make(generator: torch.Generator, *shape: int, lowest: float = 0.1) -> Tensor:
        *batch, dim = shape
        gaussian = torch.randn(*batch, dim, dim, generator=generator, dtype=torch.float64)
        basis = torch.linalg.qr(gaussian).Q
        values = lowest + 2 * torch.rand(*batch, 1, dim, generator=generator, dtype=torch.float64)
        matrix = (basis * values) @ basis.mT
        return (matrix + matrix.mT) / 2

    return make
