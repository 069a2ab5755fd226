"""The long versions of the tests of reliability: run them, keep their figures, write docs/reliability.md.

python tools/torture.py                       everything, which takes hours
python tools/torture.py kills=30 tasks=200    only these, this often
python tools/torture.py --minutes 30          stops when the time is up, and says what was not reached
"""

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "torture.json"
PARTS = {
    "kills": ("tests/test_crashes.py", "-k", "any_moment", "--kills", 100),
    "tasks": ("tests/test_long_life.py", "-k", "many_tasks_holds", "--tasks", 200),
    "fuzz": ("tests/fuzz", "--fuzz", 10_000),
    "updates": ("tests/test_long_life.py", "-k", "updated_often", "--updates", 1000),
    "crashes": ("tests/test_crashes.py", "-k", "repeated_command", "--crash-points", 20),
}
"""What is run, and how often of it."""


def main(minutes: float | None, chosen: dict[str, int]) -> int:
    end = None if minutes is None else time.monotonic() + 60 * minutes
    figures, failed, late = [], [], []
    for name, number in chosen.items() or {name: part[-1] for name, part in PARTS.items()}.items():
        arguments = PARTS[name][:-1]
        left = None if end is None else end - time.monotonic()
        if left is not None and left < 30:
            late.append(name)
            continue
        command = [sys.executable, "-m", "pytest", "-s", "-q", *map(str, arguments), str(number)]
        print(f"{name}: {' '.join(command[2:])}", flush=True)
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        try:
            told, _ = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            process.kill()
            told, _ = process.communicate()
            late.append(name)
        else:
            if process.returncode:
                failed.append(name)
                print(told, flush=True)
        figures += [json.loads(line.removeprefix("figure: ")) for line in told.splitlines() if line[:8] == "figure: "]
        shown = " ".join(["python tools/torture.py", *(f"{part}={count}" for part, count in chosen.items())])
        shown += f" --minutes {minutes:g}" if minutes is not None else ""
        outcome = "all passed" if not failed else f"failed: {', '.join(failed)}"
        outcome += f"; not finished in time: {', '.join(late)}" if late else ""
        date = datetime.now(UTC).date().isoformat()
        whole = {"command": shown, "date": date, "outcome": outcome, "figures": figures}
        OUT.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    from update_docs import main as update

    update([])
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("parts", nargs="*", metavar="PART=NUMBER", help=f"of {', '.join(PARTS)}")
    given = parser.parse_args()
    pairs = [part.partition("=") for part in given.parts]
    sys.exit(main(given.minutes, {name: int(number or PARTS[name][-1]) for name, _, number in pairs}))
