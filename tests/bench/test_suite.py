"""A bench goes on where it stopped, survives a killed process, and tells what failed."""

import io
import json
import re
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gatf import experiment
from gatf.bench.executors import InProcess, Processes, prepare
from gatf.bench.plan import Plan, load_plan
from gatf.bench.probe import measured
from gatf.bench.progress import LiveTable
from gatf.bench.suite import run_plan
from gatf.errors import UserError
from gatf.io.events import Epoch, Event, JsonLines, RunStart
from gatf.io.run_folder import RunFolder, Summary
from gatf.training.loop import Interrupted

SMALL = (
    "data: {name: digits, max_per_class: 30}\nscenario: {tasks: 5, stop_after: 2}\n"
    "backbone: {name: small, width: 8, bottleneck: 8}\n"
    "optimisation: {first: {epochs: 2, batch_size: 32}, next: {epochs: 2, batch_size: 32, lr: 0.01}}\n"
)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    text = f"recipe: {tmp_path / 'small.yaml'}\nmethods: [finetune, joint]\nseeds: [0, 1]\n"
    (tmp_path / "bench.yaml").write_text(text, encoding="utf-8")
    return load_plan(str(tmp_path / "bench.yaml"))


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_a_stopped_bench_continues(plan: Plan, tmp_path: Path) -> None:
    class StopsInTheSecond(InProcess):
        def execute(self, jobs: Any, folder: Path, watcher: Any) -> None:
            watcher.listener = self.stopping(jobs[1].name)
            super().execute(jobs, folder, watcher)

        def stopping(self, name: str) -> Any:
            asked = []

            def hear(event: Event) -> None:
                if isinstance(event, Epoch) and not asked:
                    asked.append(event)
                    signal.raise_signal(signal.SIGINT)

            return lambda run: hear if run.name == name else lambda event: None

    folder = tmp_path / "out"
    with pytest.raises(Interrupted):
        run_plan(plan, folder, quiet(), StopsInTheSecond())
    assert "1 of 4 runs are finished" in (folder / "results.md").read_text(encoding="utf-8")
    first = (folder / plan.runs[0].name / "summary.json").stat().st_mtime_ns
    assert run_plan(plan, folder, quiet()) == {}
    assert (folder / plan.runs[0].name / "summary.json").stat().st_mtime_ns == first
    assert "runs are finished" not in (folder / "results.md").read_text(encoding="utf-8")
    assert len(json.loads((folder / "bench.json").read_text())["runs"]) == 4
    experiment.start(plan.runs[1].config, tmp_path / "whole")
    for name in ("a_last", "accuracy_by_class"):
        stopped, whole = (json.loads((at / "summary.json").read_text())[name]
                          for at in (folder / plan.runs[1].name, tmp_path / "whole"))  # fmt: skip
        assert stopped == whole


@pytest.mark.slow
def test_a_killed_process_is_done_again(plan: Plan, tmp_path: Path) -> None:
    """Two at a time; the first one started is killed with SIGKILL."""
    folder = tmp_path / "out"
    executor = Processes(2)
    killed = []

    def kill_one() -> None:
        victim = plan.runs[0].name
        while victim not in executor._running:
            time.sleep(0.01)
        process = executor._running[victim][1]
        process.send_signal(signal.SIGKILL)
        killed.append(process)

    thread = threading.Thread(target=kill_one)
    thread.start()
    assert run_plan(Plan(plan.name, plan.title, plan.runs[:2]), folder, quiet(), executor) == {}
    thread.join()
    assert killed[0].returncode == -signal.SIGKILL
    assert len(list(folder.glob("*/summary.json"))) == 2


def test_a_folder_of_an_earlier_version_lacks_later_settings(plan: Plan, tmp_path: Path) -> None:
    prepare(plan.runs[0], tmp_path)
    written = tmp_path / plan.runs[0].name / "config.yaml"
    text = written.read_text(encoding="utf-8")
    assert "keep_networks: false\n" in text
    written.write_text(text.replace("keep_networks: false\n", ""), encoding="utf-8")
    prepare(plan.runs[0], tmp_path)
    written.write_text(text.replace("keep_networks: false\n", "keep_networks: true\n"), encoding="utf-8")
    with pytest.raises(UserError, match="another config"):
        prepare(plan.runs[0], tmp_path)


