"""Vectors from users (arrays, tensors, Arrow columns, .npy, .npz and parquet files), read in batches.

A file is read once from start to end, a batch at a time, so memory does not grow with its length. Files run no code:
arrays of Python objects are refused.
"""

import copy
import fnmatch
import glob
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from gatf.data.pixels import as_labels
from gatf.errors import UserError, extra

ROWS = 8192
"""Vectors per batch."""
LARGEST = 1e100
"""Numbers of vectors are smaller, so that products of two and their sums stay finite."""
VECTORS, LABELS, IDS, ENCODER = "embedding", "label", "id", "encoder"
"""Columns of parquet files and arrays of .npz files. The encoder's name is one text, or in parquet's metadata."""
ALSO = {VECTORS: ("X", "x", "embeddings", "vectors", "arr_0"), LABELS: ("y", "labels", "arr_1"), IDS: ("ids",)}
"""Other names that arrays of .npz files may have."""


@dataclass(frozen=True)
class VectorBatch:
    """Some vectors, with labels and ids where the source has them."""

    vectors: Tensor
    """[B, D], float32, or float64 where the source has float64."""
    labels: np.ndarray | None = None
    ids: np.ndarray | None = None


class VectorInput:
    """Vectors of a user, in memory or in files."""

    def __init__(self, given: Any, labels: Any = None, *, encoder: str | None = None) -> None:
        """An array [N, D] and its labels; or a file, a pattern of files or an address, which has its own labels."""
        self._batch: VectorBatch | None = None
        self._files: list[_Arrays | _Parquet] = []
        self._encoder = encoder
        if isinstance(given, (str, Path)):
            if labels is not None:
                raise UserError("a file of vectors has its own labels; leave out y")
            self._files = _files(str(given))
            return
        vectors = as_vectors(given)
        known = None if labels is None else as_labels(labels)
        if known is not None and len(known) != len(vectors):
            raise UserError(f"there are {len(vectors)} vectors but {len(known)} labels; give one label for each vector")
        self._batch = VectorBatch(vectors, known)

    @cached_property
    def dim(self) -> int:
        """The number of columns."""
        return next(self.batches(1)).vectors.shape[1]

    @cached_property
    def encoder(self) -> str | None:
        """The name of the encoder, where the user or a file gives it."""
        named = {name for name in (self._encoder, *(file.encoder() for file in self._files)) if name is not None}
        if len(named) > 1:
            raise UserError(f"the vectors are from different encoders ({', '.join(sorted(named)[:3])}); learn one only")
        return next(iter(named), None)

    @property
    def paths(self) -> list[str]:
        """The files, if there are any."""
        return [file.path for file in self._files]

    def by_file(self) -> list["VectorInput"]:
        """The vectors of each file."""
        found = [copy.copy(self) for _ in self._files]
        for part, file in zip(found, self._files, strict=True):
            part._files = [file]
        return found

    def stamp(self) -> str:
        """Names, sizes and times of the files: identifies the same vectors later."""
        return "\n".join(sorted(file.stamp() for file in self._files))

    def batches(self, rows: int = ROWS) -> Iterator[VectorBatch]:
        """All vectors in order, checked, a batch at a time."""
        if self._batch is not None:
            for place in range(0, len(self._batch.vectors), rows):
                some = slice(place, place + rows)
                labels = None if self._batch.labels is None else self._batch.labels[some]
                yield VectorBatch(checked(self._batch.vectors[some], first=place), labels)
            return
        dim, found = None, 0
        for file in self._files:
            first = 0
            for batch in file.batches(rows):
                dim = dim or batch.vectors.shape[1]
                if batch.vectors.shape[1] != dim:
                    raise UserError(f"{file.path} has vectors of {batch.vectors.shape[1]} columns, others have {dim}")
                checked(batch.vectors, first=first, where=f" of {file.path}")
                first += len(batch.vectors)
                yield batch
            found += first
        if found == 0:
            raise UserError(f"{', '.join(self.paths[:3])} has no vectors: found array with 0 sample(s)")


