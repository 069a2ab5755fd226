"""The stand-in accelerator of the tests: builds standin.cpp, loads it as the device `standin`, and counts.

Renaming PyTorch's spare backend holds for the whole process, so only processes of their own import this.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_name("standin.cpp")
COUNTERS = (
    "operations", "scalar reads", "size reads", "copies to the device", "waiting copies to the device",
    "copies to the host", "waiting copies to the host",
)  # fmt: skip
WAITS = ("scalar reads", "size reads", "waiting copies to the device", "waiting copies to the host")


def compiler() -> str | None:
    return shutil.which("g++")


def build() -> Path:
    """The compiled backend, from the user's cache where this source was compiled for this torch before."""
    root = Path(torch.__file__).parent
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-w"]
    if torch._C._GLIBCXX_USE_CXX11_ABI is not None:
        flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")
    identity = hashlib.blake2b(SOURCE.read_bytes() + torch.__version__.encode() + " ".join(flags).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gatf-tests"
    library = cache / f"standin-{identity.hexdigest()[:16]}.so"
    if not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        begun = library.with_suffix(f".{os.getpid()}")
        include = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
        link = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"]
        command = [str(compiler()), *flags, *include, str(SOURCE), "-o", str(begun), *link]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the stand-in does not compile:\n{done.stderr[-3000:]}")
        begun.rename(library)
    return library


class StandIn:
    """The loaded backend: its counters, and where in gatf each wait came from."""

    def __init__(self) -> None:
        path = build()
        torch.ops.load_library(str(path))
        self._library = ctypes.CDLL(str(path))
        self._library.standin_count.restype = ctypes.c_int64
        self.places: list[str] = []
        self.operations: list[str] = []
        kind = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
        self._callbacks = (kind(self._waited), kind(lambda name: self.operations.append(name.decode())))
        torch.utils.rename_privateuse1_backend("standin")
        torch._register_device_module("standin", self._module())
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)

    def _module(self) -> types.ModuleType:
        module: Any = types.ModuleType("torch.standin")
        module.is_available = lambda: True
        module.is_initialized = lambda: True
        module._is_in_bad_fork = lambda: False
        module.device_count = lambda: 2
        module.current_device = lambda: self._library.standin_device()
        module.set_device = lambda device: self._library.standin_set_device(torch.device("standin", device).index)
        module.manual_seed_all = lambda seed: None
        module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
        module.synchronize = lambda *device: None
        module.empty_cache = lambda: None
        return module

    def _waited(self, name: bytes) -> None:
        frames = [frame for frame in traceback.extract_stack() if f"{os.sep}gatf{os.sep}" in frame.filename]
        where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-4:]))
        self.places.append(f"{name.decode()} at {where or 'backward'}")

    def reset(self) -> None:
        self.places.clear()
        self.operations.clear()
        self._library.standin_reset()

    def counts(self) -> dict[str, int]:
        return {name: int(self._library.standin_count(number)) for number, name in enumerate(COUNTERS)}

    @contextmanager
    def recording(self, *, operations: bool = False) -> Iterator[None]:
        """Within, the place of each wait is kept, and the names of operations if asked for."""
        self._library.standin_on_wait(self._callbacks[0])
        self._library.standin_on_operation(self._callbacks[1] if operations else None)
        try:
            yield
        finally:
            self._library.standin_on_wait(None)
            self._library.standin_on_operation(None)

    @contextmanager
    def without_float64(self) -> Iterator[None]:
        self._library.standin_refuse_float64(True)
        try:
            yield
        finally:
            self._library.standin_refuse_float64(False)


def load() -> StandIn:
    return StandIn()


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
