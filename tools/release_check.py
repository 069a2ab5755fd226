"""Build the wheel and the source distribution, and check both as a user would install them.

python tools/release_check.py              build, contents, metadata, workflows, types, and an installation of each kind
python tools/release_check.py --no-install build, contents, metadata, workflows and types only

Each installation is an empty environment: without extras, with each extra alone, and with all. A smoke command runs in
each. `constraints-cpu.txt` pins torch.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
MOST_BYTES = 3_000_000
SMOKE = {
    "": "gatf methods | grep stripes && gatf run --quiet --no-report --epochs 1 --dataset stripes --tasks 2",
    "data": "gatf data",
    "onnx": "python -c 'import onnx, onnxruntime, gatf.model.onnx'",
    "pretrained": "gatf doctor",
    "studio": "python -c 'import gatf.serve.app'",
}
"""A command per extra; without extras a run with the example plugin; the others print the version."""
HEAVY = {"dev", "docs"}
"""Extras for contributors: `make test` and `make docs` install them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-install", action="store_true")
    parser.add_argument("--extras", nargs="*", help="install only these; '' means none")
    args = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wheel, source = build()
    problems = [*contents(wheel, source), *metadata(wheel, project), *workflows(), *types()]
    if not args.no_install:
        extras = sorted(project["optional-dependencies"].keys() - HEAVY)
        wanted = args.extras if args.extras is not None else ["", *extras, ",".join(extras)]
        problems += [problem for extra in wanted for problem in install(wheel, extra)]
        problems += install(source, "") if args.extras is None else []
    print("\n".join(problems) or f"{wheel.name} and {source.name} are ready to publish")
    return 1 if problems else 0


def build() -> tuple[Path, Path]:
    """The wheel and the source distribution, in dist/."""
    for old in DIST.glob("*"):
        old.unlink()
    command = [sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"no distribution was built:\n{(done.stdout + done.stderr)[-1000:]}")
    return next(DIST.glob("*.whl")), next(DIST.glob("*.tar.gz"))


def contents(wheel: Path, source: Path) -> list[str]:
    """Sizes, and files that do not belong into the wheel."""
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    foreign = [name for name in names if not name.startswith("gatf/") or "test" in Path(name).parts]
    with tarfile.open(source) as archive:
        data = [name for name in archive.getnames() if name.endswith((".parquet", ".safetensors", ".jpg", ".pth"))]
    problems = [f"{wheel.name} contains {name}" for name in foreign]
    problems += [f"{source.name} contains {name}" for name in data if "/tests/" not in name]
    return problems + [
        f"{path.name} has {path.stat().st_size / 1e6:.1f} MB"
        for path in (wheel, source)
        if path.stat().st_size > MOST_BYTES
    ]


def metadata(wheel: Path, project: dict[str, object]) -> list[str]:
    """The wheel's metadata against pyproject.toml, and the version against the changelog."""
    archive = zipfile.ZipFile(wheel)
    text = next(name for name in archive.namelist() if name.endswith("METADATA"))
    found = Parser().parsestr(archive.read(text).decode())
    problems = []
    for field, expected in (("Name", project["name"]), ("Version", project["version"]), ("License-Expression", "MIT")):
        if found[field] != expected:
            problems.append(f"{field} is {found[field]}, expected {expected}")
    if not any(name.endswith("licenses/LICENSE") for name in archive.namelist()):
        problems.append("the wheel has no licence file")
    if f"## {project['version']}" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        problems.append(f"CHANGELOG.md has no section for {project['version']}")
    return problems


def workflows() -> list[str]:
    """The GitHub workflows against their schema."""
    files = sorted(map(str, (ROOT / ".github" / "workflows").glob("*.yml")))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    return [done.stdout.strip()] if done.returncode else []


def types() -> list[str]:
    """Type errors for newer versions of Python; `make lint` checks the oldest."""
    problems = []
    for version in ("3.12", "3.13"):
        command = [sys.executable, "-m", "mypy", "--python-version", version, "--cache-dir", f".mypy_cache/{version}"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        problems += [f"Python {version}: {done.stdout[-1000:]}"] if done.returncode else []
    return problems


def install(package: Path, extra: str) -> list[str]:
    """Install into an empty environment and run the smoke command."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        target = f"{package}[{extra}]" if extra else str(package)
        pip = [f"{folder}/bin/pip", "install", "-q", "-c", str(ROOT / "constraints-cpu.txt"), "torch", target]
        smoke = SMOKE.get(extra, "gatf --version")
        plugin = [f"{folder}/bin/pip", "install", "-q", "--no-deps", str(ROOT / "docs" / "examples" / "plugin")]
        for command in (pip, *([] if extra else [plugin]), ["sh", "-c", f"PATH={folder}/bin:$PATH; {smoke}"]):
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
            if done.returncode:
                return [f"{target}: {' '.join(command)} failed:\n{(done.stdout + done.stderr)[-1000:]}"]
    print(f"{package.name}[{extra}]: {smoke}", flush=True)
    return []


if __name__ == "__main__":
    sys.exit(main())