def checked(vectors: Tensor, *, first: int = 0, where: str = "") -> Tensor:
    """The vectors, or a `UserError` that names the first row with NaN, infinity or numbers whose squares overflow."""
    # a sum is quick, and in float32 only overflow makes it infinite without a reason
    sound = vectors.sum().isfinite() if vectors.dtype == torch.float32 else vectors.abs().amax() < LARGEST
    if not bool(sound):
        bad = torch.nonzero(~(vectors.abs() < LARGEST).all(1))
        if len(bad):
            what = f"a number beyond {LARGEST:g}" if vectors[bad[0]].isfinite().all() else "NaN or infinity"
            raise UserError(f"row {first + int(bad[0])}{where} contains {what}; repair the vectors or leave it out")
    return vectors


def as_vectors(given: Any) -> Tensor:
    """Float32 [N, D] of an array, a tensor, a data frame or an Arrow column; float64 stays float64. Not yet checked
    for NaN."""
    kind = type(given)
    if kind.__module__.startswith("scipy.sparse"):
        raise UserError("the vectors are a sparse matrix, but dense data is required; convert them with X.toarray()")
    if kind.__module__.startswith("pyarrow"):
        values = _from_arrow(given)
    elif isinstance(given, Tensor):
        if given.layout != torch.strided or given.is_quantized or given.is_meta:
            raise UserError("the vectors are a sparse, quantised or meta tensor; give a dense one with numbers")
        values = given.detach().cpu()
    elif np.ma.is_masked(given):
        raise UserError("some numbers of the vectors are masked; fill them in or leave those rows out")
    else:
        try:
            values = _tensor(np.asarray(given))
        except (ValueError, OverflowError):
            raise UserError("the vectors are not numbers in rows of one length") from None
    if values.ndim != 2:
        raise UserError(
            f"Expected 2D array, got {'scalar' if values.ndim == 0 else f'{values.ndim}D'} array instead: vectors are "
            "[N, D]. Reshape your data with X.reshape(-1, D), or X.reshape(1, -1) for one vector"
        )
    if values.shape[0] == 0:
        raise UserError(f"there are no vectors: found array with 0 sample(s) (shape={tuple(values.shape)})")
    if values.shape[1] == 0:
        raise UserError(f"0 feature(s) (shape={tuple(values.shape)}) while a minimum of 1 is required.")
    if values.is_complex() or values.dtype == torch.bool:
        problem = "Complex data not supported: " if values.is_complex() else ""
        raise UserError(f"{problem}vectors of type {values.dtype} are not numbers")
    return values if values.dtype == torch.float64 else values.float()


def _tensor(array: np.ndarray) -> Tensor:
    """A tensor of any array of numbers, without a copy where torch has its type."""
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise UserError(f"the vectors are not numbers ({error})") from None
    if array.dtype.kind not in "uifcb":
        raise UserError(f"vectors of type {array.dtype} are not numbers; could not convert string to float")
    if (array.dtype.kind == "u" and array.dtype.itemsize > 1) or (array.dtype.itemsize > 8 and array.dtype.kind == "f"):
        array = array.astype(np.float64)
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _from_arrow(column: Any) -> Tensor:
    """[N, D] of an Arrow array of lists, a column, or a table with a column `embedding`."""
    pa = extra("pyarrow")
    if isinstance(column, (pa.Table, pa.RecordBatch)):
        if VECTORS not in column.schema.names:
            raise UserError(f"there is no column '{VECTORS}'; there are {', '.join(column.schema.names[:8])}")
        column = column.column(VECTORS)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.list_(pa.float32()))
    kind = column.type
    if not (pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise UserError(f"the column of vectors is {kind}, not a list of numbers for each row")
    if column.null_count:
        raise UserError(f"the column of vectors has {column.null_count} empty rows; leave them out")
    values = column.flatten()
    if values.null_count or not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
        raise UserError(
            f"the column of vectors has lists of {values.type} with {values.null_count} nulls, not of numbers"
        )
    rows = len(column)
    if not pa.types.is_fixed_size_list(kind) and rows:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths != lengths[0]).any():
            raise UserError(
                f"the column of vectors has lists of {lengths.min()} to {lengths.max()} numbers; one length only"
            )
    return _tensor(values.to_numpy(zero_copy_only=False).reshape(rows, -1 if rows else 0))


