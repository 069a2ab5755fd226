"""The documentation site builds without a warning and needs nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
MISSING = [name for name in ("zensical", "mkdocstrings") if find_spec(name) is None]
LOADS = re.compile(r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=\"?((?:https?:)?//[^\"\s>]+)")
LINKS = re.compile(r"<link\b[^>]*\bhref=\"?((?:https?:)?//[^\"\s>]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if MISSING:
        pytest.skip(f"no {', '.join(MISSING)}: pip install 'gatf-cil[docs]'")
    place = tmp_path_factory.mktemp("site")  # the site is written beside its config
    shutil.copy(ROOT / "mkdocs.yml", place)
    shutil.copytree(ROOT / "docs", place / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("src", "CHANGELOG.md"):
        (place / name).symlink_to(ROOT / name)
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], capture_output=True, text=True, cwd=place, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return place / "site"


def test_every_page_is_built(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages == {path.stem for path in site.glob("*.html")} - {"404"}


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert LOADS.findall(text) + LINKS.findall(text) == [], page.name
        assert 'class="mermaid"' not in text, "the theme would fetch mermaid when the page is opened"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_the_api_page_shows_signatures_and_texts(site: Path) -> None:
    page = (site / "reference.html").read_text(encoding="utf-8")
    for name in (
        "gatf.IncrementalClassifier.partial_fit",
        "gatf.geometry.fit_anchor",
        "gatf.methods.base.Method.scores",
    ):
        assert f'id="{name}"' in page
    assert "An image classifier that learns new classes for years without keeping old images." in page


def test_pages_include_the_files_that_they_show(site: Path) -> None:
    pages = {page.stem: re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")) for page in site.glob("*.html")}
    assert [name for name, text in pages.items() if re.search(r"--8\s*(<|&lt;)", text)] == []
    assert "class Euclidean" in pages["plugins"]
    assert "euclidean = " in pages["plugins"]
