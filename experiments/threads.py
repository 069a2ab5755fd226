"""Does the number of threads change results, and through which operations?

python experiments/threads.py            the runs that the record lacks, and all operations
python experiments/threads.py --again    everything

Each run is a separate process with one or two threads, by the recipe of `gatf run --dataset digits`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import load, save
from torch import Tensor
from torch.nn import functional

THREADS = (1, 2)
METHODS = ("fetril", "fecam", "finetune", "gatf")
"""Two methods that train in the first task only, and two that train in all tasks."""
SEED = 0


def results(method: str, threads: int) -> dict[str, Any]:
    """A_last and A_inc of one run."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "run"
        words = ["run", "--method", method, "--seed", str(SEED), "--out", str(folder), "--quiet", "--no-report"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
        subprocess.run([sys.executable, "-m", "gatf", *words], env=environment, check=True, stdout=subprocess.DEVNULL)
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["machine"]["threads"] == str(threads)
    return {"method": method, "threads": threads, "a_last": summary["a_last"], "a_inc": summary["a_inc"]}


def operations() -> dict[str, Callable[[], Tensor]]:
    """Operations of training and geometry, at the sizes of the recipe for digits."""
    draws = torch.Generator().manual_seed(0)
    images = torch.randn(128, 32, 8, 8, generator=draws).to(memory_format=torch.channels_last).requires_grad_()
    kernels = torch.randn(64, 32, 3, 3, generator=draws).requires_grad_()
    upstream = torch.randn(128, 64, 8, 8, generator=draws).to(memory_format=torch.channels_last)
    features = torch.randn(2000, 64, generator=draws, dtype=torch.float64)
    rows = torch.randn(20000, 512, generator=draws)
    covariance = features.T @ features / 2000

    def convolved() -> Tensor:
        return functional.conv2d(images, kernels, padding=1)

    def normalised() -> Tensor:
        return functional.batch_norm(upstream, None, None, training=True)

    return {
        "convolution": convolved,
        "gradient of a convolution's images": lambda: torch.autograd.grad(convolved(), images, upstream)[0],
        "gradient of a convolution's weights": lambda: torch.autograd.grad(convolved(), kernels, upstream)[0],
        "batch-norm in training": normalised,
        "matrix product, float32": lambda: rows.T @ rows,
        "matrix product, float64": lambda: features.T @ features,
        "sum of ten million numbers, float32": lambda: rows.sum(),
        "means of features, float64": lambda: features.mean(0),
        "Cholesky factor, float64": lambda: torch.linalg.cholesky(covariance),
        "eigenvalues, float64": lambda: torch.linalg.eigvalsh(covariance),
    }


def differing() -> dict[str, bool]:
    """Whether an operation's bits depend on the number of threads."""
    before = torch.get_num_threads()
    found: dict[str, bool] = {}
    for name, compute in operations().items():
        torch.set_num_threads(THREADS[0])
        alone = compute().detach()
        for threads in THREADS[1:]:
            torch.set_num_threads(threads)
            found[name] = found.get(name, False) or not torch.equal(compute().detach(), alone)
    torch.set_num_threads(before)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true")
    record = {"runs": []} if parser.parse_args().again else load("threads", {"runs": []})
    record["operations"] = differing()
    done = {(run["method"], run["threads"]) for run in record["runs"]}
    for method in METHODS:
        for threads in THREADS:
            if (method, threads) not in done:
                record["runs"].append(results(method, threads))
                print(record["runs"][-1], flush=True)
                save("threads", record)
    save("threads", record)


if __name__ == "__main__":
    main()
