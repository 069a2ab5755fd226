"""The commands together: help, mistakes, lists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gatf import cli
from gatf.methods import METHODS


def test_help_shows_the_defaults(call, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_methods_and_data_are_listed(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, text, _ = call("methods")
    assert max(map(len, text.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "1000")
    _, text, _ = call("methods")
    assert [line.split()[0] for line in text.splitlines()[::2]] == list(METHODS)
    assert all(re.match(r" +Use it (when|as|first,|to) .*\.$", line) for line in text.splitlines()[1::2])
    _, text, _ = call("methods", "--verbose")
    assert "ridge" in text
    (joint,) = [line for line in text.splitlines() if line.endswith(" for 100 classes, beside the images")]
    assert "and all images: 2,052 bytes per class" in joint
    lines = [line.strip() for line in text.splitlines()]
    assert "preset paper: the defaults" in lines
    pycil = lines.index("preset pycil")  # the first is ewc's
    assert lines[pycil + 1].startswith("method: penalty=1000.0, ")
    assert "epochs=180, batch_size=128" in lines[pycil + 3]
    _, text, _ = call("data")
    assert "digits" in [line.split()[0] for line in text.splitlines()]


def test_doctor(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATF_DATA", raising=False)
    code, text, _ = call("doctor")
    assert code == 0
    for word in ("python", "torch", "cache", "digits", "available", "weights efficientnet_lite0", "no problems found"):
        assert word in text


def test_doctor_reports_which_data_are_available(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATF_DATA", str(tmp_path / "nowhere"))
    code, text, _ = call("doctor")
    assert code == 1
    assert f"problem: GATF_DATA names {tmp_path / 'nowhere'}, which is not a folder" in text

    import pyarrow as pa
    from pyarrow import parquet

    (tmp_path / "cifar100").mkdir()
    for part in ("train", "test"):
        rows = {"img": [{"bytes": b"", "path": ""}] * 100, "fine_label": list(range(100))}
        parquet.write_table(pa.table(rows), tmp_path / "cifar100" / f"{part}.parquet")
    monkeypatch.setenv("GATF_DATA", str(tmp_path))
    code, text, _ = call("doctor")
    assert code == 0
    said = {line.split()[1]: line.split(maxsplit=2)[2] for line in text.splitlines() if line.startswith("data ")}
    assert said["cifar100"] == "available"
    for name in ("tinyimagenet", "imagenet100", "cub200"):
        assert said[name].startswith(f"not available ('{name}' is not in ")

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, text, _ = call("doctor")
    assert code == 1
    assert "problem: cifar100 is in" in text
    assert "cannot be used: this needs 'pyarrow'" in text


def test_without_arguments_it_shows_the_three_ways_in(call) -> None:
    code, text, error = call()
    assert (code, error) == (0, "")
    assert all(way in text for way in ("photos     gatf studio", "vectors    gatf learn", "research   gatf run"))
    assert len(text.splitlines()) <= 12
