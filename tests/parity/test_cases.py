"""Every recorded case says where its numbers come from, is small, and has a test that reads it."""

import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("*.safetensors"))


def metadata(case: Path) -> dict[str, str]:
    with case.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)).get("__metadata__", {})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_case_names_its_source(case: Path) -> None:
    text = case.with_suffix(".md").read_text(encoding="utf-8")
    found = metadata(case)
    for repository, commit in zip(found["repository"].split(), found["commit"].split(), strict=True):
        assert len(commit) == 40
        assert repository in text
        assert commit[:10] in text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_case_is_small_and_read_by_a_test(case: Path) -> None:
    assert case.stat().st_size < 150_000
    assert f'"{case.stem}"' in (HERE / f"test_{case.stem}.py").read_text(encoding="utf-8")
