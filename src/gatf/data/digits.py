"""`digits`: the handwritten digits inside scikit-learn."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from gatf.data.base import ImageSet, Source
from gatf.settings import DataConfig

TEST = (
    "000004883524104000064100934205001a00080100240028062c12001000940a009019120420f8a0028110a000080a882044"
    "1524494240a00a0000004004d80000818020004805c400104008a0100005404800301000020ec409000224840083a8013c20"
    "a6980a0000000b08400804a0184802024041c1008004404684376a810216004480004042a0a4180a5000840b8561c6081080"
    "08004c80c02004068e00010882008100380803c008190000100e01008410a0210033282904c044c080680e01028300820088"
    "22a6402c24042108a860809081a00c02820242120138a41500"
)
"""Which digits are for testing, a bit each: a fifth of each class, as scikit-learn's `train_test_split` chooses it with
seed 0. Importing that, and what it imports, takes a second."""


def load_digits(config: DataConfig) -> Source:
    """scikit-learn's 1 797 handwritten digits of 8×8 pixels, split 80/20 by class with seed 0."""
    table = _table()
    pixels = np.rint(table[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)  # [N, 1, 8, 8]
    labels = table[:, -1].astype(np.int64)
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(TEST), dtype=np.uint8), count=len(labels))
    train, test = np.flatnonzero(bits == 0), np.flatnonzero(bits)
    scaled = pixels[train] / 255.0
    return Source(
        name="digits",
        class_names=tuple(str(digit) for digit in range(10)),
        train=ImageSet(torch.from_numpy(pixels[train]), torch.from_numpy(labels[train])),
        test=ImageSet(torch.from_numpy(pixels[test]), torch.from_numpy(labels[test])),
        mean=(float(scaled.mean()),),
        std=(float(scaled.std()),),
    )


def _table() -> np.ndarray:
    """64 pixels from 0 to 16 and the digit, [1797, 65]: scikit-learn's file, without importing scikit-learn where it
    lies at its usual place."""
    found = find_spec("sklearn")
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        path = Path(place) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits as sklearn_digits

    bunch = sklearn_digits()
    return np.column_stack([bunch.data, bunch.target])
