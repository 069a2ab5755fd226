"""Build the wheel and the source distribution, and check both as a user would install them.

python tools/release_check.py              build, contents, metadata, workflows, types, and an installation of each kind
python tools/release_check.py --no-install build, contents, metadata, workflows and types only
python tools/release_check.py --extras hub build as above, then only the installations with these extras

Each installation is an empty environment: without extras, with each extra alone, with all, and from the source
distribution. `uv pip check` and a smoke command run in each. `constraints-cpu.txt` pins torch. The outcomes are
written to benchmarks/results/release.json.
"""

import argparse
import json
import os
import platform
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
OUT = ROOT / "benchmarks" / "results" / "release.json"
MOST_BYTES = 3_000_000
FIXTURES = """
from pathlib import Path
import numpy as np
from matplotlib.image import imsave
from sklearn.datasets import load_digits

digits = load_digits(n_class=4)
np.savez("vectors.npz", embedding=digits.data, label=digits.target)
for number, (image, label) in enumerate(zip(digits.images[:80], digits.target)):
    folder = Path("photos", str(label))
    folder.mkdir(parents=True, exist_ok=True)
    imsave(folder / f"{number}.png", np.kron(image, np.ones((12, 12))))
"""
"""What the smoke commands read."""
RUN = "gatf run --quiet --no-report --epochs 1 --tasks 2"
LEARN = "gatf learn m.gatf vectors.npz"
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
SMOKE = {
    "": f"gatf methods | grep stripes && {RUN} --dataset stripes && {LEARN} && gatf predict m.gatf vectors.npz",
    "cluster": "gatf bench digits --methods ncm --seeds 0 --set optimisation.first.epochs=1 --executor ray --no-report",
    "data": f"{RUN} --dataset folder --data-root photos --set data.image_size=32 && python -c 'import datasets'",
    "dev": f"cd {ROOT} && pytest tests/test_public_api.py && mypy --version && ruff --version && pre-commit --version",
    "docs": f"cd {ROOT} && zensical build --clean --strict",
    "hub": f"{LEARN} && gatf push m.gatf ./shelf && gatf pull ./shelf && python -c 'import huggingface_hub'",
    "onnx": f"{LEARN} && gatf export m.gatf m.onnx",
    "pretrained": "gatf learn photos.gatf photos && gatf predict photos.gatf photos",
    "studio": LEARN + " && { gatf serve m.gatf --port 0 > served & server=$!; }"
    " && until grep http served; do kill -0 $server || exit 1; sleep 1; done && kill $server",
    "timm": f"{RUN} --dataset stripes --set backbone.name=timm:resnet10t",
    "tune": "gatf tune --dataset stripes --search 'method.topology=[0.0, 1.0]' --trials 1 --epochs 1 --tasks 2",
    **{name: f"{RUN} --dataset stripes --track {name}" for name in TRACKERS},
}
"""A command per extra that needs it. The example plugin has the data set `stripes`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-install", action="store_true")
    parser.add_argument("--extras", nargs="*", help="install only these; '' means none")
    args = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wheel, source = build()
    problems = [*contents(wheel, source), *metadata(wheel, project), *workflows(), *types()]
    if not args.no_install:
        extras = sorted(project["optional-dependencies"])
        wanted = args.extras if args.extras is not None else ["", *extras, ",".join(extras)]
        tried = {f"wheel[{extra}]": install(wheel, extra) for extra in wanted}
        tried |= {"sdist[]": install(source, "")} if args.extras is None else {}
        problems += [f"{name}: {error}" for name, error in tried.items() if error]
        known = json.loads(OUT.read_text(encoding="utf-8"))["failures"] if args.extras is not None else {}
        record(known | tried, wheel, source)
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


def install(package: Path, extra: str) -> str | None:
    """Install into an empty environment and run the smoke commands; the error, if any."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "fixtures.py").write_text(FIXTURES, encoding="utf-8")
        target, plugin = f"{package}[{extra}]" if extra else str(package), ROOT / "docs" / "examples" / "plugin"
        uv = f"{Path(sys.executable).with_name('uv')} --quiet"
        install = f"{uv} pip install -c {ROOT / 'constraints-cpu.txt'}"
        smoke = [SMOKE[name] for name in (SMOKE if "," in extra else [extra])]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
            "VIRTUAL_ENV": str(folder / ".venv"),
            "PATH": f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "GATF_CACHE": str(folder / "cache"),
            "WANDB_MODE": "offline",
            "RAY_raylet_start_wait_time_s": "600",
        }
        commands = (
            f"{uv} venv --python {sys.executable} .venv", f"{install} torch '{target}'",
            f"{install} --no-deps {plugin}", f"{uv} pip check", "python fixtures.py", *smoke,
        )  # fmt: skip
        for command in commands:
            done = subprocess.run(
                ["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder,
                env=environment,
            )  # fmt: skip
            if done.returncode:
                print(f"{package.name}[{extra}] FAILS: {command}\n{(done.stdout + done.stderr)[-3000:]}", flush=True)
                return f"{command} failed"
    print(f"{package.name}[{extra}] passes", flush=True)
    return None


def record(tried: dict[str, str | None], wheel: Path, source: Path) -> None:
    """Write the outcomes and where they were found."""
    found = {
        "python": platform.python_version(),
        "torch": (ROOT / "constraints-cpu.txt").read_text(encoding="utf-8").strip().rpartition("==")[2],
        "system": platform.system(),
        "bytes": {path.name: path.stat().st_size for path in (wheel, source)},
        "failures": tried,
    }
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
