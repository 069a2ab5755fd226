"""Run folders with made-up results: reports are about pictures and words, not about training."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from gatf.evaluation.metrics import forgetting

FADING = {"finetune": 0.25, "lwf": 0.75, "adagauss": 0.88, "gatf": 0.93, "joint": 1.0}
"""What is left of the accuracy on a task after each later one."""


def write_run(
    folder: Path,
    method: str = "gatf",
    seed: int = 0,
    *,
    tasks: int = 5,
    classes: int = 10,
    dataset: str = "digits",
    confused: bool = False,
) -> dict[str, Any]:
    """A finished run as an experiment leaves it, without the training."""
    draws = np.random.default_rng([seed, *map(ord, method)])
    size = classes // tasks
    by_class = [
        [
            float(np.clip(96 * FADING[method] ** (task - number // size) + draws.normal(0, 2), 0, 100))
            for number in range((task + 1) * size)
        ]
        for task in range(tasks)
    ]  # fmt: skip
    matrix = [[float(np.mean(row[k : k + size])) for k in range(0, len(row), size)] for row in by_class]
    seen = [float(np.mean(row)) for row in by_class]
    summary = {
        "method": method, "dataset": dataset, "tasks": tasks, "seed": seed,
        "class_order": list(range(classes)), "class_names": [f"class {number}" for number in range(classes)],
        "a_last": seen[-1], "a_inc": float(np.mean(seen)), "forgetting": forgetting(matrix),
        "a_last_task_weighted": seen[-1], "a_inc_task_weighted": float(np.mean(seen)),
        "accuracy_matrix": matrix, "accuracy_seen": seen, "task_aware": matrix, "accuracy_by_class": by_class,
        "old_to_new": [None, *[0.7 * (100 - row[0]) for row in matrix[1:]]],
        "seconds": [2.5] * tasks, "total_seconds": 2.5 * tasks, "peak_memory_mb": [300.0] * tasks,
        "bytes_per_class": 2240, "versions": {"gatf": "0.1.0", "torch": "2.6.0", "python": "3.11.9"},
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    config = {"data": {"name": dataset}, "scenario": {"tasks": tasks}, "method": {"name": method}, "seed": seed}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    if confused:
        lines = [f"class {n},class {n},8\nclass {n},class {(n + 1) % classes},2\n" for n in range(classes)]
        (folder / "confusion.csv").write_text("class,predicted,images\n" + "".join(lines), encoding="utf-8")
    return summary


@pytest.fixture(scope="session")
def fake_run() -> Callable[..., dict[str, Any]]:
    return write_run


@pytest.fixture(scope="session")
def fake_bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five methods, three seeds, ten tasks."""
    folder = tmp_path_factory.mktemp("bench") / "made-up"
    for method in FADING:
        for seed in range(3):
            write_run(folder / f"{method}-seed{seed}", method, seed, tasks=10, classes=100, dataset="cifar100")
    return folder
