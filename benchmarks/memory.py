"""Memory of a run over twenty tasks: what is left of a task should be its Gaussians.

    python benchmarks/memory.py [--quick] [--out benchmarks/results/memory.json]

GATF on 100 classes of glyphs in 20 tasks, one epoch a task. When a task begins, with the garbage collected, the bytes
of all living tensors are added up: their growth a task is compared with the Gaussians of the classes it added. The
resident memory of the process is told beside it; it also holds what allocators keep for the next task.
"""

import ctypes
import gc
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Report, options, status

from gatf.config import load_config
from gatf.experiment import start
from gatf.io.events import Event, TaskStart

TASKS, SETTLED = 20, 2


def main() -> None:
    arguments = options("memory", __doc__)
    tasks = 8 if arguments.quick else TASKS
    settings: dict[str, Any] = {
        "scenario.tasks": TASKS, "scenario.stop_after": tasks, "data.max_per_class": 20, "backbone.width": 8,
        "backbone.bottleneck": 32, "method.samples": 1000,
    }  # fmt: skip
    for part in ("first", "next"):
        settings |= {f"optimisation.{part}.epochs": 1, f"optimisation.{part}.batch_size": 64}
    living: list[int] = []
    resident: list[int] = []

    def listen(event: Event) -> None:
        if isinstance(event, TaskStart):
            gc.collect()
            living.append(tensor_bytes())
            ctypes.CDLL(None).malloc_trim(0)
            resident.append(status("VmRSS"))

    with tempfile.TemporaryDirectory() as place:
        summary = start(load_config("glyphs", method="gatf", overrides=settings), Path(place) / "run", (listen,))
    gaussians = summary.bytes_per_class * len(summary.class_names) / tasks
    growth, resident_growth = slope(living), slope(resident)
    about = {"living_megabytes": [value / 1e6 for value in living]}
    report = Report(arguments, {"tasks": tasks, **about, "resident_megabytes": [value / 1e6 for value in resident]})
    report.add(
        "growth of living tensors per task, against its Gaussians", ours=growth / 1e3, reference=gaussians / 1e3,
        ratio=gaussians / growth, unit="kB", at_most=1.01 * gaussians / 1e3, resident_kilobytes=resident_growth / 1e3,
    )  # fmt: skip
    print(f"resident memory grows by {resident_growth / 1e3:.0f} kB a task, from {resident[SETTLED] / 1e6:.0f} MB")
    report.write()


def tensor_bytes() -> int:
    """Bytes of the storages of all tensors that Python can reach, each counted once."""
    storages = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # looking at every object wakes some that are deprecated
        for thing in gc.get_objects():
            if isinstance(thing, torch.Tensor):
                storage = thing.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def slope(values: list[int]) -> float:
    """Growth a task once the second task has begun, by least squares."""
    later = values[SETTLED:]
    return float(np.polyfit(np.arange(len(later)), later, 1)[0])


if __name__ == "__main__":
    main()
