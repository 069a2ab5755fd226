"""Record the ten slowest tests from what `pytest --costs FILE` wrote, and name them in docs/contributing.md.

    rm -f costs.jsonl; pytest -n 2 --dist worksteal --costs costs.jsonl; python tools/slowest.py costs.jsonl

CPU seconds include the fixtures that a test was the first to request and the processes it waited for.
"""

import json
import sys
from pathlib import Path

import update_docs
from pages import BENCHMARKS

NAMED = 10


def main(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    costs = {line["test"]: float(line["seconds"]) for line in lines}  # the last line of each test counts
    slowest = sorted(costs.items(), key=lambda cost: -cost[1])[:NAMED]
    found = {"tests": len(costs), "seconds": sum(costs.values()), "slowest": slowest}
    (BENCHMARKS / "slowest.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    update_docs.main(["contributing.md"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
