"""Files gatf makes for itself: decoded pixels, memory-mapped. They appear by rename and may be deleted at any time."""

import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from gatf.io.container import write_plain

VERSION = 1
"""Part of every key: raise it when the same input would be decoded into something else."""


def cache_folder() -> Path:
    """`GATF_CACHE`, else the platform's folder for caches."""
    if os.environ.get("GATF_CACHE"):
        return Path(os.environ["GATF_CACHE"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "gatf"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "gatf" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gatf"


def digest(*parts: str | int) -> str:
    """A short name for what a cached file was made from."""
    text = "\0".join(str(part) for part in (VERSION, *parts))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def cached_file(name: str) -> Path:
    return cache_folder() / name


def cached_tensors(name: str, key: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors `make` returns, made once for a key and memory-mapped from then on.

    Where the cache cannot be written the tensors are simply made each time; a damaged file is made again.
    """
    path = cached_file(f"{name}-{key}.safetensors")
    if path.is_file():
        with suppress(SafetensorError, OSError):
            return load_file(path)
    tensors = make()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_plain(path, tensors)
        return load_file(path)
    return tensors
