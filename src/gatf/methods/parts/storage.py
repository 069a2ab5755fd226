"""How the covariances of many classes are kept: exactly, or as a few directions and variances."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gatf.errors import UserError
from gatf.geometry import compact, gaussians
from gatf.geometry.readout import Readout, bayes_readout

Kept = dict[str, Tensor]
"""Tensors by the name of their buffer."""


class Storage(ABC):
    """From covariances [C, S, S] to what is kept of them, and back. Holds no tensors itself."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    @abstractmethod
    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the buffers for a number of classes."""

    @abstractmethod
    def encode(self, covs: Tensor) -> Kept:
        """What is kept of covariances [C, S, S]."""

    @abstractmethod
    def decode(self, kept: Kept, classes: range) -> Tensor:
        """Covariances of consecutive classes, as exactly as stored, float64 [c, S, S]."""

    @abstractmethod
    def readout(self, means: Tensor, kept: Kept, shrink: float, *, normalise: bool) -> Readout:
        """`bayes_readout` for means [C, S]."""

    def numbers_per_class(self) -> int:
        """What one class takes."""
        return sum(torch.Size(shape).numel() for shape in self.shapes(1).values())


class FullStorage(Storage):
    """Packed triangles: S(S+1)/2 numbers per class, nothing is lost."""

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        return {"triangles": (classes, self.dim * (self.dim + 1) // 2)}

    def encode(self, covs: Tensor) -> Kept:
        return {"triangles": gaussians.pack(covs)}

    def decode(self, kept: Kept, classes: range) -> Tensor:
        return gaussians.unpack(kept["triangles"][classes.start : classes.stop].double(), self.dim)

    def readout(self, means: Tensor, kept: Kept, shrink: float, *, normalise: bool) -> Readout:
        covs = self.decode(kept, range(len(means)))
        return bayes_readout(gaussians.Gaussians(means, covs), shrink, normalise=normalise)


class LowRankStorage(Storage):
    """r directions and the variance left over in each coordinate: (r + 1)·S numbers per class."""

    def __init__(self, dim: int, rank: int) -> None:
        super().__init__(dim)
        if rank > dim:
            raise UserError(
                f"method.covariance_rank is {rank}, but features have {dim} dimensions: lower it, or keep all with "
                "method.covariance=full"
            )
        self.rank = rank

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        return {"factors": (classes, self.dim, self.rank), "diagonals": (classes, self.dim)}

    def encode(self, covs: Tensor) -> Kept:
        fitted = compact.fit_low_rank(covs, self.rank)
        return {"factors": fitted.factors, "diagonals": fitted.diagonals}

    def decode(self, kept: Kept, classes: range) -> Tensor:
        chosen = slice(classes.start, classes.stop)
        return compact.LowRank(kept["factors"][chosen], kept["diagonals"][chosen]).dense()

    def readout(self, means: Tensor, kept: Kept, shrink: float, *, normalise: bool) -> Readout:
        return compact.low_rank_readout(means, compact.LowRank(**kept), shrink, normalise=normalise)
