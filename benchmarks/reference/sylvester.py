"""The anchor's equation P Σ_o + ρ Σ_n P = K by SciPy: Bartels–Stewart, for any two matrices.

What `benchmarks/anchor.py` compares with: the routine one would reach for.
"""

import scipy.linalg
import torch
from torch import Tensor


def solve(cov_old: Tensor, cov_new: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """P, [S_new, S_old], float64: A X + X B = Q with A = ρ Σ_n, B = Σ_o, Q = K."""
    return torch.from_numpy(scipy.linalg.solve_sylvester((ridge * cov_new).numpy(), cov_old.numpy(), cross.numpy()))
