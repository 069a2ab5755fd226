"""Does bfloat16 cost accuracy? GATF with `precision=bf16-mixed` and with float32 for the same seeds.

python experiments/precision.py [DATA ...]     digits, glyphs and cifar100; all if none is named

Digits use half the epochs of the recipe. Glyphs and CIFAR-100 are a few short tasks, because processors without
bfloat16 instructions are slow. GATF_BENCH_CIFAR100 names the folder of CIFAR-100. Only missing runs are done.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import load, one_thread, save

from gatf.config import load_config
from gatf.experiment import start
from gatf.training.precision import BFLOAT16, FLOAT32, INSTRUCTIONS, flags


def short(tasks: int | None, epochs: int) -> dict[str, Any]:
    """Settings for a number of tasks and epochs per task."""
    return {"scenario.stop_after": tasks, "optimisation.first.epochs": epochs, "optimisation.next.epochs": epochs}


CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "digits": ("digits", 5, short(None, 30)),
    "glyphs": ("glyphs", 2, short(2, 10) | {"data.glyphs.train_per_class": 50}),
    "cifar100": (
        "cifar100-cpu", 2,
        short(2, 5) | {"data.max_per_class": 60, "backbone.width": 8, "method.rotation": False},
    ),
}  # fmt: skip
"""Recipe, seeds, and what differs from the recipe."""
Record = dict[str, Any]


def missing(record: Record, names: list[str]) -> list[tuple[str, int, str]]:
    """Data, seed and precision of the runs that the record lacks with these settings."""
    wanted = []
    for name in names:
        recipe, seeds, settings = CASES[name]
        done = record["data"].get(name, {})
        if done.get("settings") != settings or done.get("recipe") != recipe:
            record["data"][name] = {"recipe": recipe, "settings": settings, "runs": {FLOAT32: {}, BFLOAT16: {}}}
        runs = record["data"][name]["runs"]
        wanted += [
            (name, seed, precision)
            for seed in range(seeds)
            for precision in (FLOAT32, BFLOAT16)
            if str(seed) not in runs[precision]
        ]
    return wanted


def run(name: str, seed: int, precision: str) -> dict[str, float]:
    """Accuracies and CPU seconds of one run."""
    recipe, _, settings = CASES[name]
    chosen = {**settings, "seed": seed, "precision": precision, "device": "cpu"}
    if recipe.startswith("cifar"):
        chosen["data.root"] = os.environ.get("GATF_BENCH_CIFAR100")
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as place:
        summary = start(load_config(recipe, method="gatf", overrides=chosen), Path(place) / "run")
    seconds = round(time.process_time() - begun, 1)
    return {"a_last": round(summary.a_last, 2), "a_inc": round(summary.a_inc, 2), "processor_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="DATA", help=", ".join(CASES))
    names = parser.parse_args().names or list(CASES)
    if unknown := set(names) - set(CASES):
        parser.error(f"no data is called {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    one_thread()
    record: Record = load("precision", {"data": {}})
    able = sorted(INSTRUCTIONS & flags())
    record["environment"] = {"torch": torch.__version__, "instructions for bfloat16": able}
    for name, seed, precision in missing(record, names):
        found = run(name, seed, precision)
        record["data"][name]["runs"][precision][str(seed)] = found
        save("precision", record)
        print(f"{name}, seed {seed}, {precision}: {found}", flush=True)


if __name__ == "__main__":
    main()
