"""Quadratic scores of many classes as one matrix product in float32, with the rows that need float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gatf.geometry import spd
from gatf.geometry.vectors import CHUNK_ELEMENTS, CHUNK_ROWS, as_vectors

if TYPE_CHECKING:
    from gatf.geometry.readout import QuadraticReadout

PACKED_BLOCK = 8
"""Rows of a triangle that are packed together: whole blocks need no gathering and cost a tenth more numbers."""
PACKED_ELEMENTS = 2**22
"""Float32 elements of packed rows at once (16 MB)."""


@dataclass(frozen=True)
class PackedForms:
    """Scores of many classes as one product in float32: every quadratic form of x is linear in the products x_i·x_j.

    The forms are of x = R(u − o), o being the mean of the centres and RᵀR the mean over classes of M_c⁻¹. In these
    coordinates the mean of all forms is ‖x‖², so their terms are not much larger than the distances themselves: what
    float32 loses is a few units of its last place, whatever the condition of M_c.
    """

    origin: Tensor
    """o, [S], float64."""
    root: Tensor
    """R, [S, S], float64."""
    weights: Tensor
    """Minus coefficients of the products, of x and of 1 for each class, [C, P] in float32."""
    normalise: bool
    """Whether features are divided by their norm first."""
    reach: Tensor
    """How far the scores of each class may be off, over the norm of the packed row, [C]."""

    @classmethod
    def of(cls, readout: QuadraticReadout) -> PackedForms:
        classes, dim = readout.centres.shape
        origin = readout.centres.mean(0)
        stacked = readout.whiteners.reshape(-1, dim)
        root = spd.cholesky(stacked.mT @ stacked / classes).lower.mT.contiguous()
        back = torch.linalg.solve_triangular(root, torch.eye(dim).to(root), upper=True)
        centres = (readout.centres - origin) @ root.mT
        constants = centres.new_zeros(classes) if readout.constants is None else readout.constants
        weights = torch.empty(classes, _packed_width(dim), device=centres.device)
        classes_at_once = max(1, CHUNK_ELEMENTS // dim**2)
        for start in range(0, classes, classes_at_once):
            chunk = slice(start, start + classes_at_once)
            whiteners = readout.whiteners[chunk] @ back
            forms = whiteners.mT @ whiteners  # [c, S, S]
            slopes = (forms @ centres[chunk, :, None])[:, :, 0]
            own = (slopes * centres[chunk]).sum(-1) + constants[chunk]
            folded = 2 * forms.triu(1) + torch.diag_embed(forms.diagonal(dim1=-2, dim2=-1))
            blocks = [folded[:, i : i + PACKED_BLOCK, i:].flatten(1) for i in range(0, dim, PACKED_BLOCK)]
            weights[chunk] = -torch.cat([*blocks, -2 * slopes, own[:, None]], dim=1)
        # the errors of P roundings add up like steps of a random walk
        reach = torch.finfo(torch.float32).eps * weights.shape[1] ** 0.5 * weights.norm(dim=1)
        return cls(origin, root, weights, readout.normalise, reach)

    def scores(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S] → scores [B, C] in float64, and whether another class is too close to the best to decide, bool [B]."""
        out = self.origin.new_empty(len(features), len(self.weights))
        unsure = torch.empty(len(features), dtype=torch.bool, device=self.origin.device)
        rows_at_once = min(CHUNK_ROWS, max(1, PACKED_ELEMENTS // self.weights.shape[1]))
        for row in range(0, len(features), rows_at_once):
            rows = slice(row, row + rows_at_once)
            vectors = (as_vectors(features[rows].to(self.origin), self.normalise) - self.origin) @ self.root.mT
            vectors = vectors.to(torch.float32)
            scores = _packed(vectors) @ self.weights.mT
            squares = vectors.square().sum(1)
            norms = (squares.square() + squares + 1).sqrt()  # of the packed rows, at most
            best, where = scores.max(1)
            near = torch.addcmul(scores, norms[:, None], self.reach) >= (best - norms * self.reach[where])[:, None]
            unsure[rows] = near.sum(1) != 1  # none where scores are not finite
            out[rows] = scores
        return out, unsure


def _packed_width(dim: int) -> int:
    return sum(min(PACKED_BLOCK, dim - i) * (dim - i) for i in range(0, dim, PACKED_BLOCK)) + dim + 1


def _packed(vectors: Tensor) -> Tensor:
    """Products x_i·x_j of blocks of rows with what is on their right, then x and 1: [B, S] → [B, P]."""
    dim = vectors.shape[1]
    out = vectors.new_empty(len(vectors), _packed_width(dim))
    filled = 0
    for i in range(0, dim, PACKED_BLOCK):
        left, right = vectors[:, i : i + PACKED_BLOCK, None], vectors[:, None, i:]
        width = left.shape[1] * right.shape[2]
        block = out[:, filled : filled + width].view(-1, left.shape[1], right.shape[2])
        torch.mul(left, right, out=block)
        filled += width
    out[:, filled:-1] = vectors
    out[:, -1] = 1
    return out
