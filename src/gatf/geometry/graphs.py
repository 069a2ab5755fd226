"""Scores in float64 without chunks, as modules whose operations can be traced for export (ONNX)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from gatf.geometry.vectors import as_vectors

if TYPE_CHECKING:
    from gatf.geometry.readout import QuadraticReadout


class QuadraticGraph(nn.Module):
    """‖W_c u − W_c v_c‖² for all classes in one matrix product."""

    weight: Tensor
    offset: Tensor
    constants: Tensor

    def __init__(self, readout: QuadraticReadout) -> None:
        super().__init__()
        classes, dim = readout.centres.shape
        self.classes, self.dim, self.normalise = classes, dim, readout.normalise
        self.register_buffer("weight", readout.whiteners.reshape(classes * dim, dim))
        whitened = (readout.whiteners @ readout.centres[:, :, None]).reshape(classes * dim)
        self.register_buffer("offset", whitened)
        none = readout.centres.new_zeros(classes)
        self.register_buffer("constants", none if readout.constants is None else readout.constants)

    def forward(self, features: Tensor) -> Tensor:
        vectors = as_vectors(features, self.normalise)
        offsets = vectors @ self.weight.T - self.offset
        return -offsets.square().reshape(-1, self.classes, self.dim).sum(-1) - self.constants


class LinearGraph(nn.Module):
    """w_c·z + b_c, less ‖z‖² where asked."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, *, minus_square: bool = False) -> None:
        super().__init__()
        self.minus_square = minus_square
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, features: Tensor) -> Tensor:
        vectors = features.double()
        scores = vectors @ self.weight.T + self.bias
        return scores - vectors.square().sum(-1, keepdim=True) if self.minus_square else scores
