"""What a classifier says of images, whoever worked it out."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Answers:
    """What a classifier says of N images."""

    labels: np.ndarray
    probabilities: np.ndarray
    """[N, classes]."""
    certified: np.ndarray
    """bool [N]; all False unless certificates were asked for."""
    warning: str | None = None
    """What there is to know about the rejection of unknown images, where its rate is not promised."""
