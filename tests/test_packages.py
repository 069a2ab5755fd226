"""`requirements.lock` is what `pyproject.toml` asks for, so that an installation from it lacks nothing."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
ELSEWHERE = {"torch"}
"""Its version is in constraints-cpu.txt."""


def wanted(project: dict[str, object], extra: str) -> list[Requirement]:
    """What an extra asks for, with the extras of this very project that it names."""
    extras: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    found = []
    for requirement in map(Requirement, extras[extra]):
        if requirement.name == project["name"]:
            found += [each for name in requirement.extras for each in wanted(project, name)]
        else:
            found.append(requirement)
    return found


def test_the_lock_has_every_package_that_is_asked_for_in_a_version_that_will_do() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    versions = dict(re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s;]+)", lock, re.MULTILINE))
    asked = [*map(Requirement, project["dependencies"]), *wanted(project, "dev")]
    asked = [each for each in asked if each.name not in ELSEWHERE and (each.marker is None or each.marker.evaluate())]
    assert len(asked) > 20
    unmet = [str(each) for each in asked if versions.get(canonicalize_name(each.name), "0") not in each.specifier]
    assert unmet == [], "run: make lock"


def test_every_package_of_the_lock_has_a_hash() -> None:
    entries = re.split(r"\n(?=\w)", (ROOT / "requirements.lock").read_text(encoding="utf-8"))[1:]
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_image_has_the_python_that_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    claimed = [name.rpartition(" ")[2] for name in project["classifiers"] if "Python :: 3." in name]
    image = re.search(r"^FROM python:([\d.]+)-slim$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert image is not None
    assert [image[1]] == claimed
    assert f"python:{image[1]}-slim" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
