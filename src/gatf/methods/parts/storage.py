"""How the covariances of many classes are kept: exactly, or as a few directions and variances."""

import torch
from torch import Tensor

from gatf.errors import UserError
from gatf.geometry import compact, gaussians, spd
from gatf.geometry.readout import Readout, bayes_readout

Kept = dict[str, Tensor]
"""Tensors by the name of their buffer."""


class Storage:
    """From covariances [C, S, S] to what is kept of them, and back. Holds no tensors itself.

    Packed triangles, S(S+1)/2 numbers per class; with a rank r, r directions and the variance left over in each
    coordinate, (r + 1)·S numbers.
    """

    def __init__(self, dim: int, rank: int | None = None) -> None:
        if rank is not None and rank > dim:
            raise UserError(
                f"method.covariance.rank is {rank}, but features have {dim} dimensions: lower it, or keep all with "
                "method.covariance.kind=full"
            )
        self.dim, self.rank = dim, rank

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the buffers for a number of classes."""
        if self.rank is None:
            return {"triangles": (classes, self.dim * (self.dim + 1) // 2)}
        return {"factors": (classes, self.dim, self.rank), "diagonals": (classes, self.dim)}

    def encode(self, covs: Tensor) -> Kept:
        """What is kept of covariances [C, S, S]."""
        if self.rank is None:
            return {"triangles": spd.pack(covs)}
        fitted = compact.fit_low_rank(covs, self.rank)
        return {"factors": fitted.factors, "diagonals": fitted.diagonals}

    def decode(self, kept: Kept, classes: range) -> Tensor:
        """Covariances of consecutive classes, as exactly as stored, float64 [c, S, S]."""
        chosen = {name: tensor[classes.start : classes.stop] for name, tensor in kept.items()}
        if self.rank is None:
            return spd.unpack(chosen["triangles"].double(), self.dim)
        return compact.LowRank(**chosen).dense()

    def readout(self, means: Tensor, kept: Kept, shrink: float, *, normalise: bool) -> Readout:
        """`bayes_readout` for means [C, S]."""
        if self.rank is not None:
            return compact.low_rank_readout(means, compact.LowRank(**kept), shrink, normalise=normalise)
        covs = self.decode(kept, range(len(means)))
        return bayes_readout(gaussians.Gaussians(means, covs), shrink, normalise=normalise)

    def numbers_per_class(self) -> int:
        """What one class takes."""
        return sum(torch.Size(shape).numel() for shape in self.shapes(1).values())
