"""The report beside a run's results."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gatf import cli


@pytest.mark.parametrize("wanted", [True, False])
def test_a_run_writes_a_report_unless_switched_off(tmp_path: Path, wanted: bool) -> None:
    small = ["data.max_per_class=20", "backbone.width=4", "scenario.stop_after=2"]
    arguments = ["run", "--method", "finetune", "--epochs", "1", "--quiet", "--out", str(tmp_path / "run")]
    for setting in small:
        arguments += ["--set", setting]
    reported = CliRunner().invoke(cli.app, arguments if wanted else [*arguments, "--no-report"])
    assert reported.exit_code == 0, reported.output
    assert (tmp_path / "run" / "report.html").is_file() == wanted


def test_a_report_that_fails_does_not_lose_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from gatf.cli.report import report_of_run

    report_of_run(tmp_path, Console(width=400))
    assert f"try again with: gatf report {tmp_path}" in capsys.readouterr().out
