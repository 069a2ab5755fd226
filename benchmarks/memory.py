"""Memory of a run over twenty tasks: what is left of a task should be its Gaussians.

    python benchmarks/memory.py [--quick] [--out benchmarks/results/memory.json]

GATF on 100 classes of glyphs in 20 tasks, one epoch a task. After every task the resident memory of the process is
read; the slope over the later tasks is compared with the bytes of the Gaussians a task adds.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import Report, _status, options

from gatf.config import load_config
from gatf.experiment import start

TASKS, SETTLED = 20, 5


def main() -> None:
    arguments = options("memory", __doc__)
    tasks = 8 if arguments.quick else TASKS
    settings: dict[str, Any] = {
        "scenario.tasks": TASKS, "scenario.stop_after": tasks, "data.max_per_class": 20, "backbone.width": 8,
        "backbone.bottleneck": 32, "method.samples": 1000,
    }  # fmt: skip
    for part in ("first", "next"):
        settings |= {f"optimisation.{part}.epochs": 1, f"optimisation.{part}.batch_size": 64}
    resident: list[int] = []

    def listen(kind: str, /, **fields: Any) -> None:
        if kind == "task":
            resident.append(_status("VmRSS"))

    with tempfile.TemporaryDirectory() as place:
        summary = start(load_config("glyphs", method="gatf", overrides=settings), Path(place) / "run", (listen,))
    kept = summary["bytes_per_class"] * len(summary["class_names"]) / TASKS
    later = resident[SETTLED:]
    slope = float(np.polyfit(np.arange(len(later)), later, 1)[0]) if len(later) > 1 else 0.0
    report = Report(arguments, {"tasks": tasks, "resident_megabytes": [value / 1e6 for value in resident]})
    report.add(
        "growth of a run's memory a task, beyond the Gaussians", ours=(slope - kept) / 1e6, reference=None, ratio=None,
        unit="MB", at_most=0.5, slope_megabytes=slope / 1e6, gaussians_megabytes=kept / 1e6,
    )  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
