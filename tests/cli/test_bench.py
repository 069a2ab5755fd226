"""`gatf bench`, as a person types it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gatf import cli
from gatf.errors import UserError
from gatf.io.text import duration


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of two short tasks."""
    path = tmp_path / "small.yaml"
    path.write_text(
        "data: {name: digits, max_per_class: 30}\nscenario: {tasks: 5, stop_after: 2}\n"
        "backbone: {name: small, width: 8, bottleneck: 8}\n"
        "optimisation: {first: {epochs: 2, batch_size: 32}, next: {epochs: 2, batch_size: 32, lr: 0.01}}\n",
        encoding="utf-8",
    )
    return path


def test_bench_resumes_and_writes_tables(call, recipe: Path, tmp_path: Path) -> None:
    bench = tmp_path / "both.yaml"
    bench.write_text(f"recipe: {recipe}\nmethods: [finetune, gatf]\nseeds: [0, 1]\n", encoding="utf-8")
    out = str(tmp_path / "out")
    code, text, _ = call("bench", str(bench), "--out", out, "--dry-run")
    assert code == 0
    assert "4 runs" in text
    code, text, _ = call("bench", str(bench), "--out", out)
    assert code == 0
    rows = (tmp_path / "out" / "results.md").read_text(encoding="utf-8").splitlines()
    assert [row.split("|")[1].strip() for row in rows] == ["method", "---", "finetune", "gatf"]
    before = (tmp_path / "out" / "gatf-seed1" / "summary.json").stat().st_mtime_ns
    code, _, _ = call("bench", str(bench), "--out", out)
    assert code == 0
    assert (tmp_path / "out" / "gatf-seed1" / "summary.json").stat().st_mtime_ns == before
    code, _, error = call("bench", str(bench), "--methods", "ewc")
    assert code == 2
    assert "finetune" in error


def test_an_impossible_run_is_reported_and_the_others_are_done(recipe: Path, tmp_path: Path) -> None:
    rows = "[finetune, {row: too many, method: finetune, set: {scenario.tasks: 11, scenario.stop_after: null}}]"
    (tmp_path / "b.yaml").write_text(f"recipe: {recipe}\nmethods: {rows}\nseeds: [0]\n", encoding="utf-8")
    reported = CliRunner().invoke(cli.app, ["bench", str(tmp_path / "b.yaml"), "--out", str(tmp_path / "out")])
    assert reported.exit_code == 1
    assert "too-many-seed0 failed: 10 classes cannot be split" in reported.output
    assert "1 of 2 runs failed" in reported.output
    assert (tmp_path / "out" / "report.html").is_file()


def test_the_plan_is_printed_with_an_estimate(recipe: Path, tmp_path: Path) -> None:
    text = f"recipe: {recipe}\nmethods: [finetune, joint]\nseeds: [0, 1]\n"
    (tmp_path / "bench.yaml").write_text(text, encoding="utf-8")
    arguments = ["bench", str(tmp_path / "bench.yaml"), "--dry-run", "--methods", "finetune"]
    reported = CliRunner().invoke(cli.app, arguments)
    assert reported.exit_code == 0, reported.output
    assert "2 runs into" in reported.output
    assert "sequentially" in reported.output
    assert not (tmp_path / "runs").exists()


def test_data_that_is_not_there_gives_no_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATF_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments = [
        "bench",
        "paper-table2",
        "--dry-run",
        "--methods",
        "gatf",
        "--seeds",
        "0",
        "--data-root",
        str(tmp_path),
    ]
    reported = CliRunner().invoke(cli.app, arguments)
    assert reported.exit_code == 0, reported.output
    assert "4 runs into" in reported.output
    assert "no estimate:" in reported.output


def test_durations_read_well() -> None:
    assert [duration(value) for value in (45, 600, 12_600, 800_000)] == ["45 s", "10 min", "3.5 h", "9 d"]


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--executor", "ray", "-j", "2"], "--jobs is for"), (["--address", "auto"], "are for --executor ray")],
)
def test_options_that_do_not_go_together(options: list[str], words: str) -> None:
    reported = CliRunner().invoke(cli.app, ["bench", "digits", *options])
    assert isinstance(reported.exception, UserError)
    assert words in str(reported.exception)
