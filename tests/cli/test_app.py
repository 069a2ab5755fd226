"""The commands together: help, mistakes, lists."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gatf import cli
from gatf.methods import METHODS


def test_help_tells_the_defaults(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for command, words in (("run", "[default: digits]"), ("learn", "[default: gatf]"), ("bench", "runs/bench-RECIPE]")):
        assert words in call(command, "--help")[1]


def test_help_needs_no_heavy_imports() -> None:
    probe = "import sys, gatf.cli; print([name for name in ('torch', 'matplotlib', 'sklearn') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert "run" in CliRunner().invoke(cli.app, ["--help"]).output


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from gatf.cli import app; "
        "assert CliRunner().invoke(app, ['learn', '--help']).exit_code == 0; "
        "assert not {'torch', 'sklearn', 'numpy', 'PIL'} & set(sys.modules), set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gatf", "--debug", "run", "--method", "nope"])
    with pytest.raises(cli.UserError):
        cli.main()


def test_methods_and_data_are_listed_a_line_each(call) -> None:
    _, text, _ = call("methods")
    assert [line.split()[0] for line in text.splitlines()] == list(METHODS)
    _, text, _ = call("methods", "--verbose")
    assert "ridge" in text
    lines = [line.strip() for line in text.splitlines()]
    assert "preset paper: the defaults" in lines
    pycil = lines.index("preset pycil")  # the first is ewc's
    assert lines[pycil + 1].startswith("method: penalty=1000.0, ")
    assert "epochs=180, batch_size=128" in lines[pycil + 3]
    _, text, _ = call("data")
    assert "digits" in [line.split()[0] for line in text.splitlines()]


def test_doctor(call) -> None:
    code, text, _ = call("doctor")
    assert code == 0
    for word in ("python", "torch", "cache", "digits", "at hand", "weights efficientnet_lite0", "all is well"):
        assert word in text