# --- files ------------------------------------------------------------------------------------------------------------


def _files(name: str) -> list["_Arrays | _Parquet"]:
    """The files that a path, a pattern or an address names, in the order of their names."""
    if "://" in name:
        pa_fs = extra("pyarrow.fs")
        try:
            system, path = pa_fs.FileSystem.from_uri(name.split("*")[0])
        except (OSError, ValueError) as error:  # pyarrow does not know the scheme; fsspec may
            try:
                other, path = extra("fsspec").url_to_fs(name.split("*")[0])
            except (OSError, ValueError, ImportError):
                raise UserError(f"{name} cannot be opened: {error}") from None
            system = pa_fs.PyFileSystem(pa_fs.FSSpecHandler(other))
        if "*" in name:
            folder = path.rpartition("/")[0]
            pattern = path + name[len(name.split("*")[0]) :]
            infos = system.get_file_info(pa_fs.FileSelector(folder, recursive=True, allow_not_found=True))
            paths = sorted(info.path for info in infos if info.is_file and fnmatch.fnmatch(info.path, pattern))
        else:
            paths = [path]
        found: list[_Arrays | _Parquet] = [_Parquet(path, system) for path in paths]
    else:
        paths = sorted(glob.glob(name)) if glob.has_magic(name) and not Path(name).exists() else [name]  # noqa: PTH207
        found = [_Parquet(path) if path.lower().endswith(".parquet") else _Arrays(path) for path in paths]
        for path in paths:
            if not Path(path).is_file():
                raise UserError(f"there is no file {path}")
    if not found:
        raise UserError(f"no file fits {name}")
    return found


