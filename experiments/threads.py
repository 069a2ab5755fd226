"""What the number of threads changes: results of one seed of digits, and the operations that the change comes from.

python tools/threads.py            run what benchmarks/results/threads.json lacks, then write docs/protocol.md's tables
python tools/threads.py --again    run all anew
python tools/threads.py --tables   no runs: the operations, and the tables of what is on record

A run is a process of its own, with so many threads, by the recipe of `gatf run --dataset digits`.
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
from torch import Tensor
from torch.nn import functional
from update_docs import ROOT, replace_between

from gatf.io.files import write_text

RECORD = ROOT / "benchmarks" / "results" / "threads.json"
PAGE = ROOT / "docs" / "protocol.md"
THREADS = (1, 2)
METHODS = ("fetril", "fecam", "finetune", "gatf")
"""Two that train in the first task alone, and two that train in all."""
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
    """Those that training and geometry are made of, at sizes of the digits' networks."""
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


def tables(record: dict[str, Any]) -> str:
    """Of results by threads, and of operations."""
    known = {(run["method"], run["threads"]): run for run in record["runs"]}
    heads = " | ".join(f"{threads} thread{'s' * (threads > 1)}" for threads in THREADS)
    lines = [
        f"| A_last %, A_inc % of seed {SEED} | {heads} | A_last spreads over |",
        "|---|" + "---:|" * (len(THREADS) + 1),
    ]
    for method in METHODS:
        own = [known[method, threads] for threads in THREADS if (method, threads) in known]
        if len(own) < len(THREADS):
            continue
        last = [run["a_last"] for run in own]
        cells = [f"{run['a_last']:.1f}, {run['a_inc']:.1f}" for run in own]
        lines.append(f"| `{method}` | {' | '.join(cells)} | {max(last) - min(last):.1f} |")
    lines += ["", "| operation | depends on the number of threads |", "|---|---|"]
    lines += [f"| {name} | {'yes' if differs else 'no'} |" for name, differs in record["operations"].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--tables", action="store_true")
    asked = parser.parse_args()
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() and not asked.again else {"runs": []}
    record["operations"] = differing()
    write_text(RECORD, json.dumps(record, indent=1) + "\n")
    done = {(run["method"], run["threads"]) for run in record["runs"]}
    for method in () if asked.tables else METHODS:
        for threads in THREADS:
            if (method, threads) not in done:
                record["runs"].append(results(method, threads))
                sys.stdout.write(f"{record['runs'][-1]}\n")
                sys.stdout.flush()
                write_text(RECORD, json.dumps(record, indent=1) + "\n")
    write_text(PAGE, replace_between(PAGE.read_text(encoding="utf-8"), "threads", tables(record)))


if __name__ == "__main__":
    main()
