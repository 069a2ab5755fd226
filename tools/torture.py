"""Run the long versions of the reliability tests, record their figures, and update docs/reliability.md.

python tools/torture.py                       everything, which takes hours
python tools/torture.py kills=30 tasks=200    only these parts, with these counts; other records stay
python tools/torture.py --missing             only the parts that have not passed yet with the full count
python tools/torture.py --minutes 30          start nothing after 30 minutes, and end what is running
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "torture.json"
READERS = (
    "model", "old model", "checkpoint", "run", "report", "update", "config", "bench", "class order", "pictures", "npz",
    "cifar", "cub", "tiny", "parquet", "weights",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Tests that run together, and the option that sets how many repetitions they have."""

    file: str
    chosen: str = ""
    """pytest's `-k`, or the argument of a script."""
    option: str = ""
    full: int = 1
    """Without an option the tests have one size."""

    def command(self, number: int, *, test: str = "") -> list[str]:
        """Arguments of Python: a script in benchmarks/ or pytest."""
        count = [self.option, str(number)] if self.option else []
        if self.file.startswith("benchmarks/"):
            return [self.file, self.chosen, *count]
        return ["-m", "pytest", "-s", self.file + test, *(["-k", self.chosen] if self.chosen else []), *count]


CRASHES, STORE = "tests/test_crashes.py", "tests/test_artifact_store.py"
PARTS = {
    "kills": Part(CRASHES, "any_moment", "--kills", 100),
    "tasks": Part("tests/test_long_life.py", "many_tasks_holds", "--tasks", 200),
    "fuzz": Part("tests/fuzz/test_readers.py", "", "--fuzz", 10_000),
    "updates": Part("tests/test_long_life.py", "updated_often", "--updates", 1000),
    "crashes": Part(CRASHES, "repeated_command", "--crash-points", 1000),
    "aftermath": Part(CRASHES, "another_command", "--crash-points", 1000),
    "versions": Part(STORE, "failed_update or model_itself or deleted_model or lineage"),
    "files": Part(STORE, "mode_and_owner or linked_model or what_is_no_file"),
    "history": Part("tests/test_long_life.py", "taught_again or could_not_be_written"),
    "cache": Part("tests/data/test_cache.py", "damaged or owner_only or other_pixels or another_user or rotten"),
    "load": Part("benchmarks/load.py", "digits", "--predictions", 10_000),
    "photo-load": Part("benchmarks/load.py", "photos", "--predictions", 10_000),
    "attacks": Part("benchmarks/attacks.py", "digits", "--seconds", 60),
    "photo-attacks": Part("benchmarks/attacks.py", "photos", "--seconds", 60),
}
"""In the order in which they run. No command has 1 000 file operations, so crash points are all of them."""


def jobs(part: str, number: int) -> dict[str, list[str]]:
    """Names and arguments of Python: one job per part, but for fuzzing one per reader."""
    chosen = PARTS[part]
    if part != "fuzz":
        return {part: chosen.command(number)}
    test = "::test_changed_files_are_refused_or_read_right"
    return {f"fuzz {reader}": chosen.command(number, test=f"{test}[{reader}]") for reader in READERS}


def commit() -> str:
    """The last commit that changed the package; with `-dirty` after local changes to it."""
    git = ["git", "-C", str(ROOT / "src")]
    found = subprocess.run([*git, "log", "-1", "--format=%h", "--abbrev=12", "--", "."], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain", "--", "."], capture_output=True, text=True)
    return found.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")


def recorded() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    return found


def record(name: str, number: int, output: str, *, passed: bool) -> None:
    """Replace the record of a job. The largest earlier run that passed stays as `larger`, without its figures."""
    known = recorded()
    before = known.get(name, {})
    earlier = [one for one in (before, before.get("larger")) if one and one["passed"] and one["number"] > number]
    larger = max(earlier, key=lambda one: one["number"], default=None)
    lines = [line.removeprefix("figure: ") for line in output.splitlines() if line.startswith("figure: ")]
    tests = re.search(r"(\d+) passed", output)
    known[name] = {
        "number": number, "date": datetime.now(UTC).date().isoformat(), "commit": commit(),
        "passed": passed,
        **({"tests": int(tests[1])} if tests else {}), "figures": [json.loads(line) for line in lines],
        **({"larger": {key: larger[key] for key in ("number", "date", "passed")}} if larger else {}),
    }  # fmt: skip
    OUT.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def main(minutes: float | None, chosen: dict[str, int], *, missing: bool) -> int:
    end = None if minutes is None else time.monotonic() + 60 * minutes
    failed = 0
    for part, number in (chosen or {name: part.full for name, part in PARTS.items()}).items():
        for name, arguments in jobs(part, number).items():
            before = recorded().get(name, {})
            if missing and before.get("passed") and before["number"] >= number:
                continue
            left = None if end is None else end - time.monotonic()
            if left is not None and left < 30:
                print(f"{name}: no time left", flush=True)
                continue
            print(f"{name}: python {' '.join(arguments)}", flush=True)
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
            try:
                output, _ = process.communicate(timeout=left)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.communicate()
                print(f"{name}: not finished in time", flush=True)
                continue
            if process.returncode:
                failed += 1
                print(output, flush=True)
            record(name, number, output, passed=process.returncode == 0)
    from update_docs import main as update

    update(["reliability.md"])
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--missing", action="store_true", help="leave out what has passed this often")
    parser.add_argument("parts", nargs="*", metavar="PART=NUMBER", help=f"of {', '.join(PARTS)}")
    given = parser.parse_args()
    pairs = [part.partition("=") for part in given.parts]
    numbers = {name: int(number or PARTS[name].full) for name, _, number in pairs}
    sys.exit(main(given.minutes, numbers, missing=given.missing))
