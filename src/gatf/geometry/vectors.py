"""Feature vectors as every readout takes them: in float64, a block of rows at a time."""

import torch
from torch import Tensor
from torch.nn import functional

CHUNK_ELEMENTS = 2**17
"""Float64 elements of one intermediate, [rows, classes, S] or [classes, S, S] (1 MB: half a core's second cache)."""
CHUNK_ROWS = 256
"""Feature rows compared with a chunk of classes at once."""
NORM_GUARD = 1e-12
"""Smallest norm a vector is divided by."""


def as_vectors(vectors: Tensor, normalise: bool) -> Tensor:
    """Vectors [..., S] in float64, divided by their norm if a rule compares directions."""
    vectors = vectors.to(torch.float64)
    return functional.normalize(vectors, dim=-1, eps=NORM_GUARD) if normalise else vectors
