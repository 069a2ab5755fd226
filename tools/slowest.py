"""Name the ten slowest tests in docs/contributing.md, from what `pytest --costs FILE` wrote.

    rm -f costs.jsonl; pytest -n 2 --dist worksteal --costs costs.jsonl; python tools/slowest.py costs.jsonl

Processor seconds, with the fixtures that a test was the first to ask for and the processes it waited for.
"""

import argparse
import json
from pathlib import Path

from update_docs import replace_between

PAGE = Path(__file__).resolve().parent.parent / "docs" / "contributing.md"
NAMED = 10


def table(costs: list[tuple[str, float]]) -> str:
    """The slowest tests and all of them together."""
    slowest = sorted(costs, key=lambda cost: -cost[1])[:NAMED]
    rows = [f"| `{test.removeprefix('tests/')}` | {seconds:.1f} |" for test, seconds in slowest]
    total = f"| all {len(costs)} that were run | {sum(seconds for _, seconds in costs):.0f} |"
    return "\n".join(["| test | processor seconds |", "|---|---:|", *rows, total]) + "\n"


def read(path: Path) -> list[tuple[str, float]]:
    """Tests and their seconds, of each test the last line."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return list({line["test"]: float(line["seconds"]) for line in lines}.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("costs", type=Path, help="what pytest --costs wrote")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(replace_between(page, "slowest", table(read(parser.parse_args().costs))), encoding="utf-8")


if __name__ == "__main__":
    main()
