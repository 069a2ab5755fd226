"""Write requirements.lock: every package that tests and docs need, with version and hashes, from the indexes that pip
uses. torch is left out, because its CPU build comes from an index of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEAD = """\
# Every package of the extra `dev`, for Python 3.11 on Linux, with hashes; torch's version is in constraints-cpu.txt.
# Written by `make lock`, installed by `make install-locked`.
"""


def setting(name: str) -> list[str]:
    """A setting of pip that says where packages are."""
    result = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", f"global.{name}"], capture_output=True, text=True
    )
    return (os.environ.get(f"PIP_{name.upper().replace('-', '_')}") or result.stdout).split()


def main() -> int:
    places = [f"--extra-index-url={url}" for url in setting("extra-index-url")]
    places += [f"--find-links={place}" for place in setting("find-links")]
    command = [
        str(Path(sys.executable).with_name("uv")), "pip", "compile", "pyproject.toml", "--extra", "dev",
        "--python-version", "3.11", "-c", "constraints-cpu.txt", "--generate-hashes", "--no-header", "--no-annotate",
        "--no-emit-package", "torch", "--no-emit-index-url", "--index-strategy", "unsafe-best-match", *places,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return done.returncode
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    LOCK.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{LOCK.name}: {sum('==' in line for line in lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
