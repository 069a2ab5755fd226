"""The tutorial's code runs, and its text shows that code and no other."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLE, TEXT = DOCS / "examples" / "five_to_twenty.py", DOCS / "tutorial-five-to-twenty.md"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("five_to_twenty", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = example().main(quick=True, out=tmp_path / "picture.svg")
    assert set(tables) == {"GATF", "Plain fine-tuning"}
    for table in tables.values():
        assert np.isfinite(table).sum(axis=0).tolist() == [5, 9, 13, 17, 20]
    assert (tmp_path / "picture.svg").read_text(encoding="utf-8").count("<svg") == 1
    assert (tmp_path / "picture.gatf").stat().st_size > 1000
    told = capsys.readouterr().out
    assert "Update 4: added 3 classes (R, S, T)" in told
    assert "certified" in told


def test_the_text_shows_the_examples_code() -> None:
    source = "".join(EXAMPLE.read_text(encoding="utf-8").split())
    blocks = re.findall(r"```python\n(.*?)```", TEXT.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        for piece in block.split("\n\n"):
            assert "".join(piece.split()) in source, piece
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", TEXT.read_text(encoding="utf-8")):
        assert (TEXT.parent / picture).is_file()
