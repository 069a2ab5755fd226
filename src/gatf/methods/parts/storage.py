"""How the covariances of many classes are kept: four ways, from exact to cheap, behind one small interface."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from gatf.errors import UserError
from gatf.geometry import compact, gaussians
from gatf.geometry.readout import Readout, Sampler, bayes_readout

Kept = dict[str, Tensor]
"""Tensors by the name of their buffer."""


class Storage(ABC):
    """From covariances [C, S, S] to what is kept of them, and back. Holds no tensors itself."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    @abstractmethod
    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the buffers for so many classes."""

    @abstractmethod
    def encode(self, covs: Tensor) -> Kept:
        """What is kept of covariances [C, S, S]."""

    @abstractmethod
    def decode(self, kept: Kept, classes: range) -> Tensor:
        """Covariances of consecutive classes as far as they are known, float64 [c, S, S]."""

    @abstractmethod
    def join(self, parts: Sequence[Kept], counts: Sequence[int]) -> Kept:
        """What is kept of all classes of the parts, which stand for so many classes each."""

    @abstractmethod
    def readout(self, means: Tensor, kept: Kept, shrink: float, *, normalise: bool) -> Readout:
        """`bayes_readout` for means [C, S]."""

    @abstractmethod
    def sampler(self, means: Tensor, kept: Kept) -> Sampler:
        """Draws from the classes' Gaussians."""

    def numbers_per_class(self) -> int:
        """What one more class adds; what all classes share is not counted."""
        sizes = [sum(torch.Size(shape).numel() for shape in self.shapes(classes).values()) for classes in (0, 1)]
        return sizes[1] - sizes[0]


def _rows_joined(parts: Sequence[Kept]) -> Kept:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class FullStorage(Storage):
    """Packed triangles: S(S+1)/2 numbers per class, nothing is lost."""

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        return {"triangles": (classes, self.dim * (self.dim + 1) // 2)}

    def encode(self, covs: Tensor) -> Kept:
        return {"triangles": gaussians.pack(covs)}

    def decode(self, kept: Kept, classes: range) -> Tensor:
        return gaussians.unpack(kept["triangles"][classes.start : classes.stop].double(), self.dim)

    def join(self, parts: Sequence[Kept], counts: Sequence[int]) -> Kept:
        return _rows_joined(parts)

    def readout(self, means: Tensor, kept: Kept, shrink: float, *, normalise: bool) -> Readout:
        return bayes_readout(self._gaussians(means, kept), shrink, normalise=normalise)

    def sampler(self, means: Tensor, kept: Kept) -> Sampler:
        return Sampler.of(self._gaussians(means, kept))

    def _gaussians(self, means: Tensor, kept: Kept) -> gaussians.Gaussians:
        return gaussians.Gaussians(means, self.decode(kept, range(len(means))))


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

    def join(self, parts: Sequence[Kept], counts: Sequence[int]) -> Kept:
        return _rows_joined(parts)

    def readout(self, means: Tensor, kept: Kept, shrink: float, *, normalise: bool) -> Readout:
        return compact.low_rank_readout(means, compact.LowRank(**kept), shrink, normalise=normalise)

    def sampler(self, means: Tensor, kept: Kept) -> Sampler:
        return compact.low_rank_sampler(means, compact.LowRank(**kept))


class DiagonalStorage(Storage):
    """Variances: S numbers per class."""

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        return {"variances": (classes, self.dim)}

    def encode(self, covs: Tensor) -> Kept:
        return {"variances": covs.diagonal(dim1=-2, dim2=-1).clone()}  # a view would keep the matrices

    def decode(self, kept: Kept, classes: range) -> Tensor:
        return torch.diag_embed(kept["variances"][classes.start : classes.stop].double())

    def join(self, parts: Sequence[Kept], counts: Sequence[int]) -> Kept:
        return _rows_joined(parts)

    def readout(self, means: Tensor, kept: Kept, shrink: float, *, normalise: bool) -> Readout:
        covs = compact.LowRank.diagonal(kept["variances"])
        return compact.low_rank_readout(means, covs, shrink, normalise=normalise)

    def sampler(self, means: Tensor, kept: Kept) -> Sampler:
        return compact.low_rank_sampler(means, compact.LowRank.diagonal(kept["variances"]))


class SharedStorage(Storage):
    """One packed triangle: the mean of the covariances of all classes, in which every class counts the same."""

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        return {"triangle": (self.dim * (self.dim + 1) // 2,)}

    def encode(self, covs: Tensor) -> Kept:
        return {"triangle": gaussians.pack(covs).sum(0) / max(1, len(covs))}

    def decode(self, kept: Kept, classes: range) -> Tensor:
        return self._matrix(kept).expand(len(classes), -1, -1)

    def join(self, parts: Sequence[Kept], counts: Sequence[int]) -> Kept:
        sums = [count * part["triangle"].double() for part, count in zip(parts, counts, strict=True)]
        return {"triangle": torch.stack(sums).sum(0) / max(1, sum(counts))}

    def readout(self, means: Tensor, kept: Kept, shrink: float, *, normalise: bool) -> Readout:
        return compact.shared_readout(means, self._matrix(kept), shrink, normalise=normalise)

    def sampler(self, means: Tensor, kept: Kept) -> Sampler:
        return compact.shared_sampler(means, self._matrix(kept))

    def _matrix(self, kept: Kept) -> Tensor:
        return gaussians.unpack(kept["triangle"].double(), self.dim)
