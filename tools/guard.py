"""Check that a refactor keeps the bits: digests of short runs of every method and preset, and of updated classifiers.

python tools/guard.py record before.json     before the change
python tools/guard.py check before.json      after it; names every run that differs, and in what

Bits depend on the machine and the number of threads, so do not commit a record. Runs use one thread and seed 0. Methods
and presets come from the code: `check` lists recorded runs that no longer exist and runs that the record lacks, and
neither counts as a difference. A run that raises an error is recorded with its message.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from safetensors import safe_open
from sklearn.datasets import load_digits

from gatf import IncrementalClassifier
from gatf.config import load_config
from gatf.experiment import start
from gatf.methods import METHODS
from gatf.methods.parts.gaussian import GaussianMethod

SHORT = {
    "device": "cpu",
    "optimisation.first.epochs": 4,
    "optimisation.next.epochs": 4,
    # one epoch of warm-up, which methods that have none by default must heed as well
    "optimisation.first.warmup": 0.25,
    "optimisation.next.warmup": 0.25,
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "digits": {"scenario.stop_after": 3},
    "glyphs": {"data.glyphs.classes": 9, "data.glyphs.train_per_class": 30, "scenario.tasks": 3},
}
Job = Callable[[], dict[str, str]]
Record = dict[str, dict[str, str]]
UPDATED = ("gatf", "adagauss", "fetril", "lwf")
"""Methods whose model is fitted and updated twice."""
NOT_BITS = {"seconds", "total_seconds", "processor_seconds", "peak_memory_mb", "versions", "date", "machine"}
"""Entries that differ from run to run."""


def digest(value: Any) -> str:
    """Of an array, or of numbers and texts in JSON (NaN and floating-point numbers by their exact value)."""
    if isinstance(value, np.ndarray):
        content = f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    else:
        content = json.dumps(value, sort_keys=True, default=str).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def numbers(summary: dict[str, Any], prefix: str = "") -> dict[str, str]:
    return {f"{prefix}{name}": digest(value) for name, value in summary.items() if name not in NOT_BITS}


def tensors(path: Path) -> dict[str, str]:
    with safe_open(path, framework="np") as file:
        return {f"tensor {name}": digest(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118


def networks(path: Path) -> dict[str, str]:
    """The tensors of the method alone: networks and what is kept of classes."""
    found = tensors(path)
    return {name.replace("tensor method.", "tensor "): value for name, value in found.items() if "method." in name}


def run(dataset: str, method: str, preset: str | None = None) -> dict[str, str]:
    """A short run: the tensors of its model file (networks, Gaussians), the numbers of its summary."""
    chosen = {} if preset is None else {"method.preset": preset}
    config = load_config(dataset, method=method, overrides=SHORT | SCENARIOS[dataset] | chosen)
    with tempfile.TemporaryDirectory() as folder:
        start(config, Path(folder))
        summary = json.loads((Path(folder) / "summary.json").read_text(encoding="utf-8"))
        return numbers(summary, "summary ") | networks(Path(folder) / "model.safetensors")


def updated(method: str) -> dict[str, str]:
    """A classifier fitted to four digits, then taught three more and two of the old ones with one new."""
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) * 15.9375).astype(np.uint8)
    classifier = IncrementalClassifier(method=method, epochs=4, device="cpu", random_state=0)
    known = issubclass(METHODS[method], GaussianMethod)
    found: dict[str, str] = {}
    for step, classes in enumerate(((0, 1, 2, 3), (4, 5, 6), (1, 4, 7) if known else (7, 8))):
        members = np.isin(labels, classes)
        classifier.partial_fit(images[members], labels[members])
        record = classifier.report_.model_dump(mode="json")
        found |= numbers(record, f"update {step} ")
    found["probabilities"] = digest(classifier.predict_proba(images[:50]))
    with tempfile.TemporaryDirectory() as folder:
        classifier.save(Path(folder) / "model.gatf")
        return found | tensors(Path(folder) / "model.gatf")


def jobs() -> dict[str, Job]:
    """Every run by name; presets, but for the default one, on digits only."""
    made: dict[str, Job] = {}
    for method, described in METHODS.items():
        for dataset in SCENARIOS:
            made[f"run {dataset} {method}"] = partial(run, dataset, method)
        for preset in described.Config.preset_names()[1:]:
            made[f"run digits {method} preset={preset}"] = partial(run, "digits", method, preset)
    return made | {f"learn {method}": partial(updated, method) for method in UPDATED if method in METHODS}


def digests(job: Job) -> dict[str, str]:
    try:
        return job()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def differences(before: Record, now: Record, wanted: str = "") -> tuple[list[str], int]:
    """Lines for every run that differs, was deleted or is new; and the number of runs that differ."""
    lines, differing = [], 0
    for name, found in now.items():
        if name not in before:
            lines.append(f"{name}: not in the record")
            continue
        known = before[name]
        off = sorted(key for key in known.keys() | found.keys() if known.get(key) != found.get(key))
        if off:
            differing += 1
            shown = f"{', '.join(off[:4])}{' …' if len(off) > 4 else ''}"
            lines.append(f"{name}: {len(off)} of {len(known)} differ: {shown} {found.get('error', '')}".rstrip())
    lines += [f"{name}: no longer exists" for name in before if wanted in name and name not in now]
    return lines, differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="runs whose name contains this")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {name: digests(job) for name, job in jobs().items() if chosen.only in name}
    if chosen.what == "record":
        chosen.file.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(f"{len(found)} runs, {sum(map(len, found.values()))} digests")
        for name in (name for name in found if "error" in found[name]):
            print(f"{name}: {found[name]['error']}")
        return 0
    before: Record = json.loads(chosen.file.read_text(encoding="utf-8"))
    lines, differing = differences(before, found, chosen.only)
    print(
        "\n".join(
            [*lines, f"{len(found.keys() & before.keys()) - differing} runs have the same bits, {differing} differ"]
        )
    )
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