def test_a_folder_of_another_config_is_refused(plan: Plan, tmp_path: Path) -> None:
    prepare(plan.runs[0], tmp_path)
    prepare(plan.runs[0], tmp_path)
    other = load_plan(str(tmp_path / "bench.yaml"), overrides={"scenario.stop_after": 1})
    with pytest.raises(UserError, match="another config"):
        prepare(other.runs[0], tmp_path)


def test_an_estimate_scales_with_the_epochs_of_the_run(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every probed epoch made to last one second, ten times the epochs take about ten times as long."""
    run = experiment.Experiment.run

    def one_second_epochs(self: experiment.Experiment, folder: Path, listeners: Any) -> Summary:
        summary = run(self, folder, listeners)
        reported = RunFolder(folder).read_events()
        write = JsonLines(folder / "metrics.jsonl")
        write.truncate(0)
        for event in reported:
            write(replace(event, seconds=1.0) if isinstance(event, Epoch) else event)
        write.close()
        per_task = [sum(isinstance(e, Epoch) and e.task == task for e in reported) for task in range(summary.tasks)]
        return replace(summary, seconds=[float(epochs) for epochs in per_task])

    monkeypatch.setattr(experiment.Experiment, "run", one_second_epochs)
    guesses = [
        measured(load_plan(str(tmp_path / "bench.yaml"), overrides=overrides).runs[0].config.to_yaml())[0]
        for overrides in ({f"optimisation.{stage}.epochs": n for stage in ("first", "next")} for n in (4, 40))
    ]
    assert 8 < guesses[1] / guesses[0] < 12


def test_the_live_table_follows_runs_in_other_processes(plan: Plan, tmp_path: Path) -> None:
    console = Console(width=120, force_terminal=True, file=io.StringIO())
    run = plan.runs[0]
    prepare(run, tmp_path)
    events = tmp_path / run.name / "metrics.jsonl"
    with LiveTable(plan.runs, tmp_path, console) as table:
        table.started(run)
        begun = RunStart(tasks=2, method="finetune", resumed_at=None)
        epoch = Epoch(task=1, phase="train", epoch=4, losses={}, lr=0.1, seconds=1.0)
        lines = [json.dumps(event.record()) + "\n" for event in (begun, epoch)]
        events.write_text("".join(lines) + lines[1][:4])
        table.tick()
        assert table._state[run.name] == "task 2/2, epoch 5"
        printed = Console(width=120, record=True, file=io.StringIO())
        printed.print(table._table())
        assert re.search(rf"{run.name} +│ task 2/2, epoch 5", printed.export_text())
        events.write_text(lines[0])  # a run that goes on from a checkpoint cuts its file back
        table.tick()
        again = replace(epoch, epoch=5, losses={"ce": 0.5, "distill": 0.25})
        events.write_text(lines[0] + json.dumps(again.record()) + "\n")
        table.tick()
        assert table._state[run.name] == "task 2/2, epoch 6"


def test_a_run_that_diverges_or_breaks_is_reported_and_the_others_are_done(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *others = plan.runs
    stage = first.config.optimisation.first.model_copy(update={"lr": 1e12})
    optimisation = first.config.optimisation.model_copy(update={"first": stage})
    wild = replace(first, config=first.config.model_copy(update={"optimisation": optimisation}))
    resume = experiment.resume

    def breaks(folder: Path, *args: Any, **options: Any) -> Summary:
        if folder.name == second.name:
            raise RuntimeError("a bug\nin two lines")
        return resume(folder, *args, **options)

    monkeypatch.setattr(experiment, "resume", breaks)
    failures = run_plan(replace(plan, runs=(wild, second, *others)), tmp_path / "out", quiet())
    assert list(failures) == [first.name, second.name]
    assert "training diverged in task 1" in failures[first.name]
    assert failures[second.name] == "RuntimeError: a bug in two lines"
    assert all(RunFolder(tmp_path / "out" / run.name).finished for run in others)
    written = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert f"- failed: {first.name}: training diverged" in written
    assert "| joint | 2 |" in written


def test_a_second_bench_in_the_folder_is_refused(plan: Plan, tmp_path: Path) -> None:
    class Again(InProcess):
        def execute(self, jobs: Any, folder: Path, watcher: Any) -> None:
            with pytest.raises(UserError, match="is in use by another bench"):
                run_plan(plan, folder, quiet())

    run_plan(plan, tmp_path / "out", quiet(), Again())
    assert not (tmp_path / "out" / ".lock").exists()