class _Arrays:
    """An .npy file with vectors, or an .npz file with vectors and labels, read without loading whole arrays."""

    def __init__(self, path: str) -> None:
        self.path = path

    def stamp(self) -> str:
        return _stamp(self.path)

    def encoder(self) -> str | None:
        if not self.path.lower().endswith(".npz"):
            return None
        with self._reading(), zipfile.ZipFile(self.path) as archive:
            if f"{ENCODER}.npy" not in archive.namelist():
                return None
            with archive.open(f"{ENCODER}.npy") as file:
                return str(PlainArray(file).whole())

    def batches(self, rows: int) -> Iterator[VectorBatch]:
        with self._reading():
            if not self.path.lower().endswith(".npz"):
                with Path(self.path).open("rb") as file:
                    yield from self._together({VECTORS: PlainArray(file)}, rows)
                return
            with zipfile.ZipFile(self.path) as archive:
                members = {info.filename.removesuffix(".npy") for info in archive.infolist()}
                names = {
                    column: name
                    for column, others in ALSO.items()
                    for name in reversed((column, *others))
                    if name in members
                }
                if VECTORS not in names:
                    raise UserError(
                        f"{self.path} has no array '{VECTORS}'; write it with np.savez(path, {VECTORS}=X, {LABELS}=y)"
                    )
                with ExitStack() as opened:  # the archive is closed with the last of its members
                    arrays = {c: PlainArray(opened.enter_context(archive.open(f"{n}.npy"))) for c, n in names.items()}
                    yield from self._together(arrays, rows)

    def _together(self, arrays: dict[str, "PlainArray"], rows: int) -> Iterator[VectorBatch]:
        lengths = {column: array.shape[0] if array.shape else 0 for column, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise UserError(f"{self.path}: {', '.join(f'{count} rows of {name}' for name, count in lengths.items())}")
        for place in range(0, lengths[VECTORS], rows):
            found = {column: array.read(min(rows, lengths[VECTORS] - place)) for column, array in arrays.items()}
            labels = found.get(LABELS)
            yield VectorBatch(as_vectors(found[VECTORS]), None if labels is None else as_labels(labels), found.get(IDS))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (UserError, GeneratorExit):
            raise
        except Exception:  # the parsers of zips and of array headers raise nearly anything
            raise UserError(
                f"{self.path} is damaged or no file of plain arrays; write it with np.save or np.savez"
            ) from None


def _stamp(path: str) -> str:
    status = Path(path).stat()
    return f"{Path(path).resolve()} {status.st_size} {status.st_mtime_ns}"


class PlainArray:
    """An array in an open .npy file, read from its start."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
        self.shape, fortran, self._dtype = read(file)
        if self._dtype.hasobject:
            raise UserError("an array holds Python objects, which are never loaded; save numbers and text only")
        self._columns: np.ndarray | None = None
        if fortran and len(self.shape) > 1:
            self._columns = self._take(int(np.prod(self.shape))).reshape(self.shape, order="F")
            self._place = 0

    def read(self, rows: int) -> np.ndarray:
        """The next rows."""
        if self._columns is not None:
            self._place += rows
            return self._columns[self._place - rows : self._place]
        return self._take(rows * int(np.prod(self.shape[1:]))).reshape(rows, *self.shape[1:])

    def whole(self) -> np.ndarray:
        return self.read(self.shape[0]) if self.shape else self._take(1).reshape(())

    def _take(self, items: int) -> np.ndarray:
        content = bytearray(self._file.read(items * self._dtype.itemsize))
        return np.frombuffer(content, dtype=self._dtype, count=items)


class _Parquet:
    """A parquet file, local or on any file system that pyarrow opens."""

    def __init__(self, path: str, system: Any = None) -> None:
        self.path, self._system = path, system

    def stamp(self) -> str:
        if self._system is None:
            return _stamp(self.path)
        info = self._system.get_file_info(self.path)
        return f"{self.path} {info.size} {info.mtime_ns}"

    def encoder(self) -> str | None:
        with self._open() as file:
            named = (file.schema_arrow.metadata or {}).get(ENCODER.encode())
            return None if named is None else named.decode()

    def batches(self, rows: int) -> Iterator[VectorBatch]:
        with self._open() as file:
            names = file.schema_arrow.names
            if VECTORS not in names:
                raise UserError(f"{self.path} has no column '{VECTORS}'; it has {', '.join(names[:8])}")
            columns = [name for name in (VECTORS, LABELS, IDS) if name in names]
            for batch in file.iter_batches(batch_size=rows, columns=columns):
                if batch.num_rows:
                    yield arrow_batch(batch)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        pq, pa = extra("pyarrow.parquet"), extra("pyarrow")
        try:
            # a buffer reads a row group page by page, however large it is
            yield pq.ParquetFile(self.path, filesystem=self._system, buffer_size=2**20, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{self.path} cannot be read as parquet ({' '.join(str(error).split())[:160]})") from None


def arrow_batch(batch: Any) -> VectorBatch:
    """A batch of Arrow columns `embedding`, `label` and `id`."""
    found = {name: batch.column(name) for name in batch.schema.names if name in (LABELS, IDS)}
    labels = found.get(LABELS)
    if labels is not None and labels.null_count:
        raise UserError(f"column '{LABELS}' has {labels.null_count} empty rows; leave them out")
    ids = found.get(IDS)
    return VectorBatch(
        as_vectors(batch), None if labels is None else as_labels(np.array(labels.to_pylist())),
        None if ids is None else np.array(ids.to_pylist(), dtype=str),
    )  # fmt: skip


def row_names(batch: VectorBatch, first: int) -> Sequence[str]:
    """A name for each vector: its id, or its row number."""
    return [str(each) for each in (range(first, first + len(batch.vectors)) if batch.ids is None else batch.ids)]
