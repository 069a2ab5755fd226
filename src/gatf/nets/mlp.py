"""The small maps between feature spaces: adapter, projector, residual, distiller."""

from torch import nn


def feature_mlp(dim: int, expansion: int = 32) -> nn.Sequential:
    """Linear(S, 32·S) – GELU – Linear(32·S, S), framework-default init (AdaGauss Sec. 4; GATF uses it too)."""
    return nn.Sequential(nn.Linear(dim, expansion * dim), nn.GELU(), nn.Linear(expansion * dim, dim))


def zero_residual(dim: int, expansion: int = 32) -> nn.Sequential:
    """A `feature_mlp` that starts as the zero function with live gradients: only its last layer is zero.

    Zeroing every layer would leave the hidden activations and the back-propagated signal both zero, so that only the
    output bias could ever move.
    """
    mlp = feature_mlp(dim, expansion)
    last = mlp[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return mlp
