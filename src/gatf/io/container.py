"""The file format of models and checkpoints: safetensors with a JSON description and a digest in the header.

    8 bytes   length n of the header, little-endian
    n bytes   JSON: {"__metadata__": {"kind", "format", "digest", "model"},
                     "<tensor>": {"dtype", "shape", "data_offsets"}, …}
    the rest  the tensors' bytes, in the header's order, without gaps

Any safetensors reader can open it. This reader treats the file as untrusted: it runs no code, checks sizes before it
allocates memory, and verifies the digest (BLAKE2b of the file, with zeros in place of the digest itself).
"""

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from gatf.errors import UserError
from gatf.io.files import is_special, new_file, write_bytes

FORMAT = 3
"""Newest format. In format 1, models of some methods had other names for settings and tensors."""
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH_BYTES = 8
DIGEST_DIGITS = 32
CHUNK = 2**16
FOREIGN = {
    b"PK\x03\x04": "a zip archive (PyTorch's own files are zips, too)",
    b"\x80\x02": "a pickle", b"\x80\x03": "a pickle", b"\x80\x04": "a pickle", b"\x80\x05": "a pickle",
    b"\xff\xd8\xff": "a JPEG image", b"\x89PNG": "a PNG image", b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "a gzip archive", b"\x93NUMPY": "a NumPy file",
}  # fmt: skip
"""First bytes of files that users mistake for models."""


@dataclass(frozen=True)
class Kind:
    """The kind of a file, and the limits of its header."""

    name: str
    """Its name in the file."""
    noun: str
    """Its name in messages."""
    spare_header: int = 2**20
    """Bytes that a header may have in addition to an eighth of the file. Parsing needs a few times as much memory."""
    spare_items: int = 10_000
    """JSON items that a header may have in addition to one per 256 bytes; each needs about 100 bytes of memory."""
    finite: bool = True
    """Whether every number must be finite."""

    def longest_header(self, size: int) -> int:
        return self.spare_header + size // 8

    def most_items(self, size: int) -> int:
        return self.spare_items + size // 256


MODEL = Kind("gatf-model", "model")
CHECKPOINT = Kind("gatf-checkpoint", "checkpoint", spare_header=2**26, spare_items=2**22, finite=False)
"""Its description lists the accuracy of every class after every task."""


