"""The backbone of models that get vectors: the features are the vectors, at unit length if that is asked for."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gatf.nets.base import Backbone

NORM_GUARD = 1e-12


class Vectors(Backbone):
    """Vector [B, D] → feature [B, D]."""

    pretrained = True
    place: Tensor

    def __init__(self, dim: int, *, unit_length: bool) -> None:
        super().__init__()
        self._end_with(dim, None)
        self.unit_length = unit_length
        self.register_buffer("place", torch.zeros(0), persistent=False)  # shows on which device the backbone is

    def forward(self, vectors: Tensor) -> Tensor:
        return normalize(vectors, dim=1, eps=NORM_GUARD) if self.unit_length else vectors
