"""Encoded images (JPEG, PNG, …) by number, from files, PIL images or parquet, and their pixels.

Sources of runs and users' images for a classifier share this module.
"""

import hashlib
import io
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatf.data import cache
from gatf.data.decode import SMALL, BadImage, ChooseBox, Image, careful_pillow, centre_box, decode, likely_formats
from gatf.data.workers import in_order
from gatf.errors import UserError
from gatf.io.files import is_special, new_file


class Encoded(ABC):
    """Numbered images as bytes. It stores their places, not their contents, so it is cheap to send to a process."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, number: int) -> bytes: ...

    @abstractmethod
    def name(self, number: int) -> str:
        """The image's path or place, for messages."""

    @abstractmethod
    def take(self, numbers: Sequence[int]) -> "Encoded": ...

    def content(self) -> str:
        """A digest of every byte."""
        total = hashlib.blake2b(digest_size=16)
        for number in range(len(self)):
            with suppress(BadImage):  # reported when it is decoded
                total.update(hashlib.blake2b(self.read(number), key=number.to_bytes(8)).digest())
        return total.hexdigest()

    @abstractmethod
    def stamp(self) -> str:
        """A digest of names, sizes and modification times: a substitute for `content` that reads no file."""

    def in_order(self) -> Iterator[bytes]:
        """All images, in the fastest way to read them once. The iterator continues after a `BadImage`."""
        return map(self.read, range(len(self)))  # a generator would end at the first error

    def prepare(self) -> None:  # noqa: B027
        """Make random access fast; called once before other processes read."""


@dataclass(frozen=True)
class Files(Encoded):
    """One file per image."""

    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, number: int) -> bytes:
        path = Path(self.paths[number])
        if is_special(path):
            raise BadImage(f"{path} is a pipe, a device or a socket, not an image; leave it out")
        try:
            return path.read_bytes()
        except OSError as error:
            raise BadImage(
                f"image {self.paths[number]} cannot be read ({error.strerror}); put it back, or leave it out with "
                "data.on_bad_image=skip"
            ) from None

    def name(self, number: int) -> str:
        return self.paths[number]

    def take(self, numbers: Sequence[int]) -> "Files":
        return Files(tuple(self.paths[number] for number in numbers))

    def stamp(self) -> str:
        return cache.digest(*(_stamp(Path(path)) if Path(path).exists() else path for path in self.paths))


@dataclass(frozen=True)
class Pictures(Encoded):
    """PIL images, encoded without loss, so that all images share one decoder."""

    items: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.items)

    def read(self, number: int) -> bytes:
        buffer, item = BytesIO(), self.items[number]
        if item.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
            item = item.convert("RGB")
        item.save(buffer, "PNG", compress_level=0)
        return buffer.getvalue()

    def name(self, number: int) -> str:
        return f"image {number}"

    def take(self, numbers: Sequence[int]) -> "Pictures":
        return Pictures(tuple(self.items[number] for number in numbers))

    def stamp(self) -> str:
        return self.content()


@dataclass(frozen=True)
class ParquetRows(Encoded):
    """Rows of parquet files whose `column` has {bytes, path}, as on the Hugging Face hub.

    Parquet files are read sequentially. The first random access copies the bytes into a memory-mapped Arrow file.
    """

    files: tuple[Path, ...]
    column: str
    ends: tuple[int, ...]
    """Cumulative number of rows after each file."""
    stamps: tuple[str, ...]
    rows: tuple[int, ...] | range

    @classmethod
    def whole(cls, files: Sequence[Path], column: str) -> "ParquetRows":
        from pyarrow import parquet

        counts = []
        for file in files:
            with readable_parquet(file):
                counts.append(parquet.read_metadata(file).num_rows)
        ends = tuple(accumulate(counts))
        return cls(tuple(files), column, ends, tuple(_stamp(file) for file in files), range(ends[-1]))

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, number: int) -> bytes:
        file, row = self._place(number)
        data = _arrow_column(arrow_copy(self.files[file], self.column, self.stamps[file]))[row].as_buffer()
        return self._checked(data.to_pybytes() if data is not None else None, number)

    def name(self, number: int) -> str:
        file, row = self._place(number)
        return f"in row {row} of {self.files[file]}"

    def in_order(self) -> Iterator[bytes]:
        if self.rows != range(self.ends[-1]):
            yield from (self.read(number) for number in range(len(self)))
            return
        number = 0
        for file in self.files:
            for chunk in _byte_chunks(file, self.column):
                for value in chunk:
                    yield self._checked(value.as_py(), number)
                    number += 1

    def take(self, numbers: Sequence[int]) -> "ParquetRows":
        return replace(self, rows=tuple(self.rows[number] for number in numbers))

    def prepare(self) -> None:
        for file, stamp in zip(self.files, self.stamps, strict=True):
            arrow_copy(file, self.column, stamp)

    def content(self) -> str:
        total = hashlib.blake2b(f"{self.column}{self.rows}".encode(), digest_size=16)
        for path in self.files:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "blake2b").digest())
        return total.hexdigest()

    def stamp(self) -> str:
        return cache.digest(self.column, str(self.rows), *self.stamps)

    def _place(self, number: int) -> tuple[int, int]:
        """Which file, and which row of it."""
        row = self.rows[number]
        file = bisect_right(self.ends, row)
        return file, row - (self.ends[file - 1] if file else 0)

    def _checked(self, data: bytes | None, number: int) -> bytes:
        if data is None:
            raise UserError(f"there is no image {self.name(number)}: column '{self.column}' holds no bytes there")
        return data


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"


