"""Mutated model files: each is refused with a `UserError`, or is the model it was; nothing else happens.

`tests/fuzz` has more of them, and all other readers.
"""

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

from .fuzz.accidents import change, mutated

FILES, FORGED = 2_000, 300
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


def test_mutated_files_never_crash_and_take_little_memory(whole: bytes, scratch: Path, watched: None) -> None:
    draw = random.Random(6)
    path = scratch / "mutated.gatf"
    refused, header = 0, 8 + int.from_bytes(whole[:8], "little")
    tracemalloc.start()
    try:
        for _ in range(FILES):
            content = mutated(whole, draw, prefix=header)
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
    change(target, draw)
    if target is not entries or "__metadata__" in entries:
        metadata = entries.get("__metadata__")
        if isinstance(metadata, dict):
            metadata |= {"digest": "0" * 32} | ({"model": json.dumps(model)} if target is not entries else {})
    header = json.dumps(entries, separators=(",", ":")).encode()
    content = len(header).to_bytes(8, "little") + header + whole[8 + length :]
    digest = hashlib.blake2b(content, digest_size=16).hexdigest().encode()
    return content.replace(b"0" * 32, digest, 1)


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
