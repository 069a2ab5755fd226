"""Numbers reach TensorBoard, Weights & Biases, MLflow and trackio; without the extra one sentence names it."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gatf.config import RunConfig
from gatf.errors import UserError
from gatf.experiment import start
from gatf.io.events import Epoch, JsonLines, RunStart, Task
from gatf.io.run_folder import RunFolder
from gatf.training import trackers
from gatf.training.trackers import BACKENDS, Tracker, open_tracker

EPOCH = Epoch(task=0, phase="train", epoch=0, losses={"ce": 0.25}, lr=0.1, seconds=1.0)
TASK = Task(task=0, seen=90.0, accuracies=[90.0], seconds=1.0)


class Recorder:
    def __init__(self) -> None:
        self.written: list[tuple[int, dict[str, float]]] = []

    def write(self, values: dict[str, float], step: int) -> None:
        self.written.append((step, values))

    def close(self) -> None:
        pass


def test_a_run_as_numbers_over_epochs(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    recorder = Recorder()
    tracker = Tracker(lambda: recorder, RunFolder(tmp_path / "run"))
    summary = start(tiny_config("finetune"), tmp_path / "run", (tracker,))
    assert [step for step, values in recorder.written if "train/ce" in values] == list(range(1, 10))
    after = [(step, values) for step, values in recorder.written if "accuracy/seen classes" in values]
    assert [step for step, _ in after] == [3, 6, 9]
    assert after[-1][1]["accuracy/seen classes"] == summary.a_last
    assert recorder.written[-1][1]["summary/forgetting"] == summary.forgetting


def test_a_resumed_run_continues_counting(tmp_path: Path) -> None:
    write = JsonLines(tmp_path / "metrics.jsonl")
    for event in (RunStart(tasks=2, method="gatf", resumed_at=None), EPOCH, replace(EPOCH, epoch=1), TASK):
        write(event)
    write.close()
    recorder = Recorder()
    tracker = Tracker(lambda: recorder, RunFolder(tmp_path))
    tracker(RunStart(tasks=2, method="gatf", resumed_at=1))
    tracker(replace(EPOCH, task=1))
    assert recorder.written == [(3, {"train/ce": 0.25, "task": 1, "lr": 0.1})]


@pytest.mark.parametrize("name", BACKENDS)
def test_a_missing_extra_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda module: None)
    with pytest.raises(UserError, match=rf"gatf-cil\[{name}\]"):
        open_tracker(name, tmp_path, {})


def test_an_unknown_one_is_named_and_nothing_is_written_before_the_run_begins(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="knows no 'tensorbord'; did you mean 'tensorboard'"):
        open_tracker("tensorbord", tmp_path, {})
    opened: list[Recorder] = []
    tracker = Tracker(lambda: opened.append(Recorder()) or opened[0], RunFolder(tmp_path))
    tracker.close()
    assert not opened


@pytest.mark.filterwarnings("default")
def test_tensorboard_files_can_be_read(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = open_tracker("tensorboard", tmp_path, {"seed": 0})
    tracker(EPOCH)
    tracker(TASK)
    tracker.close()
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert read.Scalars("train/ce")[0].value == 0.25
    assert read.Scalars("accuracy/all_so_far")[0].step == 1


@pytest.mark.filterwarnings("default")
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = open_tracker("wandb", tmp_path, {"seed": 0})
    tracker(EPOCH)
    tracker.close()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.filterwarnings("default")
def test_mlflow_keeps_settings_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'store.db'}")
    many = {f"setting{number}": number for number in range(150)}
    tracker = open_tracker("mlflow", tmp_path / "run", {"seed": 3, "method": {"name": "gatf"}} | many)
    tracker(EPOCH)
    tracker(TASK)
    tracker.close()
    client = mlflow.tracking.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("gatf").experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert (run.data.params["method.name"], len(run.data.params)) == ("gatf", 152)
    assert [(metric.value, metric.step) for metric in client.get_metric_history(run.info.run_id, "train/ce")] == [
        (0.25, 1)
    ]
    assert run.data.metrics["accuracy/seen classes"] == 90.0


@pytest.mark.filterwarnings("default")
def test_trackio_keeps_numbers(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    script = f"""
from pathlib import Path
from gatf.io.events import Epoch
from gatf.training.trackers import open_tracker
tracker = open_tracker("trackio", Path({str(tmp_path / "run")!r}), {{"seed": 3}})
tracker({EPOCH!r})
tracker.close()
"""  # trackio reads TRACKIO_DIR when it is imported, and works in threads of its own
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "kept")}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True)
    with sqlite3.connect(tmp_path / "kept" / "gatf.db") as store:
        ((name, step, metrics),) = store.execute("SELECT run_name, step, metrics FROM metrics").fetchall()
    assert (name, step, json.loads(metrics)["train/ce"]) == ("run", 1, 0.25)
