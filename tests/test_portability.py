"""Every module can be imported where Python has no POSIX modules, as on Windows."""

import subprocess
import sys

import pytest

IMPORT_ALL = """
import os, pkgutil, signal, sys

# Other packages import what they need first: how they run on another system is their concern.
import filelock, fastapi, matplotlib.pyplot, multiprocessing.popen_fork, numpy, PIL.Image, pydantic, rich.console
import scipy.linalg, sklearn.linear_model, torch, torch.distributed, torch.utils.data, typer, uvicorn, lightning_fabric

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for module, name in [(os, "nice"), (os, "register_at_fork"), (os, "getuid"), (os, "chown"), (os, "fork"),
                     (os, "sched_getaffinity"), (signal, "SIGKILL"), (signal, "SIGHUP")]:
    if hasattr(module, name):
        delattr(module, name)

import gatf

for module in pkgutil.walk_packages(gatf.__path__, "gatf."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
        print(module.name)

import tempfile
from pathlib import Path
import numpy as np
from gatf import IncrementalClassifier
from gatf.data import cache
from gatf.incremental.store import Store

images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
classifier = IncrementalClassifier(method="slda", epochs=1, width=4, device="cpu").fit(images, np.arange(40) % 2)
with tempfile.TemporaryDirectory() as folder:
    store = Store(Path(folder) / "shop.gatf")
    for labels in (np.arange(40) % 2, np.arange(40) % 2 + 2):
        with store.writing():
            store.commit(classifier.model_, keep=1)
        classifier.partial_fit(images, labels)
    with store.writing():
        store.commit(classifier.model_, keep=1)
        store.rollback()
    os.environ["GATF_CACHE"] = folder
    cache.cached_tensors("x", "0" * 24, dict)
"""


@pytest.mark.slow
def test_every_module_is_imported_and_models_are_updated_without_posix() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) > 150
