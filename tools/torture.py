"""Run the long versions of the reliability tests, record their figures, and update docs/reliability.md.

python tools/torture.py                       everything, which takes hours
python tools/torture.py kills=30 tasks=200    only these parts, with these counts; other records stay
python tools/torture.py --missing             only what has not passed yet with the full count
python tools/torture.py --minutes 30          start nothing after 30 minutes, and end what is running
"""

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "torture.json"
READERS = (
    "model", "old model", "checkpoint", "run", "report", "update", "config", "bench", "class order", "pictures", "npz",
    "cifar", "cub", "tiny", "parquet", "weights",
)  # fmt: skip
PARTS: dict[str, tuple[str | int, ...]] = {
    "kills": ("tests/test_crashes.py", "-k", "any_moment", "--kills", 100),
    "tasks": ("tests/test_long_life.py", "-k", "many_tasks_holds", "--tasks", 200),
    "fuzz": ("tests/fuzz/test_readers.py", "--fuzz", 10_000),
    "updates": ("tests/test_long_life.py", "-k", "updated_often", "--updates", 1000),
    "crashes": ("tests/test_crashes.py", "-k", "repeated_command", "--crash-points", 1000),
}
"""What is run, and how often of it; no command has 1 000 file operations, so all of them."""


def jobs(part: str, number: int) -> dict[str, list[str]]:
    """Names and pytest's arguments: one for each part, but for fuzzing one for each reader."""
    *arguments, _ = map(str, PARTS[part])
    if part != "fuzz":
        return {part: [*arguments, str(number)]}
    file, *options = arguments
    test = f"{file}::test_changed_files_are_refused_or_read_right"
    return {f"fuzz {reader}": [f"{test}[{reader}]", *options, str(number)] for reader in READERS}


def main(minutes: float | None, chosen: dict[str, int], *, missing: bool) -> int:
    end = None if minutes is None else time.monotonic() + 60 * minutes
    known: dict[str, dict[str, Any]] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    failed = 0
    for part, number in (chosen or {name: int(part[-1]) for name, part in PARTS.items()}).items():
        for name, arguments in jobs(part, number).items():
            before = known.get(name, {})
            if missing and before.get("passed") and before["number"] >= number:
                continue
            left = None if end is None else end - time.monotonic()
            if left is not None and left < 30:
                print(f"{name}: no time left", flush=True)
                continue
            command = [sys.executable, "-m", "pytest", "-s", "-q", *arguments]
            print(f"{name}: {' '.join(command[2:])}", flush=True)
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
            )
            try:
                told, _ = process.communicate(timeout=left)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                print(f"{name}: not finished in time", flush=True)
                continue
            if process.returncode:
                failed += 1
                print(told, flush=True)
            lines = [line.removeprefix("figure: ") for line in told.splitlines() if line.startswith("figure: ")]
            known[name] = {
                "number": number, "date": datetime.now(UTC).date().isoformat(), "passed": process.returncode == 0,
                "figures": [json.loads(line) for line in lines],
            }  # fmt: skip
            OUT.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    from update_docs import main as update

    update([])
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--missing", action="store_true", help="leave out what has passed this often")
    parser.add_argument("parts", nargs="*", metavar="PART=NUMBER", help=f"of {', '.join(PARTS)}")
    given = parser.parse_args()
    pairs = [part.partition("=") for part in given.parts]
    numbers = {name: int(number or PARTS[name][-1]) for name, _, number in pairs}
    sys.exit(main(given.minutes, numbers, missing=given.missing))
