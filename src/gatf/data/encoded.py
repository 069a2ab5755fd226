"""Encoded images (JPEG, PNG, …) by number, wherever their bytes lie."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from gatf.data import cache
from gatf.errors import UserError


class Encoded(Protocol):
    """Numbered images as bytes. Cheap to send to another process: it holds places, not contents."""

    def __len__(self) -> int: ...

    def read(self, number: int) -> bytes: ...

    def name(self, number: int) -> str:
        """Where the image lies, for messages."""
        ...

    def in_order(self) -> Iterator[bytes]:
        """All of them, by the fastest way to read them once."""
        ...

    def take(self, numbers: Sequence[int]) -> "Encoded": ...

    def content(self) -> str:
        """A digest of every byte."""
        ...

    def stamp(self) -> str:
        """A digest of names, sizes and times of change: as good as `content` for most purposes, without reading."""
        ...


@dataclass(frozen=True)
class Files:
    """One file an image."""

    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, number: int) -> bytes:
        try:
            return Path(self.paths[number]).read_bytes()
        except OSError as error:
            raise UserError(f"image {self.paths[number]} cannot be read ({error.strerror})") from None

    def name(self, number: int) -> str:
        return self.paths[number]

    def in_order(self) -> Iterator[bytes]:
        return (self.read(number) for number in range(len(self)))

    def take(self, numbers: Sequence[int]) -> "Files":
        return Files(tuple(self.paths[number] for number in numbers))

    def content(self) -> str:
        total = hashlib.blake2b(digest_size=16)
        for path, data in zip(self.paths, self.in_order(), strict=True):
            total.update(hashlib.blake2b(data, key=Path(path).name.encode()[:64]).digest())
        return total.hexdigest()

    def stamp(self) -> str:
        return cache.digest(*(_stamp(Path(path)) for path in self.paths))


@dataclass(frozen=True)
class ParquetRows:
    """Rows of parquet files whose `column` holds {bytes, path}, as on the Hugging Face hub.

    Parquet is read front to back. The first random access copies the bytes once into a memory-mapped Arrow file.
    """

    files: tuple[Path, ...]
    column: str
    rows: tuple[int, ...] | range

    @classmethod
    def whole(cls, files: Sequence[Path], column: str) -> "ParquetRows":
        return cls(tuple(files), column, range(sum(_row_counts(tuple(files)))))

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, number: int) -> bytes:
        file, row = self._place(number)
        chunks, ends = _arrow_chunks(str(arrow_copy(file, self.column)))
        chunk = bisect_right(ends, row)
        data = chunks[chunk][row - (ends[chunk - 1] if chunk else 0)].as_buffer()
        return self._checked(data.to_pybytes() if data is not None else None, number)

    def name(self, number: int) -> str:
        file, row = self._place(number)
        return f"in row {row} of {file}"

    def in_order(self) -> Iterator[bytes]:
        if self.rows != range(sum(_row_counts(self.files))):
            yield from (self.read(number) for number in range(len(self)))
            return
        number = 0
        for file in self.files:
            for chunk in _byte_chunks(file, self.column):
                for value in chunk:
                    yield self._checked(value.as_py(), number)
                    number += 1

    def take(self, numbers: Sequence[int]) -> "ParquetRows":
        return ParquetRows(self.files, self.column, tuple(self.rows[number] for number in numbers))

    def content(self) -> str:
        total = hashlib.blake2b(f"{self.column}{self.rows}".encode(), digest_size=16)
        for path in self.files:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "blake2b").digest())
        return total.hexdigest()

    def stamp(self) -> str:
        return cache.digest(self.column, str(self.rows), *(_stamp(path) for path in self.files))

    def _place(self, number: int) -> tuple[Path, int]:
        ends = list(accumulate(_row_counts(self.files)))
        row = self.rows[number]
        file = bisect_right(ends, row)
        return self.files[file], row - (ends[file - 1] if file else 0)

    def _checked(self, data: bytes | None, number: int) -> bytes:
        if data is None:
            raise UserError(f"there is no image {self.name(number)}: column '{self.column}' holds no bytes there")
        return data


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"


@lru_cache(maxsize=16)
def _row_counts(files: tuple[Path, ...]) -> list[int]:
    from pyarrow import parquet

    return [parquet.read_metadata(file).num_rows for file in files]


def _byte_chunks(file: Path, column: str) -> Iterator[Any]:
    """The bytes of one parquet file's images as Arrow arrays."""
    from pyarrow import compute, parquet, types

    with parquet.ParquetFile(file) as opened:
        for batch in opened.iter_batches(batch_size=256, columns=[column]):
            values = batch.column(0)
            yield compute.struct_field(values, "bytes") if types.is_struct(values.type) else values


@lru_cache(maxsize=64)
def arrow_copy(file: Path, column: str) -> Path:
    """The Arrow file beside the cache's others that holds one parquet file's image bytes; made if it is not there."""
    import pyarrow as pa

    target = cache.cached_file(f"rows-{cache.digest(_stamp(file), column)}.arrow")
    if not target.is_file():
        schema = pa.schema([("bytes", pa.large_binary())])
        with (
            cache.new_file(target) as partial,
            pa.OSFile(str(partial), "wb") as sink,
            pa.ipc.new_file(sink, schema) as writer,
        ):
            for chunk in _byte_chunks(file, column):
                writer.write_batch(pa.record_batch([chunk.cast(pa.large_binary())], schema=schema))
    return target


@lru_cache(maxsize=64)
def _arrow_chunks(path: str) -> tuple[list[Any], list[int]]:
    """The memory-mapped arrays of an Arrow file, and the row after the last of each."""
    import pyarrow as pa

    chunks = pa.ipc.open_file(pa.memory_map(path)).read_all().column(0).chunks
    return chunks, list(accumulate(len(chunk) for chunk in chunks))
