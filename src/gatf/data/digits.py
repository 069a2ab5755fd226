"""`digits`: the handwritten digits inside scikit-learn."""

import numpy as np
import torch

from gatf.data.base import ImageSet, Source
from gatf.settings import DataConfig


def load_digits(config: DataConfig) -> Source:
    """scikit-learn's 1 797 handwritten digits of 8×8 pixels, split 80/20 by class with seed 0."""
    from sklearn.datasets import load_digits as sklearn_digits
    from sklearn.model_selection import train_test_split

    bunch = sklearn_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]  # [N, 1, 8, 8]
    labels = bunch.target.astype(np.int64)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0)
    train, test = np.sort(train), np.sort(test)
    scaled = pixels[train] / 255.0
    return Source(
        name="digits",
        class_names=tuple(str(digit) for digit in range(10)),
        train=ImageSet(torch.from_numpy(pixels[train]), torch.from_numpy(labels[train])),
        test=ImageSet(torch.from_numpy(pixels[test]), torch.from_numpy(labels[test])),
        mean=(float(scaled.mean()),),
        std=(float(scaled.std()),),
    )
