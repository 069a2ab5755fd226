"""Measure which lines of the package the tests run, by package: writes benchmarks/results/coverage.json.

Lines that run only in processes that tests start count as not covered.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "coverage.json"
LEAST = 8


def main(tests: list[str]) -> int:
    with tempfile.TemporaryDirectory() as place:
        found = Path(place) / "found.json"
        counted = ["--cov=src/gatf", f"--cov-report=json:{found}"]
        run = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *counted, *tests]
        code = subprocess.run(run, cwd=ROOT, env={**os.environ, "COVERAGE_FILE": f"{place}/data"}).returncode
        files = json.loads(found.read_text(encoding="utf-8"))["files"]
    packages: dict[str, list[int]] = {}
    each = []
    for name, record in files.items():
        covered, lines = record["summary"]["covered_lines"], record["summary"]["num_statements"]
        parts = Path(name).relative_to("src/gatf").parts
        total = packages.setdefault(parts[0] if len(parts) > 1 else "gatf", [0, 0])
        total[0], total[1] = total[0] + covered, total[1] + lines
        if lines >= 10:
            each.append((100 * covered / lines, "/".join(parts)))
    whole = {
        "command": " ".join(["python tools/lines.py", *tests]),
        "packages": {
            name: {"lines": lines, "percent": round(100 * covered / max(lines, 1), 1)}
            for name, (covered, lines) in packages.items()
        },
        "least": [{"file": name, "percent": round(percent, 1)} for percent, name in sorted(each)[:LEAST]],
    }
    OUT.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
