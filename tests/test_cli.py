"""The command line, as a person types it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gatf import cli
from gatf.methods import METHODS

SMALL = [
    "--epochs", "2", "--batch-size", "48", "--set", "data.max_per_class=30", "--set", "backbone.width=8",
    "--set", "scenario.stop_after=2",
]  # fmt: skip


def gatf(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of one command, through the real entry point."""
    monkeypatch.setattr(sys, "argv", ["gatf", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    return lambda *arguments: gatf(*arguments, monkeypatch=monkeypatch, capsys=capsys)


def test_run_prints_the_table_and_the_folder(call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, text, _ = call(
        "run", "--dataset", "digits", "--method", "adagauss", "--tasks", "5", "--seed", "3", "--out", str(out),
        *SMALL, "--set", "method.samples=2000", "--set", "backbone.bottleneck=8",
    )  # fmt: skip
    assert code == 0
    for word in ("adagauss on digits, seed 3", "after task", "A_last", "A_inc", "forgetting", "seconds"):
        assert word in text
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert f"{summary['a_last']:.1f}" in text
    assert summary["seed"] == 3


def test_help_tells_the_defaults(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for command, words in (("run", "[default: digits]"), ("learn", "[default: gatf]"), ("bench", "runs/bench-RECIPE]")):
        assert words in call(command, "--help")[1]


def test_ctrl_c_saves_says_how_to_go_on_and_exits_with_130(call, tmp_path: Path, monkeypatch) -> None:
    from gatf.training.events import LiveDisplay

    shown = LiveDisplay.__call__

    def press_ctrl_c(self: LiveDisplay, kind: str, /, **fields: object) -> None:
        shown(self, kind, **fields)
        if kind == "step" and fields["epoch"] == 1:
            signal.raise_signal(signal.SIGINT)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(LiveDisplay, "__call__", press_ctrl_c)
        code, text, _ = call("run", "--method", "finetune", "--out", str(out), *SMALL)
    assert code == 130
    assert f"gatf run --resume {out}" in " ".join(text.split())
    code, text, _ = call("run", "--resume", str(out))
    assert code == 0
    assert "A_last" in text


def test_resume_takes_no_other_settings(call, tmp_path: Path) -> None:
    code, _, error = call("run", "--resume", str(tmp_path), "--seed", "2")
    assert code == 2
    assert "--seed" in error
    code, _, error = call("run", "--resume", str(tmp_path))
    assert code == 2
    assert "no run to resume" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "gaft"], "did you mean 'gatf'"),
        (["--dataset", "digit"], "did you mean 'digits'"),
        (["--set", "method.rigde=1"], "did you mean 'ridge'"),
        (["--tasks", "11"], "at most 10 tasks"),
        (["--batch-size", "16"], "anti-collapse"),
        (["--recipe", "nope"], "no recipe"),
        (["--out", "/dev/null/run"], "cannot write"),
        (["--set", "device=tpu"], "device"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(call, tmp_path, monkeypatch, arguments, words) -> None:
    monkeypatch.chdir(tmp_path)
    code, text, error = call("run", *arguments)
    assert code == 2
    assert words in error
    assert len(error.strip().splitlines()) == 1
    assert "Traceback" not in error + text
    assert not (tmp_path / "runs").exists()


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gatf", "--debug", "run", "--method", "nope"])
    with pytest.raises(cli.UserError):
        cli.main()


def test_methods_and_data_are_listed_a_line_each(call) -> None:
    _, text, _ = call("methods")
    assert [line.split()[0] for line in text.splitlines()] == list(METHODS)
    _, text, _ = call("methods", "--verbose")
    assert "ridge" in text
    assert "preset release: method.anchor='ridge'" in text
    _, text, _ = call("data")
    assert "digits" in [line.split()[0] for line in text.splitlines()]


def test_doctor(call) -> None:
    code, text, _ = call("doctor")
    assert code == 0
    for word in ("python", "torch", "cache", "digits", "at hand", "all is well"):
        assert word in text


def test_bench_resumes_and_writes_tables(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(
        "data: {name: digits, max_per_class: 30}\nscenario: {tasks: 5, stop_after: 2}\n"
        "backbone: {name: small, width: 8, bottleneck: 8}\n"
        "optimisation: {first: {epochs: 2, batch_size: 32}, next: {epochs: 2, batch_size: 32, lr: 0.01}}\n",
        encoding="utf-8",
    )
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


def test_help_needs_no_heavy_imports() -> None:
    probe = "import sys, gatf.cli; print([name for name in ('torch', 'matplotlib', 'sklearn') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert "run" in CliRunner().invoke(cli.app, ["--help"]).output
