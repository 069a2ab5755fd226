"""What strangers wrote is shown, and never obeyed."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from gatf.bench.tables import HEADINGS, to_csv, to_latex, to_markdown
from gatf.io.events import WarningEvent
from gatf.io.text import as_typed, csv_cell, harmless, rejoined
from gatf.training.display import LiveDisplay

EVIL = "\x1b[2J\x1b]0;owned\x07cat\n[bold red]mat[/]\u202e\x9b31m"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Käse 猫 🙂", "Käse 猫 🙂"),
        ("\x1b[31m", "\\u001b[31m"),
        ("a\nb\r\t", "a\\u000ab\\u000d\\u0009"),
        ("\x9b\x7f\u202e", "\\u009b\\u007f\\u202e"),
        ("\udc80", "\\udc80"),
        (3, "3"),
    ],
)
def test_a_terminal_gets_no_control_characters(text: object, expected: str) -> None:
    assert harmless(text) == expected
    assert harmless("a\nb\x1b", lines=True) == "a\nb\\u001b"


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_formula_is_text(text: str) -> None:
    assert csv_cell(text) == "'" + harmless(text)


@pytest.mark.parametrize("value", ["-1.5", "+3", "1e-3", "cat", "a=b", -1.5, None, True])
def test_numbers_and_words_stay_what_they_are(value: Any) -> None:
    assert csv_cell(value) == value


def test_a_bench_table_has_no_formulas() -> None:
    row = {"setting": "=1+1", "row": "@x", "method": "gatf", "a_last": -1.0, "a_inc": None}
    (found,) = csv.DictReader(io.StringIO(to_csv([row])))
    assert (found["setting"], found["row"], found["a_last"]) == ("'=1+1", "'@x", "-1.0")


def test_a_bench_table_in_markdown_and_latex_shows_names_as_they_are() -> None:
    columns = dict.fromkeys((*HEADINGS, *(f"{name}_std" for name in HEADINGS)), 1.0)
    row = columns | {"setting": "digits", "row": EVIL + "a|b", "method": "gatf", "seeds": 1, "bytes_per_class": 8}
    written = to_markdown([row])
    assert written.count("\n") == 3
    assert f"| {harmless(EVIL)}a\\|b |" in written
    row["row"] = "\x1b~^"
    assert r"\textbackslash{}u001b\textasciitilde{}\textasciicircum{} & $" in to_latex([row])


def test_warnings_of_a_run_are_shown_as_they_are() -> None:
    reported = io.StringIO()
    LiveDisplay(Console(file=reported, width=200))(WarningEvent(text=f"class {EVIL} has no images"))
    assert reported.getvalue().count("\n") == 1
    assert harmless(EVIL) in reported.getvalue()


@pytest.fixture
def model(tmp_path: Path, tiny_classifier: Callable[..., Any], digit_images: tuple[np.ndarray, np.ndarray]) -> Path:
    """A model with a class of an evil name and one that is a formula."""
    images, labels = digit_images
    chosen = np.isin(labels, ("d0", "d1"))
    named = np.where(labels[chosen] == "d0", EVIL, "=cmd()")
    path = tmp_path / "shop.gatf"
    tiny_classifier(method="finetune").fit(images[chosen], named).save(path)
    Image.fromarray(images[chosen][0]).save(tmp_path / "=a.png")
    return path


def test_no_command_lets_a_class_name_through(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gatf import cli

    monkeypatch.chdir(tmp_path)
    for command in (
        ["predict", model, "=a.png", "--top", "2"],
        ["predict", model, "=a.png", "--top", "2", "--csv"],
        ["predict", model, "=a.png", "--top", "2", "--json"],
        ["inspect", model],
        ["inspect", model, "--json"],
        ["predict", f"{EVIL}.gatf", "=a.png"],
    ):
        monkeypatch.setattr("sys.argv", ["gatf", *map(str, command)])
        with pytest.raises(SystemExit):
            cli.main()
        reported = capsys.readouterr()
        assert not set("\x1b\x9b\u202e\x07") & set(reported.out + reported.err), command
        assert "Traceback" not in reported.err
        if "--json" in command:
            found = json.loads(reported.out)
            names = found["labels"] if command[0] == "inspect" else [item["label"] for item in found[0]["top"]]
            assert EVIL in names
        if "--csv" in command:
            (row,) = csv.DictReader(io.StringIO(reported.out))
            assert {row["label"], row["label2"]} == {harmless(EVIL), "'=cmd()"}
            assert row["file"] == "'=a.png"
        if command[:1] == ["inspect"] and "--json" not in command:
            assert harmless(EVIL) in reported.out


def test_names_in_a_foreign_bench_are_shown_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gatf import cli
    from gatf.bench.plan import Plan
    from gatf.bench.probe import Estimate

    def estimated(plan: Plan) -> list[Estimate]:
        return [Estimate(run.setting, run.row, 1, None, f"because of {run.row}") for run in plan.runs]

    monkeypatch.setattr("gatf.bench.probe.estimate", estimated)
    methods = [{"row": f"{EVIL}[/x]", "method": "finetune"}]
    recipe = {"title": f"{EVIL}[/x]", "recipe": "digits", "methods": methods, "seeds": [0]}
    (tmp_path / "bench.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("sys.argv", ["gatf", "bench", str(tmp_path / "bench.yaml"), "--dry-run", "--out", "a[/b]"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    reported = capsys.readouterr().out
    assert ended.value.code == 0
    assert not set("\x1b\x9b\u202e\x07") & set(reported)
    assert reported.count(f"{harmless(EVIL)}[/x]") == 3  # the title, the row, and why it has no estimate
    assert "1 run into a[/b]" in reported


def test_names_in_a_foreign_run_are_shown_as_text(
    tmp_path: Path, tiny_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gatf import cli
    from gatf.experiment import start

    small = {"scenario.stop_after": 1, "data.max_per_class": 10, "optimisation.first.epochs": 1, "backbone.width": 4}
    monkeypatch.chdir(tmp_path)
    start(tiny_config("finetune", **small), Path("a[/b]"))
    summary = json.loads(Path("a[/b]/summary.json").read_text(encoding="utf-8"))
    summary["dataset"] = f"{EVIL}[/x]"
    Path("a[/b]/summary.json").write_text(json.dumps(summary), encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("sys.argv", ["gatf", "run", "--resume", "a[/b]"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    reported = capsys.readouterr().out
    assert ended.value.code == 0
    assert not set("\x1b\x9b\u202e\x07") & set(reported)
    assert f"finetune on {harmless(EVIL)}[/x], seed 0" in reported
    assert "run folder: a[/b]\n" in reported
    assert "report: a[/b]/report.html\n" in reported


def test_names_with_commas_are_put_together_again() -> None:
    known = {"gatf", "gatf, refined", "a,b", "b", "joint"}
    assert rejoined(["gatf", "joint"], known) == ["gatf", "joint"]
    assert rejoined(["gatf", " refined", "joint"], known) == ["gatf, refined", "joint"]
    assert rejoined(["joint", "a", "b"], known) == ["joint", "a,b"]
    assert rejoined(["gatf", "gaft"], known) == ["gatf", "gaft"]  # which the caller refuses


def test_a_command_contains_no_private_folders() -> None:
    words = ["run", "--data-root", "/home/ann/photos", "--out=/srv/x", "--set", "data.root=/a/b", "--out", "runs/a b"]
    assert as_typed(words) == "gatf run --data-root photos --out=x --set data.root=b --out 'runs/a b'"