@contextmanager
def readable_parquet(file: Path) -> Iterator[None]:
    """Convert errors of an unreadable parquet file to one sentence."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{file} is not a readable parquet file ({reason}); get it again") from None


def _byte_chunks(file: Path, column: str) -> Iterator[Any]:
    """The bytes of one parquet file's images as Arrow arrays."""
    from pyarrow import compute, parquet, types

    with readable_parquet(file), parquet.ParquetFile(file) as opened:
        for batch in opened.iter_batches(batch_size=256, columns=[column]):
            values = batch.column(0)
            yield compute.struct_field(values, "bytes") if types.is_struct(values.type) else values


@lru_cache(maxsize=64)
def arrow_copy(file: Path, column: str, stamp: str) -> Path:
    """The cached Arrow file with one parquet file's image bytes; created if needed."""
    target = cache.cached_file(f"rows-{cache.digest(stamp, column)}.arrow")
    if not cache.is_intact(target):
        try:
            _write_arrow(target, file, column)
            cache.note_digest(target)
        except OSError as error:
            raise UserError(
                f"cannot write to the cache {target.parent} ({error}); choose another in GATF_CACHE"
            ) from None
    return target


def _write_arrow(target: Path, file: Path, column: str) -> None:
    import pyarrow as pa

    schema = pa.schema([("bytes", pa.large_binary())])
    cache.make_folder()
    with (
        new_file(target, private=True) as partial,
        pa.OSFile(str(partial), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        for chunk in _byte_chunks(file, column):
            writer.write_batch(pa.record_batch([chunk.cast(pa.large_binary())], schema=schema))


@lru_cache(maxsize=64)
def _arrow_column(path: Path) -> Any:
    """The memory-mapped column of an Arrow file."""
    import pyarrow as pa

    return pa.ipc.open_file(pa.memory_map(str(path))).read_all().column(0)


LARGE_DEFAULT = 224
"""Height and width of images with large or different sizes."""
SAMPLED = 64
"""Images whose headers are read to choose a common size."""


def natural_side(images: Encoded, smallest: int = 1) -> int:
    """The common side of images: small ones of one size keep it, others become 224."""
    sizes = set(_sizes(images)) or {(LARGE_DEFAULT, LARGE_DEFAULT)}
    side = max(max(size) for size in sizes)
    return side if smallest <= side <= SMALL and sizes == {(side, side)} else LARGE_DEFAULT


def shorter_side(images: Encoded) -> int:
    """The median shorter side."""
    sides = sorted(map(min, _sizes(images))) or [LARGE_DEFAULT]
    return sides[len(sides) // 2]


def _sizes(images: Encoded) -> list[tuple[int, int]]:
    """Width and height of some images, spread over the set, without damaged ones, which decoding reports."""
    seen = []
    with careful_pillow():
        for number in range(0, len(images), -(-len(images) // SAMPLED)):
            try:
                data = images.read(number)
                with Image.open(io.BytesIO(data), formats=likely_formats(data)) as image:
                    seen.append(image.size)
            except (
                BadImage, OSError, ValueError, SyntaxError, Image.DecompressionBombWarning, Image.DecompressionBombError
            ):  # fmt: skip
                continue
    return seen


def decode_all(
    images: Encoded, size: int, *, skip: bool = False, choose: ChooseBox = centre_box
) -> tuple[Tensor, Tensor]:
    """Pixels uint8 [n, 3, size, size] and the numbers of their images, [n]. `skip` omits images that cannot be decoded;
    otherwise the first of them raises `BadImage`."""
    pixels = np.empty((len(images), size, size, 3), np.uint8)
    kept: list[int] = []
    with careful_pillow():
        reading = images.in_order()
        for number in range(len(images)):
            try:
                pixels[len(kept)] = decode(next(reading), images.name(number), size, choose)
            except BadImage:
                if not skip:
                    raise
                continue
            kept.append(number)
    stacked = torch.from_numpy(pixels[: len(kept)]).permute(0, 3, 1, 2).contiguous()
    return stacked, torch.tensor(kept, dtype=torch.int64)


def readable(images: Encoded, workers: int) -> Tensor:
    """Numbers of the images that can be decoded, found by decoding every one."""
    pieces = [range(at, min(at + 64, len(images))) for at in range(0, len(images), 64)]
    found = in_order(partial(_readable_among, images), pieces, workers=workers)
    return torch.tensor([number for piece in found for number in piece], dtype=torch.int64)


def _readable_among(images: Encoded, numbers: Iterable[int]) -> list[int]:
    good = []
    with careful_pillow():
        for number in numbers:
            try:
                decode(images.read(number), images.name(number), 1, centre_box)
            except BadImage:
                continue
            good.append(number)
    return good
