"""scikit-learn's linear classifiers with one row of weights per class, whatever the number of classes."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

MAX_ITERATIONS = 100_000
"""Of liblinear, per class; a dozen is usual."""


def fit_svm(
    features: Tensor, labels: Tensor, *, classes: int, penalty: float = 1.0, tolerance: float = 1e-4
) -> tuple[Tensor, Tensor]:
    """One-vs-rest linear SVMs: min ½‖w_c‖² + ½b_c² + C·Σ_i max(0, 1 − y_i(w_cᵀx_i + b_c))², y_i = ±1.

    features [N, D], labels [N] → weight [classes, D] and bias [classes] in float64, on the device of the features;
    liblinear solves on the CPU. A single class has nothing to be separated from: its weights are zero.
    """
    from sklearn.svm import LinearSVC

    if classes == 1:
        return features.new_zeros(1, features.shape[1], dtype=torch.float64), features.new_zeros(1, dtype=torch.float64)
    solver = LinearSVC(dual=False, C=penalty, tol=tolerance, max_iter=MAX_ITERATIONS)
    solver.fit(features.double().cpu().numpy(), labels.cpu().numpy())
    weight, bias = rows_per_class(solver)
    return weight.to(features.device), bias.to(features.device)


def rows_per_class(solver: "LinearSVC | LogisticRegression") -> tuple[Tensor, Tensor]:
    """Weight [C, D] and bias [C] of a fitted classifier in float64. For two classes scikit-learn keeps the row of the
    second alone; the first has its negative."""
    # scikit-learn's columns are contiguous; rows are what a saved model has, and the order decides the last bits
    weight, bias = torch.from_numpy(solver.coef_).double().contiguous(), torch.from_numpy(solver.intercept_).double()
    return (torch.cat([-weight, weight]), torch.cat([-bias, bias])) if len(weight) == 1 else (weight, bias)
