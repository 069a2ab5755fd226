"""Does accuracy suffer from bfloat16? GATF with `precision=bf16-mixed` and with float32, the same seeds.

python tools/precision.py [DATA ...]     digits, glyphs and cifar100; all, if none is named

Digits have half the recipe's epochs; glyphs and CIFAR-100 are a few short tasks, for a processor without instructions
for bfloat16 computes it several times as slowly as float32: enough to compare, not to quote. CIFAR-100 is looked for
in the folder that GATF_BENCH_CIFAR100 names. Writes what benchmarks/results/precision.json lacks, a run at a time;
`python tools/performance.py` makes the table of docs/performance.md of it.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from update_docs import ROOT

from gatf.config import load_config
from gatf.experiment import start
from gatf.io.files import write_text
from gatf.training.precision import BFLOAT16, FLOAT32, processor

RECORD = ROOT / "benchmarks" / "results" / "precision.json"


def short(tasks: int | None, epochs: int) -> dict[str, Any]:
    """Settings of so many tasks and epochs per task."""
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
    """Data, seed and precision of runs that were not done with these settings, both precisions of a seed in turn."""
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
    """Accuracies of one run, and the processor's seconds."""
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
    torch.set_num_threads(1)
    record: Record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {"data": {}}
    able = [name for name in ("avx512_bf16", "amx_bf16") if name in processor().split()]
    record["environment"] = {"torch": torch.__version__, "instructions for bfloat16": able}
    for name, seed, precision in missing(record, names):
        found = run(name, seed, precision)
        record["data"][name]["runs"][precision][str(seed)] = found
        write_text(RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        print(f"{name}, seed {seed}, {precision}: {found}", flush=True)


if __name__ == "__main__":
    main()
