"""What the documentation says is so."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_generated_pages_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("update_docs", ROOT / "tools" / "update_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, page in module.PAGES.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == page(), "run tools/update_docs.py"
    methods = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert methods == module.replace_between(methods, "methods", module.method_table()), "run tools/update_docs.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_python_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    blocks = [block for block in blocks if "IncrementalClassifier" not in block]  # the tutorial's test runs that
    assert len(blocks) == 2
    quick = '"seed": 1, "optimisation.first.epochs": 1, "optimisation.next.epochs": 1,'
    for block in blocks:
        exec(compile(block.replace('"seed": 1,', quick), "README.md", "exec"), {})
