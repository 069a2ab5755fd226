"""What users see of a run while it runs."""

import io

import pytest
from rich.console import Console

from gatf.io.events import Epoch, Event, FeaturesExtracted, RunStart, Step, Task, TaskStart
from gatf.training import display as display_module
from gatf.training.display import LiveDisplay


class Watched:
    """A display that writes to a text, with a clock that tests advance."""

    def __init__(self, patch: pytest.MonkeyPatch, *begin: Event, lines: bool = True) -> None:
        self.now = 100.0
        patch.setattr(display_module, "monotonic", lambda: self.now)
        self.file = io.StringIO()
        self.display = LiveDisplay(Console(file=self.file, width=80), lines)
        for event in begin:
            self.display(event)

    def wait(self, seconds: float, event: Event) -> None:
        self.now += seconds
        self.display(event)

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.file.getvalue().splitlines()]


def begun(*, tasks: int = 1, steps: int = 0) -> tuple[Event, Event]:
    start = TaskStart(task=0, classes=5, images=640, steps=steps)
    return RunStart(tasks=tasks, method="gatf", resumed_at=None), start


@pytest.mark.parametrize("tasks", [3, 10, 20, 100])
def test_the_line_after_a_task_stays_on_one_line(tasks: int) -> None:
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
    log = Watched(monkeypatch, *begun(tasks=2, steps=12), lines=lines)
    for epoch in range(3):
        for _ in range(4):
            log.wait(2, Step(task=0, phase="train", epoch=epoch, epochs=3))
        log.display(Epoch(task=0, phase="train", epoch=epoch, losses={"ce": 0.25}, lr=0.1, seconds=8.0))
    log.display.close()
    assert log.lines() == [
        "task 1/2  train epoch 2/3  ce 0.250  ≈ 38 s left",
        "task 1/2  train epoch 3/3  ce 0.250  ≈ 28 s left",
    ]


def test_the_time_left_knows_that_later_tasks_are_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first task has 40 steps of 1 s where 20 were expected; later ones have 12 each where 10 were."""
    log = Watched(monkeypatch, RunStart(tasks=3, method="gatf", resumed_at=None, steps=(20, 10, 10)), lines=False)
    for task, steps in enumerate((40, 12)):
        log.wait(0, TaskStart(task=task, classes=1, images=1, steps=steps))
        for _ in range(10):
            log.wait(1, Step(task=task, phase="train", epoch=0, epochs=1))
        log.wait(0, Task(task=task, seen=50.0, accuracies=[50.0], seconds=10.0))
    assert [line.partition("≈ ")[2] for line in log.lines()] == ["50 s left", "14 s left"]


def test_the_time_left_is_shown_in_the_first_epoch_of_few_slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an update of some hundred photos has them: 15 epochs of 2 steps, 8 s each."""
    log = Watched(monkeypatch, *begun(steps=30), lines=False)
    for _ in range(2):
        log.wait(8, Step(task=0, phase="backbone", epoch=0, epochs=15))
    assert log.lines() == ["task 1/1  backbone epoch 1/15  ≈ 4 min left"]


def test_a_slow_first_step_does_not_predict_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of 1 000 steps takes 14 s, because it prepares the network; the others take 0.1 s."""
    log = Watched(monkeypatch, *begun(steps=1000), lines=False)
    log.wait(14, Step(task=0, phase="backbone", epoch=0, epochs=1))
    for _ in range(101):
        log.wait(0.1, Step(task=0, phase="backbone", epoch=0, epochs=1))
    assert log.lines() == ["task 1/1  backbone epoch 1/1", "task 1/1  backbone epoch 1/1  ≈ 90 s left"]


def test_a_log_file_is_not_empty_while_features_of_many_photos_are_extracted(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 of 640 photos in 4 s."""
    log = Watched(monkeypatch, *begun(), lines=False)
    for done in range(0, 641, 64):
        log.wait(4 if done else 0, FeaturesExtracted(task=0, images=done, of=640))
    assert log.lines() == [
        "task 1/1  extracting features 192/640  ≈ 28 s left",
        "task 1/1  extracting features 384/640  ≈ 16 s left",
        "task 1/1  extracting features 576/640  ≈ 4 s left",
    ]


def test_a_line_of_a_log_file_is_one_line_however_many_losses_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Watched(monkeypatch, *begun(tasks=2, steps=12))
    many = {f"[term {number}]": 0.5 for number in range(9)}
    log.display(Epoch(task=0, phase="train", epoch=0, losses=many, lr=0.1, seconds=8.0))
    for seconds in (0, 20):
        log.wait(seconds, Step(task=0, phase="train", epoch=1, epochs=3))
    (line,) = log.lines()
    assert line.startswith("task 1/2  train epoch 2/3  [term 0] 0.500  ")
    assert line.endswith("[term 8] 0.500  ≈ 7 min left")


def test_no_epoch_is_shown_before_the_first() -> None:
    display = LiveDisplay(Console(file=io.StringIO(), width=80))
    display(RunStart(tasks=1, method="slda", resumed_at=None))
    display(TaskStart(task=0, classes=5, images=640, steps=0))
    assert display._parts() == ("task 1/1", "", "", "")