@dataclass(frozen=True)
class Place:
    """Type, shape and byte range of a tensor in the data after the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """The checked header of a file."""

    model: dict[str, Any]
    places: dict[str, Place]
    data_start: int
    digest: str
    format: int = FORMAT


# --- writing ----------------------------------------------------------------------------------------------------------


def write(
    path: Path, tensors: dict[str, Tensor], model: dict[str, Any], kind: Kind = MODEL, *,
    check: Callable[[Path], None] | None = None,
) -> None:  # fmt: skip
    """Write tensors and a description atomically. `check` receives the temporary file before the rename; an exception
    in it cancels the write."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = _checked_header(path, plain, model, kind)
    pieces = _pieces(header, plain)
    digest = hashlib.blake2b(digest_size=DIGEST_DIGITS // 2)
    for piece in pieces:
        digest.update(piece)
    pieces[1] = header.replace(b"0" * DIGEST_DIGITS, digest.hexdigest().encode(), 1)
    write_bytes(path, pieces, check)


def _checked_header(path: Path, tensors: dict[str, Tensor], model: dict[str, Any], kind: Kind) -> bytes:
    """The header with zeros for the digest; a `UserError` if it exceeds the limits of readers."""
    entries: dict[str, Any] = {
        "__metadata__": {
            "kind": kind.name,
            "format": str(FORMAT),
            "digest": "0" * DIGEST_DIGITS,
            "model": json.dumps(model),
        }
    }
    header = _header(entries, tensors)
    size = LENGTH_BYTES + len(header) + sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if len(header) > kind.longest_header(size) or _items(header) > kind.most_items(size):
        raise UserError(f"{path} cannot be written: its class names and history have become too long for a {kind.noun}")
    return header


def check_room(path: Path, tensors: dict[str, Tensor], model: dict[str, Any]) -> None:
    """Raise the error that `write` would raise for this description, before an expensive training."""
    _checked_header(path, tensors, model, MODEL)


def write_plain(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors, their digest and the file's name as plain safetensors, readable by the owner only, not synced."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = _header({"__metadata__": {"digest": digest_of(plain), "name": path.name}}, plain)
    with new_file(path, private=True) as partial, partial.open("wb") as file:
        for piece in _pieces(header, plain):
            file.write(piece)


def digest_of(tensors: dict[str, Tensor]) -> str:
    """A digest of names, types, shapes and every byte of tensors in memory, in the order of their names."""
    total = hashlib.blake2b(digest_size=DIGEST_DIGITS // 2)
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        total.update(_bytes(tensor))
    return total.hexdigest()


def _header(entries: dict[str, Any], plain: dict[str, Tensor]) -> bytes:
    """The header, padded so that the tensors begin at a multiple of eight bytes."""
    end = 0
    for name, tensor in plain.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % 8)


def _pieces(header: bytes, plain: dict[str, Tensor]) -> list[Any]:
    """The pieces of a file; the tensors are views, not copies."""
    return [len(header).to_bytes(LENGTH_BYTES, "little"), header, *(_bytes(tensor) for tensor in plain.values())]


def _bytes(tensor: Tensor) -> Any:
    flat = tensor.reshape(-1)
    if len(flat) and flat.stride(0) != 1:
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().data if len(flat) else b""


# --- reading ----------------------------------------------------------------------------------------------------------


class Damaged(UserError):
    """A file that is not a complete gatf file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is not a model, or a damaged one: {reason}")
        self.reason = reason


def read(path: Path, kind: Kind = MODEL) -> tuple[dict[str, Tensor], Header]:
    """The tensors and the header of a file."""
    with _opened(path) as file:
        header = read_header(path, file, kind)
        tensors = {}
        for name, place in header.places.items():
            file.seek(header.data_start + place.start)
            content = bytearray(place.end - place.start)
            if file.readinto(content) != len(content):  # type: ignore[attr-defined]
                raise Damaged(path, "it ends early")
            flat = torch.frombuffer(content, dtype=place.dtype) if content else torch.empty(0, dtype=place.dtype)
            tensors[name] = flat.reshape(place.shape)
            if kind.finite and flat.is_floating_point() and not bool(flat.isfinite().all()):
                raise Damaged(path, f"tensor '{name}' has values that are not finite")
    return tensors, header


def inspect(path: Path) -> Header:
    """Only the header, after a check of the whole file."""
    with _opened(path) as file:
        return read_header(path, file)


def _opened(path: Path) -> BinaryIO:
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a model file")
    if is_special(path):
        raise UserError(f"{path} is a pipe, a device or a socket, not a model file")
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise UserError(f"there is no model {path}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None


def read_header(path: Path, file: BinaryIO, kind: Kind = MODEL) -> Header:
    """Parse the header and check kind, version and digest, then sizes, dtypes and shapes."""
    if path.suffix == ".onnx":
        raise UserError(f"{path} is an ONNX file, for onnxruntime: name the model that it was exported from")
    size = os.fstat(file.fileno()).st_size
    first = file.read(LENGTH_BYTES)
    for start, what in FOREIGN.items():
        if first.startswith(start):
            raise Damaged(path, f"it is {what}, and nothing in it was run")
    length = int.from_bytes(first, "little")
    if len(first) < LENGTH_BYTES or length > size - LENGTH_BYTES:
        raise Damaged(path, f"it has {size} bytes, too few for its header")
    if length > kind.longest_header(size):
        raise Damaged(path, f"a header of {length} bytes is too long for a file of {size}")
    raw = file.read(length)
    if _items(raw) > kind.most_items(size):
        raise Damaged(path, "its header has too many entries for its size")
    entries = _json(path, raw, "header")
    metadata = entries.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("kind") != kind.name:
        raise Damaged(path, f"it does not say that it is a gatf {kind.noun}")
    _check_format(path, metadata.get("format"))
    digest = metadata.get("digest")
    if not isinstance(digest, str) or len(digest) != DIGEST_DIGITS or _digest(first, raw, digest, file) != digest:
        raise Damaged(path, "its contents do not match its checksum")
    places = {name: _place(path, name, entry) for name, entry in entries.items()}
    _check_layout(path, places, size - LENGTH_BYTES - length)
    model = metadata.get("model")
    if not isinstance(model, str):
        raise Damaged(path, "its description is missing")
    return Header(
        _json(path, model, "description"), places, LENGTH_BYTES + length, digest, int(str(metadata["format"]))
    )


def _items(header: bytes) -> int:
    return sum(header.count(sign) for sign in (b",", b"[", b"{"))


def _json(path: Path, text: bytes | str, what: str) -> dict[str, Any]:
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        raise Damaged(path, f"its {what} is not valid JSON") from None
    if not isinstance(loaded, dict):
        raise Damaged(path, f"its {what} is not a JSON object")
    return loaded


def _check_format(path: Path, version: object) -> None:
    if not isinstance(version, str) or not version.isdecimal() or not 0 < len(version) < 10 or int(version) < 1:
        raise Damaged(path, "its format version is missing")
    if int(version) > FORMAT:
        raise UserError(
            f"{path} has format {version}, made by a newer gatf; this one reads up to format {FORMAT}: upgrade gatf"
        )


def _digest(first: bytes, header: bytes, digest: str, file: BinaryIO) -> str:
    """The digest of the whole file; `file` is positioned after the header."""
    total = hashlib.blake2b(first, digest_size=DIGEST_DIGITS // 2)
    total.update(header.replace(digest.encode(errors="replace"), b"0" * DIGEST_DIGITS, 1))
    while chunk := file.read(CHUNK):
        total.update(chunk)
    return total.hexdigest()


def _place(path: Path, name: str, entry: object) -> Place:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Damaged(path, f"tensor '{name[:80]}' is not described properly")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise Damaged(path, f"tensor '{name[:80]}' has an unknown type")
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2 or len(shape) > 8:
        raise Damaged(path, f"tensor '{name[:80]}' has no proper shape or place")
    if math.prod(shape) * DTYPES[dtype].itemsize != offsets[1] - offsets[0]:
        raise Damaged(path, f"tensor '{name[:80]}' has another size than its shape says")
    return Place(DTYPES[dtype], tuple(shape), offsets[0], offsets[1])


def _whole_numbers(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**48 for value in values)


def _check_layout(path: Path, places: dict[str, Place], data: int) -> None:
    end = 0
    for name, place in places.items():
        if place.start != end:
            raise Damaged(path, f"tensor '{name[:80]}' does not begin where the one before it ends")
        end = place.end
    if end != data:
        raise Damaged(path, f"its tensors take {end} bytes, but {data} follow its header")
