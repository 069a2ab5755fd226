"""The predictions of a classifier, whether PyTorch or an ONNX export computed them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Predictions:
    """Predictions for N images."""

    labels: np.ndarray
    """[N]."""
    probabilities: np.ndarray
    """[N, classes]."""
    certified: np.ndarray
    """bool [N]; all False unless certificates were requested."""
    warning: str | None = None
    """A caution about the rejection of unknown images, where its rate is not guaranteed."""
