"""What people see of a run while it goes on."""

import io

import pytest
from rich.console import Console

from gatf.io.events import RunStart, Task, TaskStart
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
