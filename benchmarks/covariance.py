"""What each kind of covariance costs and is worth: accuracy, bytes per class and seconds of GATF.

    python benchmarks/covariance.py [--quick] [--data-root FOLDER] [--out benchmarks/results/covariance.json]

Digits with the shipped recipe, seeds 0 to 2 (with --quick seed 0). Given a folder that holds CIFAR-100, also the first
three tasks of the recipe cifar100-cpu with 4 epochs per task, seed 0: enough to compare kinds, not to quote. The
networks of one seed are the same for all kinds, for covariances are not trained with; so differences are paired.
Seconds are the processor's, on one thread unless told otherwise. The folder may also be named by GATF_BENCH_CIFAR100.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, environment

from gatf.config import load_config
from gatf.experiment import start
from gatf.io.files import write_text

KINDS = ("full", "lowrank")
CIFAR = {"scenario.stop_after": 3, "optimisation.first.epochs": 4, "optimisation.next.epochs": 4}


def run(recipe: str, kind: str, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """The summary of one run, and the processor's seconds it took."""
    chosen = {**settings, "seed": seed, "method.covariance": kind, "device": "cpu"}
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as place:
        summary = start(load_config(recipe, method="gatf", overrides=chosen), Path(place) / "run")
    return {**asdict(summary), "processor_seconds": time.process_time() - begun}


def compare(recipe: str, seeds: range, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every kind over the seeds, with a line for each."""
    results = {}
    print(f"{recipe}, seeds {list(seeds)}")
    for kind in KINDS:
        done = [run(recipe, kind, seed, settings) for seed in seeds]
        results[kind] = {
            **{name: over_seeds([summary[name] for summary in done]) for name in ("a_last", "a_inc")},
            "bytes_per_class": done[0]["bytes_per_class"],
            "seconds": round(statistics.mean(summary["processor_seconds"] for summary in done), 1),
        }
        last, along = results[kind]["a_last"], results[kind]["a_inc"]
        print(
            f"  {kind:8s} A_last {last['mean']:6.2f} ± {last['std']:.2f}   A_inc {along['mean']:6.2f} ± "
            f"{along['std']:.2f}   {results[kind]['bytes_per_class']:>6} bytes per class   "
            f"{results[kind]['seconds']:>6} s a run",
            flush=True,
        )
    return results


def over_seeds(values: list[float]) -> dict[str, Any]:
    """Mean, standard deviation (0 for one) and the values."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": round(statistics.mean(values), 2), "std": round(spread, 2), "values": [round(v, 2) for v in values]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed of the digits alone")
    parser.add_argument(
        "--data-root", default=os.environ.get("GATF_BENCH_CIFAR100"), help="holds CIFAR-100; without it digits only"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--out", type=Path, default=RESULTS / "covariance.json", help="where the JSON goes")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    results = {"digits": compare("digits", range(1 if arguments.quick else 3), {})}
    if arguments.data_root is not None and not arguments.quick:
        results["cifar100"] = compare("cifar100-cpu", range(1), CIFAR | {"data.root": arguments.data_root})
    report = {"quick": arguments.quick, "results": results, "cifar100_settings": CIFAR, "environment": environment()}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(arguments.out, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
