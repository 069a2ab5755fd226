"""One pass over labelled vectors: their moments, and a small sample to measure with.

The sample has the vectors of each class with the smallest hashes. Neither the order of the vectors nor their batches
or processes change it, and copies of a vector are one member of it, so no copy of a held-out vector is learnt from.
"""

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatf.data.class_names import spelled_as_known
from gatf.data.vectors import VectorBatch, VectorInput
from gatf.errors import UserError, connected_ray
from gatf.geometry.moments import MomentStream, PooledMoments
from gatf.model.state import Label

SAMPLED_SCORES = 2**22
"""Scores of the sample, vectors × classes, at most: what measuring takes is bounded."""
SAMPLED_BYTES = 2**26
NUMBERS_AT_ONCE = 2**21
"""Numbers of embedded features that are summed at once."""
LARGEST = np.iinfo(np.uint64).max

Embed = Callable[[Tensor], Tensor]
"""Vectors [N, D] → what a method sums, [N, S]."""


@dataclass(frozen=True)
class Sample:
    """Vectors with small hashes, each once."""

    vectors: Tensor
    """[M, D]."""
    numbers: np.ndarray
    """Class numbers [M]."""
    hashes: np.ndarray
    """uint64 [M]."""
    copies: np.ndarray
    """How often each vector occurs, [M]."""

    @classmethod
    def of(cls, vectors: Tensor, numbers: np.ndarray, hashes: np.ndarray) -> "Sample":
        return cls(vectors, numbers, hashes, np.ones(len(numbers), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, chosen: np.ndarray) -> "Sample":
        """Some of the members, by mask or place."""
        return Sample(self.vectors[chosen], self.numbers[chosen], self.hashes[chosen], self.copies[chosen])

    def with_others(self, other: "Sample") -> "Sample":
        """Both, ordered by class and hash, with equal vectors of a class counted as one."""
        arrays = zip((self.numbers, self.hashes, self.copies), (other.numbers, other.hashes, other.copies), strict=True)
        numbers, hashes, copies = (np.concatenate(each) for each in arrays)
        order = np.lexsort((hashes, numbers))
        numbers, hashes, copies = numbers[order], hashes[order], copies[order]
        first = np.ones(len(numbers), dtype=bool)
        first[1:] = (numbers[1:] != numbers[:-1]) | (hashes[1:] != hashes[:-1])
        copies = np.add.reduceat(copies, np.flatnonzero(first)) if len(first) else copies
        vectors = torch.cat([self.vectors, other.vectors])[torch.from_numpy(order[first])]
        return Sample(vectors, numbers[first], hashes[first], copies)

    def ranks(self) -> np.ndarray:
        """The rank of each member among the hashes of its class, [M]; members are ordered."""
        starts = np.flatnonzero(np.r_[True, self.numbers[1:] != self.numbers[:-1]])
        return np.arange(len(self)) - np.repeat(starts, np.diff(np.r_[starts, len(self)]))


class Gathered:
    """Moments and sample of labelled vectors, by class in the order in which classes came."""

    def __init__(
        self, embeds: Sequence[Embed], *, scatter: bool = True, parts: bool = False, known: Sequence[Label] = ()
    ) -> None:  # fmt: skip
        """`embeds`: the vectors are summed as each of these gives them. `known`: labels whose spelling is kept. Others:
        see `MomentStream`."""
        self._embeds, self._scatter, self._parts, self._known = embeds, scatter, parts, known
        self.started = time.monotonic()
        self.labels: dict[Label, int] = {}
        self.counts = np.zeros(0, dtype=np.int64)
        self.sample: Sample | None = None
        self._streams: list[MomentStream] = []
        self._more: list[PooledMoments] = []
        self._limits = np.zeros(0, dtype=np.uint64)  # hashes from here on do not enter the sample

    def add(self, batch: VectorBatch) -> None:
        """Add labelled vectors."""
        if batch.labels is None:
            raise UserError("the vectors have no labels, which learning needs: give y, or a column or array 'label'")
        numbers = self._numbered(batch.labels)
        self.counts += np.bincount(numbers, minlength=len(self.labels))
        hashes = hashed(batch.vectors)
        enters = hashes < self._limits[numbers]
        if not enters.all():
            self._sum(batch.vectors[torch.from_numpy(~enters)], numbers[~enters])
        if enters.any():
            self._sample(Sample.of(batch.vectors[torch.from_numpy(enters)], numbers[enters], hashes[enters]))

    def merge(self, other: "Gathered") -> None:
        """Add what another pass gathered, of other vectors."""
        if other.sample is None:
            return
        places = self._numbered(np.array(list(other.labels)))
        self.counts += np.bincount(places, weights=other.counts, minlength=len(self.labels)).astype(np.int64)
        more = [each.reordered(torch.from_numpy(places), len(self.labels)) for each in other.moments()]
        self._more = [mine.merge(each) for mine, each in zip(self._more, more, strict=True)] if self._more else more
        self._sample(replace(other.sample, numbers=places[other.sample.numbers]))

    def moments(self) -> list[PooledMoments]:
        """Of all vectors but the sample's, for each of `embeds`."""
        classes = len(self.labels)
        own = [stream.moments() for stream in self._streams]
        own = [each.reordered(torch.arange(len(each.counts)), classes) for each in own]
        if not own or not self._more:
            return own or [each.reordered(torch.arange(len(each.counts)), classes) for each in self._more]
        return [mine.merge(each) for mine, each in zip(own, self._more, strict=True)]

    def moments_of(self, sample: Sample) -> list[PooledMoments]:
        """Of members of the sample, each as often as it occurs."""
        self._streams, streams = [], self._streams
        try:
            self._sum(sample.vectors, sample.numbers, sample.copies)
            return [each.moments() for each in self._streams]
        finally:
            self._streams = streams

    def held_out(self, share: float, fewest: int) -> np.ndarray:
        """Members of the sample to measure with, bool [M]: of each class this share of its vectors, at least one, and
        none of a class with fewer than `fewest` different vectors."""
        assert self.sample is not None
        classes = len(self.labels)
        sampled = np.bincount(self.sample.numbers, minlength=classes)
        different = np.where(sampled < self._most(), sampled, self.counts)
        wanted = np.clip(np.round(share * different), 1, np.maximum(different - 1, 1))
        wanted = np.where((different < fewest) | (share == 0), 0, wanted)
        chosen = self.sample.ranks() < wanted[self.sample.numbers]
        if int(chosen.sum()) * classes > SAMPLED_SCORES:  # of very many classes not every one is measured
            limit = np.sort(self.sample.hashes[chosen])[SAMPLED_SCORES // classes]
            chosen &= self.sample.hashes < limit
        return chosen

    def _numbered(self, labels: np.ndarray) -> np.ndarray:
        """Class numbers [N]; new classes are appended."""
        distinct, found = np.unique(labels, return_inverse=True)
        distinct = spelled_as_known(distinct, self._known)
        for label in distinct.tolist():
            if label not in self.labels:
                other = next(iter(self.labels), label)
                if type(other) is not type(label):
                    raise UserError(f"labels must be all text or all whole numbers, not {other!r} and {label!r}")
                self.labels[label] = len(self.labels)
        grown = len(self.labels) - len(self.counts)
        self.counts = np.pad(self.counts, (0, grown))
        self._limits = np.pad(self._limits, (0, grown), constant_values=LARGEST)
        numbers = np.array([self.labels[label] for label in distinct.tolist()], dtype=np.int64)
        return numbers[found.reshape(-1)]

    def _most(self) -> int:
        """Members of the sample per class, at most. It shrinks as classes come, and never grows."""
        classes = len(self.labels)
        dim = 1 if self.sample is None else self.sample.vectors.shape[1]
        return max(1, min(SAMPLED_SCORES // classes, SAMPLED_BYTES // (4 * dim)) // classes)

    def _sample(self, more: Sample) -> None:
        """Add members to the sample, and sum those that others displace."""
        everything = more if self.sample is None else self.sample
        everything = everything.with_others(more if self.sample is not None else more.take(np.zeros(0, dtype=np.int64)))
        self.sample = everything
        stay = everything.ranks() < self._most()
        if not stay.all():
            removed = everything.take(~stay)
            self._sum(removed.vectors, removed.numbers, removed.copies)
            self.sample = everything.take(stay)
        ends = np.flatnonzero(np.r_[self.sample.numbers[1:] != self.sample.numbers[:-1], True])
        full = self.sample.ranks()[ends] + 1 == self._most()
        # a copy of the last member still enters, to be counted with it
        self._limits[self.sample.numbers[ends[full]]] = self.sample.hashes[ends[full]] + np.uint64(1)

    def _sum(self, vectors: Tensor, numbers: np.ndarray, copies: np.ndarray | None = None) -> None:
        """Add to the moments, each vector as often as it occurs."""
        labels = torch.from_numpy(numbers)
        if copies is not None:
            often = torch.from_numpy(copies)
            vectors, labels = vectors.repeat_interleave(often, dim=0), labels.repeat_interleave(often)
        for place, embed in enumerate(self._embeds):
            some = vectors[:1]
            width = embed(some).shape[1] if len(some) else 0
            rows = max(256, NUMBERS_AT_ONCE // max(width, vectors.shape[1]))
            for part, own in zip(vectors.split(rows), labels.split(rows), strict=True):
                embedded = embed(part)
                if place == len(self._streams):
                    self._streams.append(MomentStream(embedded.shape[1], scatter=self._scatter, parts=self._parts))
                self._streams[place].add(embedded, own, classes=len(self.labels))


def gather(batches: Iterable[VectorBatch], into: Gathered) -> Gathered:
    """Add all batches."""
    for batch in batches:
        into.add(batch)
    return into


def gather_on_cluster(given: VectorInput, into: Gathered, stop: Callable[[], bool]) -> Gathered:
    """Add all files of vectors, each read by a worker of a Ray cluster (extra `cluster`), in the order of the files.
    The sums equal those of one process up to rounding, and the sample is the same."""
    parts = given.by_file()
    for part, found in zip(parts, on_cluster(_gather_file, parts, into, stop), strict=False):
        if found.sample.vectors.shape[1] != given.dim:
            have = f"vectors of {found.sample.vectors.shape[1]} columns, others have {given.dim}"
            raise UserError(f"{part.paths[0]} has {have}")
        into.merge(found)
    return into


def on_cluster(
    function: Callable[[Any, Any], Any], parts: Sequence[Any], shared: Any, stop: Callable[[], bool] = lambda: False
) -> Iterator[Any]:
    """function(part, shared) of each part, computed by workers of a Ray cluster, in order; ends early on `stop`."""
    ray = connected_ray()
    task, shared = ray.remote(function), ray.put(shared)
    for reference in [task.remote(part, shared) for part in parts]:
        while not ray.wait([reference], timeout=1)[0]:
            if stop():
                return
        try:
            yield ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None


def _gather_file(given: VectorInput, empty: Gathered) -> Gathered:
    torch.set_num_threads(1)  # of a worker's processor
    return gather(given.batches(), copy.deepcopy(empty))


def hashed(vectors: Tensor) -> np.ndarray:
    """A hash of each vector's bits, uint64 [N]: multiplied by fixed odd numbers, summed and mixed (splitmix64)."""
    array = vectors.contiguous().numpy()
    words = array.view(np.uint32 if array.itemsize == 4 else np.uint64).astype(np.uint64)
    for shift in (32, 16):  # the low bits of small whole numbers are zero, and would be zero in every product
        words ^= words >> np.uint64(shift)
    factors = np.random.default_rng(0).integers(2**63, size=array.shape[1], dtype=np.uint64) * 2 + 1
    mixed = words @ factors
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.minimum(mixed ^ (mixed >> np.uint64(31)), LARGEST - 1)
