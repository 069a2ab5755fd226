"""Check the packages of requirements.lock against the security advisories of the Python package index.

Without network access, or behind a mirror without advisories, the check is skipped with a message and does not fail.
"""

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip", "-f", "json", "-r", str(LOCK)]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = done.stderr.strip().splitlines()[-1:] or ["no answer"]
        print(f"skipped: the advisories cannot be asked here ({reason[0]})")
        return 0
    asked = [package for package in packages if "skip_reason" not in package]
    if not asked:
        print(
            f"skipped: the advisories know none of the {len(packages)} packages here, as behind a mirror of the index"
        )
        return 0
    holes = [(package, hole) for package in asked for hole in package["vulns"]]
    for package, hole in holes:
        print(
            f"{package['name']} {package['version']}: {hole['id']}, mended in {', '.join(hole['fix_versions']) or '–'}"
        )
    print(f"{len(asked)} of {len(packages)} packages known to the advisories, {len(holes)} holes")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
