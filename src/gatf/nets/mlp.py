"""The small maps between feature spaces: adapter, projector, residual, distiller."""

from torch import nn


def feature_mlp(dim: int, expansion: int = 32) -> nn.Sequential:
    """Linear(S, 32·S) – GELU – Linear(32·S, S), framework-default init (AdaGauss Sec. 4; GATF uses it too)."""
    return nn.Sequential(nn.Linear(dim, expansion * dim), nn.GELU(), nn.Linear(expansion * dim, dim))


def zero_residual(dim: int, expansion: int = 32) -> nn.Sequential:
    """A `feature_mlp` that starts as the zero function with live gradients: only its last layer is zero."""
    mlp = feature_mlp(dim, expansion)
    for parameter in mlp[-1].parameters():
        nn.init.zeros_(parameter)
    return mlp


def dead_residual(dim: int, expansion: int = 32) -> nn.Sequential:
    """A `feature_mlp` with every layer zero, as in GATF's release: hidden activations and back-propagated signal are
    both zero, so that only the output bias can ever move and the function stays a constant."""
    mlp = feature_mlp(dim, expansion)
    for parameter in mlp.parameters():
        nn.init.zeros_(parameter)
    return mlp
