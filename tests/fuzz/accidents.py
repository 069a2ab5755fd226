"""What may have happened to a file on its way here: accidents, and what somebody who knows the format would do."""

import copy
import hashlib
import io
import json
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import yaml

TOKENS = (
    b"[", b"{", b"]", b'"', b"\\", b"[[[[[[[[", b"9" * 40, b"1e999", b"null,", b"\xff\xfe", b"\x00" * 16, b"NaN", b"-1",
    b"\n", b": ", b"- ", b"&a ", b"*a", b"!!python/object/apply:os.system ['true']", b"'", b"PK\x03\x04", b"\t",
)  # fmt: skip
STRANGE: tuple[Any, ...] = (
    None, -1, 0, 1, 2**31, 2**40, 10**30, 1e308, -1e308, 0.5, "", "x" * 2000, "\x1b[2J", "nan", [], {}, [[[]]], True,
    float("nan"), float("inf"), [1] * 500, {"name": {}}, "2001-01-01", [None], {"a": [1]},
)  # fmt: skip


def mutated(whole: bytes, draw: random.Random, *, prefix: int = 0) -> bytes:
    """The file after one or a few random accidents; most of them among its first `prefix` bytes."""
    content = bytearray(whole)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        size = len(content)
        near = min(size, prefix) if prefix and draw.random() < 0.7 else size
        at = draw.randrange(near) if near else 0
        match draw.randrange(9):
            case 0:
                content[at : at + 1] = bytes([content[at] ^ (1 << draw.randrange(8))]) if size else b""
            case 1:
                content[at : at + 1] = bytes([draw.randrange(256)])
            case 2:
                del content[at:]
            case 3:
                del content[at : at + draw.randrange(1, 64)]
            case 4:
                content[at:at] = draw.randbytes(draw.randrange(1, 64))
            case 5:
                number = draw.choice((2**63, 2**32, 2**31 - 1, 2**16, size, max(size - 8, 0), draw.randrange(2**20), 0))
                width, order = draw.choice((2, 4, 8)), draw.choice(("little", "big"))
                place = 0 if draw.random() < 0.3 else at
                content[place : place + width] = (number % 2 ** (8 * width)).to_bytes(width, order)  # type: ignore[arg-type]
            case 6:
                content[at:at] = draw.choice(TOKENS)
            case 7:
                start = draw.randrange(size) if size else 0
                content[at : at + 16] = content[start : start + 16]
            case _:
                content[at : at + 8] = draw.choice(TOKENS)
    return bytes(content)


def change(target: Any, draw: random.Random) -> None:
    """Replace, remove or add one value somewhere inside a tree of dictionaries and lists."""
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(target[key], (dict, list)) and target[key] and draw.random() < 0.7:
            target = target[key]
            continue
        what = draw.random()
        if what < 0.2:
            del target[key]
        elif what < 0.3 and isinstance(target, dict):
            target[draw.choice(("x", "name", "method", "__metadata__", 3, "a.b"))] = draw.choice(STRANGE)
        else:
            target[key] = copy.deepcopy(draw.choice(STRANGE))
        return


def changed_yaml(whole: bytes, draw: random.Random) -> bytes:
    tree = yaml.safe_load(whole)
    change(tree, draw)
    return yaml.safe_dump(tree, sort_keys=False).encode()


def changed_json(whole: bytes, draw: random.Random) -> bytes:
    tree = json.loads(whole)
    change(tree, draw)
    return json.dumps(tree).encode()


def changed_lines(whole: bytes, draw: random.Random) -> bytes:
    """Lines of JSON: one is changed, repeated, moved or lost."""
    lines = whole.splitlines(keepends=True)
    at = draw.randrange(len(lines))
    match draw.randrange(4):
        case 0:
            lines.insert(draw.randrange(len(lines)), lines[at])
        case 1:
            del lines[at]
        case _:
            tree = json.loads(lines[at])
            change(tree, draw)
            lines[at] = json.dumps(tree).encode() + b"\n"
    return b"".join(lines)


