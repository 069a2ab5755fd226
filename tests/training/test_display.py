"""What people see of a run while it goes on."""

import io

import pytest
from rich.console import Console

from gatf.io.events import Epoch, FeaturesExtracted, RunStart, Step, Task, TaskStart
from gatf.training import display as display_module
from gatf.training.display import LiveDisplay


@pytest.mark.parametrize("tasks", [3, 10, 20, 100])
def test_what_is_told_after_a_task_stays_on_one_line(tasks: int) -> None:
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, width=80))
    display(RunStart(tasks=tasks, method="gatf", resumed_at=None))
    display(TaskStart(task=tasks - 1, classes=1, images=1, steps=1))
    display(Task(task=tasks - 1, seen=66.6, accuracies=[12.3] * (tasks - 1) + [98.7], seconds=1.0))
    display.close()
    (line,) = file.getvalue().splitlines()
    assert len(line) <= 80
    assert "66.6" in line
    assert "12" in line
    assert "9" in line


@pytest.mark.parametrize("lines", [True, False], ids=["run", "learn"])
def test_in_a_log_file_there_is_a_line_every_ten_seconds_with_the_time_left(
    lines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks of 3 epochs of 4 steps; a step takes 2 s: 24 steps, so 48 s in all."""
    now = 100.0
    monkeypatch.setattr(display_module, "monotonic", lambda: now)
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, width=80), lines)
    display(RunStart(tasks=2, method="gatf", resumed_at=None))
    display(TaskStart(task=0, classes=1, images=1, steps=12))
    for epoch in range(3):
        for _ in range(4):
            now += 2
            display(Step(task=0, phase="train", epoch=epoch, epochs=3))
        display(Epoch(task=0, phase="train", epoch=epoch, losses={"ce": 0.25}, lr=0.1, seconds=8.0))
    display.close()
    assert [line.rstrip() for line in file.getvalue().splitlines()] == [
        "task 1/2  train epoch 2/3  ce 0.250  ≈ 38 s left",
        "task 1/2  train epoch 3/3  ce 0.250  ≈ 28 s left",
    ]


def test_the_time_left_is_told_in_the_first_epoch_of_few_slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an update of some hundred photos has them: 15 epochs of 2 steps, 8 s each."""
    now = 100.0
    monkeypatch.setattr(display_module, "monotonic", lambda: now)
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, width=80), lines=False)
    display(RunStart(tasks=1, method="gatf", resumed_at=None))
    display(TaskStart(task=0, classes=5, images=150, steps=30))
    for _ in range(2):
        now += 8
        display(Step(task=0, phase="backbone", epoch=0, epochs=15))
    assert file.getvalue().splitlines() == ["task 1/1  backbone epoch 1/15  ≈ 4 min left"]


def test_a_log_file_is_not_empty_while_a_frozen_network_looks_at_many_photos(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 of 640 photos in 4 s."""
    now = 100.0
    monkeypatch.setattr(display_module, "monotonic", lambda: now)
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, width=80), lines=False)
    display(RunStart(tasks=1, method="slda", resumed_at=None))
    display(TaskStart(task=0, classes=5, images=640, steps=0))
    for seen in range(0, 641, 64):
        display(FeaturesExtracted(task=0, images=seen, of=640))
        now += 4
    assert file.getvalue().splitlines() == [
        "task 1/1  extracting features 192/640  ≈ 28 s left",
        "task 1/1  extracting features 384/640  ≈ 16 s left",
        "task 1/1  extracting features 576/640  ≈ 4 s left",
    ]


def test_a_line_of_a_log_file_is_one_line_however_many_losses_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(display_module, "monotonic", lambda: now)
    file = io.StringIO()
    display = LiveDisplay(Console(file=file, width=80))
    display(RunStart(tasks=2, method="gatf", resumed_at=None))
    display(TaskStart(task=0, classes=1, images=1, steps=12))
    many = {f"[term {number}]": 0.5 for number in range(9)}
    display(Epoch(task=0, phase="train", epoch=0, losses=many, lr=0.1, seconds=8.0))
    now += 20
    display(Step(task=0, phase="train", epoch=1, epochs=3))
    (line,) = file.getvalue().splitlines()
    assert line.startswith("task 1/2  train epoch 2/3  [term 0] 0.500  ")
    assert line.rstrip().endswith("[term 8] 0.500  ≈ 8 min left")


def test_nothing_is_said_of_epochs_before_the_first() -> None:
    display = LiveDisplay(Console(file=io.StringIO(), width=80))
    display(RunStart(tasks=1, method="slda", resumed_at=None))
    display(TaskStart(task=0, classes=5, images=640, steps=0))
    assert display._parts() == ("task 1/1", "", "", "")
