"""What people install: the wheel, in an environment that has nothing else of this project."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PROBE = """
from importlib.metadata import version
from importlib.resources import files
import gatf
from gatf.bench.plan import load_plan
from gatf.config import load_config, recipe_names
from gatf.data.published import imagenet100_wnids
from gatf.report.page import write_page
print(gatf.__file__)
assert version("gatf-cil") == gatf.__version__
assert files("gatf").joinpath("py.typed").is_file()
assert all(load_config(name) for name in recipe_names())
assert load_plan("digits").runs
assert len(imagenet100_wnids("adagauss")) == len(imagenet100_wnids("cmc")) == 100
assert files("gatf.report").joinpath("report.html.j2").is_file()
assert files("gatf.bench").joinpath("published.yaml").is_file()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(folder), str(ROOT)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode and re.search("hatchling|connection|network|index", made.stderr, re.IGNORECASE):
        pytest.skip("hatchling, which builds the wheel, cannot be fetched here")
    assert made.returncode == 0, made.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_is_called_gatf_cil_and_holds_everything(wheel: Path) -> None:
    assert re.fullmatch(r"gatf_cil-[\d.]+-py3-none-any\.whl", wheel.name)
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("gatf/")}
    package = ROOT / "src"
    source = {
        path.relative_to(package).as_posix()
        for path in (package / "gatf").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == source
    assert "gatf/py.typed" in inside


def test_it_runs_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, which borrows the packages that gatf needs and nothing of this checkout."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    site = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def reported(*command: str) -> str:
        run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=clean)
        assert run.returncode == 0, run.stderr
        return run.stdout

    assert reported(str(python), "-c", PROBE).startswith(str(site / "gatf"))
    assert reported(str(python.with_name("gatf")), "--version").startswith("gatf ")
