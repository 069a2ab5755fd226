"""All benchmarks one after another, each in a process of its own, and what they took.

    python benchmarks/run.py [--quick] [NAME ...]

Run it on a machine that does nothing else. Results go to benchmarks/results/NAME.json; those of --quick are not kept.
The exit code is 1 if a benchmark broke, not if a target was missed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = (
    "startup", "photos", "augment", "decode", "scoring", "pushforward", "anchor", "training", "refresh", "memory",
    "whole_run", "growth", "commands",
)  # fmt: skip
ASKED_FOR = ("waiting", "compiling", "covariance", "serving", "vectors")
"""Not quick, and most are no comparisons of speed: only run by name."""
THREADS = 2


def run(name: str, *, quick: bool) -> bool:
    """Whether the benchmark finished."""
    path = HERE / f"{name}.py"
    print(f"-- {name}", flush=True)
    # harness.py has them too, but takes seconds to import
    libraries = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = os.environ | dict.fromkeys(libraries, str(THREADS))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quick", "--out", str(Path(folder) / f"{name}.json")] if quick else []
        code = subprocess.run([sys.executable, str(path), *options], env=environment, check=False).returncode
    print(f"   {time.perf_counter() - start:.0f} s" + (f", broke with code {code}" if code else ""), flush=True)
    return code == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES + ASKED_FOR)}")
    parser.add_argument("--quick", action="store_true", help="fewer repeats and smaller inputs")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES + ASKED_FOR)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES + ASKED_FOR)}")
    start = time.perf_counter()
    broken = [name for name in arguments.names or NAMES if not run(name, quick=arguments.quick)]
    print(f"-- {time.perf_counter() - start:.0f} s in all" + (f"; broken: {', '.join(broken)}" if broken else ""))
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
