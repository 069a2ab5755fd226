"""Linear support vector machines for many classes at once."""

import torch
from torch import Tensor
from torch.nn import functional

NEWTON_STEPS = 100
"""Most outer steps; a dozen is usual."""
CG_STEPS = 100
"""Most products with the Hessian in one outer step."""
HALVINGS = 30
"""Most times a step is halved until the objective falls."""
TINY = 1e-300
"""Smallest number divided by."""


def fit_svm(
    features: Tensor, labels: Tensor, *, classes: int, penalty: float = 1.0, tolerance: float = 1e-4
) -> tuple[Tensor, Tensor]:
    """One-vs-rest linear SVMs: min ½‖w_c‖² + ½b_c² + C·Σ_i max(0, 1 − y_i(w_cᵀx_i + b_c))², y_i = ±1.

    What liblinear solves class by class (its bias is penalised too), here for all classes together: Newton steps by
    conjugate gradients with a line search, float64. features [N, D], labels [N] → weight [classes, D], bias [classes].
    Stops when every ‖gradient‖ ≤ tolerance·‖gradient at zero‖.
    """
    signs = 2.0 * functional.one_hot(labels, classes).double() - 1.0  # [N, C]
    rows = functional.pad(features.to(torch.float64), (0, 1), value=1.0)  # [N, D + 1]

    def objective(theta: Tensor, margins: Tensor) -> Tensor:
        hinge = (1 - signs * margins).clamp_min(0).square().sum(0)
        return theta.square().sum(1) / 2 + penalty * hinge  # [C]

    def newton_step(gradient: Tensor, active: Tensor) -> Tensor:
        """Solve H s = −g to a tenth of ‖g‖ (or better, near the end); H = I + 2C·Σ_active x xᵀ a class."""
        step, residual = torch.zeros_like(gradient), -gradient
        direction, size = residual.clone(), gradient.square().sum(1)
        precise = (size.sqrt() / first).clamp(max=0.1)
        goal = precise.square() * size
        for _ in range(CG_STEPS):
            if bool((size <= goal).all()):
                break
            curved = direction + 2 * penalty * ((rows @ direction.T) * active).T @ rows
            rate = size / (direction * curved).sum(1).clamp_min(TINY)
            rate = torch.where(size > goal, rate, 0.0)[:, None]
            step, residual = step + rate * direction, residual - rate * curved
            size, before = residual.square().sum(1), size
            direction = residual + (size / before.clamp_min(TINY))[:, None] * direction
        return step

    theta = rows.new_zeros(classes, rows.shape[1])
    margins = torch.zeros_like(signs)
    first = rows.new_ones(classes)
    for number in range(NEWTON_STEPS):
        active = (signs * margins < 1).double()
        gradient = theta + 2 * penalty * ((margins - signs) * active).T @ rows
        norms = gradient.norm(dim=1)
        first = norms.clamp_min(TINY) if number == 0 else first
        if bool((norms <= tolerance * first).all()):
            break
        step = newton_step(gradient, active)
        moved, slope, value = rows @ step.T, (gradient * step).sum(1), objective(theta, margins)
        rate = torch.ones_like(norms)
        for _ in range(HALVINGS):
            worse = objective(theta + rate[:, None] * step, margins + rate * moved) > value + 0.01 * rate * slope
            if not bool(worse.any()):
                break
            rate = torch.where(worse, rate / 2, rate)
        theta, margins = theta + rate[:, None] * step, margins + rate * moved
    return theta[:, :-1], theta[:, -1]