def changed_cells(whole: bytes, draw: random.Random) -> bytes:
    """A table of text: a cell is replaced, added or lost."""
    rows = [line.split(",") for line in whole.decode().splitlines()]
    row = draw.choice(rows) if draw.random() < 0.7 else rows[0]
    at = draw.randrange(len(row))
    match draw.randrange(3):
        case 0:
            del row[at]
        case 1:
            row.insert(at, "7")
        case _:
            row[at] = str(draw.choice(STRANGE)).replace(",", ";")
    return "\n".join(",".join(row) for row in rows).encode()


def changed_archive(whole: bytes, draw: random.Random) -> bytes:
    """A zip archive whose members were changed, renamed or lost, with checksums that fit."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice(list(members))
    match draw.randrange(6):
        case 0:
            del members[name]
        case 1:
            members[draw.choice(("x_train.npy", "y_test.npy", "labels.npy", "../x.npy", "x_test"))] = members.pop(name)
        case 2:
            header = draw.choice(
                (
                    "{'descr': '|O', 'fortran_order': False, 'shape': (4,), }",
                    "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000,), }",
                    "{'descr': '|u1', 'fortran_order': False, 'shape': (100000000000, 8, 8), }",
                    "{'descr': '<i8', 'fortran_order': True, 'shape': (-1,), }",
                    "{'descr': [('a', '<i4'), ('b', '|V9')], 'fortran_order': False, 'shape': (2,), }",
                    "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (2,), }",
                    "{'descr': '<f8', 'fortran_order': False, 'shape': (), }",
                    "{'descr': '|u1', 'fortran_order': False, 'shape': " + "(" * 500 + ", }",
                )
            )
            line = header.encode().ljust(117) + b"\n"
            members[name] = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line + members[name][128:]
        case _:
            members[name] = mutated(members[name], draw, prefix=128)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return buffer.getvalue()


def forged(whole: bytes, draw: random.Random) -> bytes:
    """A model or checkpoint whose description or numbers were changed at one place and whose checksum was made to
    fit."""
    length = int.from_bytes(whole[:8], "little")
    entries, data = json.loads(whole[8 : 8 + length]), bytearray(whole[8 + length :])
    model = json.loads(entries["__metadata__"]["model"])
    below = [model, model, *(part for part in (model.get("config"), model.get("progress")) if part)]
    what = draw.random()
    if what < 0.2:
        change(entries, draw)
    elif what < 0.45:
        _change_numbers(entries, data, draw)
    else:
        change(draw.choice(below), draw)
        entries["__metadata__"]["model"] = json.dumps(model)
    if isinstance(entries.get("__metadata__"), dict):
        entries["__metadata__"]["digest"] = "0" * 32
    header = json.dumps(entries, separators=(",", ":")).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(data)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest().encode()
    return content.replace(b"0" * 32, digest, 1)


def _change_numbers(entries: dict[str, Any], data: bytearray, draw: random.Random) -> None:
    """A tensor gets finite numbers that no training gives it."""
    name = draw.choice([name for name in entries if name != "__metadata__"])
    kind = {"F64": "d", "F32": "f", "I64": "q"}.get(entries[name]["dtype"])
    start, end = entries[name]["data_offsets"]
    if kind is None or start == end:
        return
    width = struct.calcsize(kind)
    number = draw.choice((-1, 0, 2**40, -(2**62)) if kind == "q" else (-1.0, 0.0, 1e38, -1e38, 1e-40, 1e30))
    places = (
        range(start, end, width) if draw.random() < 0.5 else [start + width * draw.randrange((end - start) // width)]
    )
    for place in places:
        data[place : place + width] = struct.pack("<" + kind, number)


def accident(path: Path, whole: bytes, draw: random.Random) -> bytes:
    """Another content for a file: half of the time an accident to its bytes, else a change that keeps to its format."""
    knowing = {
        ".yaml": changed_yaml, ".json": changed_json, ".jsonl": changed_lines, ".csv": changed_cells,
        ".npz": changed_archive, ".pth": changed_archive, ".gatf": forged, ".safetensors": forged,
    }.get(path.suffix)  # fmt: skip
    if knowing is None or draw.random() < 0.5 or (knowing is forged and b"__metadata__" not in whole[:40]):
        return mutated(whole, draw, prefix=300)
    return knowing(whole, draw)
