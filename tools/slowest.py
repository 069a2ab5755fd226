"""Print the ten slowest tests from what `pytest --costs FILE` wrote.

    rm -f costs.jsonl; pytest -n 2 --dist worksteal --costs costs.jsonl; python tools/slowest.py costs.jsonl

CPU seconds include the fixtures that a test was the first to request and the processes it waited for.
"""

import json
import sys
from pathlib import Path

NAMED = 10


def main(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    costs = {line["test"]: float(line["seconds"]) for line in lines}  # the last line of each test counts
    for test, seconds in sorted(costs.items(), key=lambda cost: -cost[1])[:NAMED]:
        print(f"{seconds:7.1f}  {test}")
    print(f"{sum(costs.values()):7.1f}  all {len(costs)} tests")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
