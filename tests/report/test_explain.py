"""`gatf explain run`: what it writes, what it needs, and where it looks for a joint run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gatf import cli
from gatf.config import RunConfig
from gatf.errors import UserError
from gatf.experiment import start
from gatf.io.run_folder import RunFolder
from gatf.report.accuracy_gap import explain_run, find_joint, joint_accuracy
from gatf.report.load import read_table
from gatf.report.page import write_report

Tiny = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, tiny_config: Tiny) -> Path:
    """gatf with the networks of all tasks, and joint of two seeds."""
    folder = tmp_path_factory.mktemp("bench")
    start(tiny_config("gatf", keep_networks=True, seed=1), folder / "gatf")
    for seed in (0, 1):
        start(tiny_config("joint", seed=seed), folder / f"joint{seed}")
    return folder


def test_the_networks_of_all_tasks_are_kept_where_asked_for(bench: Path) -> None:
    """And with them the newest two checkpoints, as always; the tiny runs save every epoch."""
    kept = RunFolder(bench / "gatf")
    assert [kept.after_task(task).is_file() for task in range(3)] == [True, True, True]
    assert len(kept.saved_checkpoints()) == 4
    assert len(RunFolder(bench / "joint0").saved_checkpoints()) == 2


def test_after_every_task(bench: Path) -> None:
    folder, sentences = bench / "gatf", []
    rows = explain_run(folder, every_task=True, report=sentences.append)
    summary, joint = RunFolder(folder).read_summary(), RunFolder(bench / "joint1").read_summary()
    assert sentences == []
    assert [row.own for row in rows] == pytest.approx(summary.accuracy_seen)
    assert [row.joint for row in rows] == joint.accuracy_seen
    assert (rows[0].transport, rows[0].reestimated) == (0, rows[0].own)  # there was no old class
    written = read_table(RunFolder(folder).explained)
    assert [row["after_task"] for row in written] == [0, 1, 2]
    assert written[2]["probe"] - written[2]["reestimated"] == pytest.approx(written[2]["readout"])
    reported = json.loads(RunFolder(folder).explained_in_words.read_text(encoding="utf-8"))
    assert reported["joint_seed"] == 1
    assert reported["sentences"] == rows[-1].sentences()


def test_the_report_shows_it(bench: Path, tmp_path: Path) -> None:
    explain_run(bench / "gatf")
    write_report([bench], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Accuracy decomposition" in page
    assert "gatf: The representation" in page


def test_the_command_shows_what_is_missing(bench: Path, tmp_path: Path) -> None:
    shutil.copytree(bench / "gatf", tmp_path / "alone")
    RunFolder(tmp_path / "alone").after_task(0).unlink()
    reported = CliRunner().invoke(cli.app, ["explain", "run", str(tmp_path / "alone"), "--every-task"])
    assert reported.exit_code == 0, reported.output
    assert "no checkpoint after task 1: only runs with --set keep_networks=true keep them" in reported.output
    assert "no joint run to compare with" in reported.output
    given = CliRunner().invoke(cli.app, ["explain", "run", str(tmp_path / "alone"), "--joint", str(bench / "joint0")])
    assert "The representation" in given.output


def test_a_joint_run_must_have_the_same_classes_in_the_same_order(
    tmp_path: Path, fake_run: Callable[..., dict[str, Any]]
) -> None:
    fake_run(tmp_path / "gatf", "gatf", 1)
    fake_run(tmp_path / "other", "joint", 1, tasks=2, classes=8)
    summary = RunFolder(tmp_path / "gatf").read_summary()
    assert find_joint(tmp_path / "gatf", summary) is None
    with pytest.raises(UserError, match="no joint run of the same classes"):
        explain_run(tmp_path / "gatf", joint=tmp_path / "other")
    for seed in (0, 1, 2):
        fake_run(tmp_path / f"joint{seed}", "joint", seed)
    found = find_joint(tmp_path / "gatf", summary)
    assert found is not None
    assert found.seed == 1
    assert find_joint(tmp_path / "joint1", RunFolder(tmp_path / "joint1").read_summary()) is None


def test_a_joint_run_in_one_task_compares_with_the_last_task_only(
    tmp_path: Path, fake_run: Callable[..., dict[str, Any]]
) -> None:
    fake_run(tmp_path / "gatf", "gatf", 1)
    once = fake_run(tmp_path / "once", "joint", 1, tasks=1)
    summary = RunFolder(tmp_path / "gatf").read_summary()
    joint_run = find_joint(tmp_path / "gatf", summary)
    assert [joint_accuracy(joint_run, summary, task) for task in range(5)] == [None] * 4 + [once["a_last"]]
    assert joint_accuracy(None, summary, 4) is None
    fake_run(tmp_path / "stepwise", "joint", 1)
    found = find_joint(tmp_path / "gatf", summary)
    assert found is not None
    assert found.tasks == 5  # in the same tasks, so that it is known after every one


def test_a_joint_run_may_lack_its_accuracies_per_class(tmp_path: Path, fake_run: Callable[..., dict[str, Any]]) -> None:
    """As the summaries in results/ have."""
    fake_run(tmp_path / "gatf", "gatf", 1)
    once = fake_run(tmp_path / "once", "joint", 1, tasks=1)
    (tmp_path / "once" / "summary.json").write_text(json.dumps(once | {"accuracy_by_class": [[]]}), encoding="utf-8")
    summary = RunFolder(tmp_path / "gatf").read_summary()
    joint_run = find_joint(tmp_path / "gatf", summary)
    assert joint_accuracy(joint_run, summary, 4) == once["a_last"]


def test_what_cannot_be_explained(bench: Path, tmp_path: Path, fake_run: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(UserError, match="no finished run"):
        explain_run(tmp_path)
    fake_run(tmp_path / "bare")
    with pytest.raises(UserError, match="no checkpoint of its last task"):
        explain_run(tmp_path / "bare")
    shutil.copytree(bench / "gatf", tmp_path / "other")
    summary = json.loads((tmp_path / "other" / "summary.json").read_text(encoding="utf-8"))
    summary["accuracy_seen"][-1] -= 5
    (tmp_path / "other" / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    with pytest.raises(UserError, match="is this the same data"):
        explain_run(tmp_path / "other")
