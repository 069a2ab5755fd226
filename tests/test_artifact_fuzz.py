"""10 000 mutated model files: each is refused with a `UserError`, or is the model it was; nothing else happens."""

import hashlib
import json
import os
import random
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatf.errors import UserError
from gatf.io import container
from gatf.model import file as model_file

FILES, FORGED = 10_000, 1_000
SLACK = 2**18
"""Memory that loading takes whatever the file: compiled validators, error messages, the interpreter's own."""
FORBIDDEN = (
    "pickle.find_class",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "socket.connect",
    "ctypes.dlopen",
)
_watching, _caught = False, []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event in FORBIDDEN:
        _caught.append((event, arguments))


sys.addaudithook(_audit)


@pytest.fixture(scope="module")
def whole(tiny_classifier: Callable[..., Any], digit_images: Any, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    images, labels = digit_images
    chosen = np.isin(labels, ("d0", "d1"))
    learner = tiny_classifier(epochs=1, width=2, feature_dim=4).fit(images[chosen][:60], labels[chosen][:60])
    path = tmp_path_factory.mktemp("fuzz") / "whole.gatf"
    learner.save(path)
    return path.read_bytes()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: writing the files would take longer than reading them."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def watched() -> Iterator[None]:
    """Inside, code run on behalf of a file is noticed."""
    global _watching
    _watching = True
    _caught.clear()
    yield
    _watching = False
    assert not _caught


def mutated(whole: bytes, draw: random.Random) -> bytes:
    """The file after one or a few random accidents."""
    content = bytearray(whole)
    header_end = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        size = len(content)
        at = draw.randrange(min(size, header_end) if draw.random() < 0.7 else size) if size else 0
        match draw.randrange(8):
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
                content[:8] = draw.choice((2**63, 2**32, size, size - 8, draw.randrange(2**20), 0)).to_bytes(
                    8, "little", signed=False
                )
            case 6:
                content[at:at] = draw.choice(
                    (b"[", b"{", b"]", b'"', b"\\", b"[[[[[[[[", b"9" * 40, b"1e999", b"null,", b"\xff\xfe")
                )
            case _:
                start = draw.randrange(size) if size else 0
                content[at : at + 16] = content[start : start + 16]
    return bytes(content)


def test_ten_thousand_mutated_files_never_crash(whole: bytes, scratch: Path, watched: None) -> None:
    draw = random.Random(6)
    path = scratch / "mutated.gatf"
    refused = 0
    tracemalloc.start()
    try:
        for _ in range(FILES):
            content = mutated(whole, draw)
            path.write_bytes(content)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                model_file.load(path)
            except UserError:
                refused += 1
            else:
                assert content == whole, "a changed file was accepted"
            assert tracemalloc.get_traced_memory()[1] - before <= 2 * len(content) + SLACK
    finally:
        tracemalloc.stop()
    assert refused > 0.98 * FILES


def forged(whole: bytes, draw: random.Random) -> bytes:
    """A file whose JSON was changed at one place and whose checksum was made to fit."""
    length = int.from_bytes(whole[:8], "little")
    entries = json.loads(whole[8 : 8 + length])
    model = json.loads(entries["__metadata__"]["model"])
    target = draw.choice((entries, model, model, model["config"], model["config"]["backbone"], model["history"][0]))
    _change(target, draw)
    if target is not entries or "__metadata__" in entries:
        metadata = entries.get("__metadata__")
        if isinstance(metadata, dict):
            metadata |= {"digest": "0" * 32} | ({"model": json.dumps(model)} if target is not entries else {})
    header = json.dumps(entries, separators=(",", ":")).encode()
    content = len(header).to_bytes(8, "little") + header + whole[8 + length :]
    digest = hashlib.blake2b(content, digest_size=16).hexdigest().encode()
    return content.replace(b"0" * 32, digest, 1)


def _change(target: Any, draw: random.Random) -> None:
    """Replace, remove or add one value somewhere inside."""
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(target[key], (dict, list)) and target[key] and draw.random() < 0.6:
            target = target[key]
            continue
        strange: list[Any] = [
            None,
            -1,
            0,
            2**40,
            10**30,
            1e308,
            "",
            "x" * 2000,
            [],
            {},
            [[[]]],
            True,
            float("nan"),
            [1] * 500,
        ]
        if draw.random() < 0.2 and isinstance(target, dict):
            del target[key]
        else:
            target[key] = draw.choice(strange)
        return


@pytest.mark.filterwarnings("ignore")
def test_forged_files_with_a_fitting_checksum_never_crash(whole: bytes, scratch: Path, watched: None) -> None:
    draw = random.Random(7)
    path = scratch / "forged.gatf"
    accepted = 0
    for _ in range(FORGED):
        path.write_bytes(forged(whole, draw))
        try:
            model = model_file.load(path)
        except UserError:
            continue
        accepted += 1  # e.g. another date in the history, another seed
        assert len(model.labels) == 2
    assert 0 < accepted < 0.6 * FORGED


def test_every_single_flipped_bit_of_the_header_is_found(whole: bytes, scratch: Path) -> None:
    path = scratch / "flipped.gatf"
    draw = random.Random(8)
    for at in range(0, 8 + int.from_bytes(whole[:8], "little"), 3):
        content = bytearray(whole)
        content[at] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        with pytest.raises(UserError):
            container.inspect(path)


@pytest.mark.parametrize("filler", [b"[],", b'"a":{},', b"0,", b"[" * 50_000])
def test_a_header_full_of_nothing_takes_little_memory(filler: bytes, scratch: Path) -> None:
    """JSON such as [[],[],[]…] costs Python twenty times its size: it must not be parsed."""
    header = b'{"__metadata__":{"kind":"gatf-model"},"x":[' + filler * (900_000 // len(filler)) + b"0]}"
    path = scratch / "filled.gatf"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    tracemalloc.start()
    with pytest.raises(UserError):
        container.inspect(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * path.stat().st_size + SLACK
