"""The table on a terminal: nothing cut, nothing wrapped, whatever the width."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from gatf.cli.summary import print_summary
from gatf.io.run_folder import Summary


def summary(tasks: int) -> Summary:
    """Distinct numbers: 50 + k.t on task k after task t."""
    matrix = [[50 + k + t / 100 for k in range(t + 1)] for t in range(tasks)]
    return Summary(
        method="gatf", dataset="tinyimagenet", tasks=tasks, seed=0, class_order=[], class_names=[],
        accuracy_matrix=matrix, accuracy_seen=[99.9 - t for t in range(tasks)], seconds=[12345.6] * tasks,
        a_last=80.9, a_inc=90.4, a_last_task_weighted=80.9, a_inc_task_weighted=90.4, forgetting=7.25,
        task_aware=matrix, accuracy_by_class=matrix, old_to_new=[None] * tasks, total_seconds=123456.7,
        peak_memory_mb=[1.0] * tasks, bytes_per_class=1, versions={},
    )  # fmt: skip


def printed(tasks: int, width: int) -> list[str]:
    file = io.StringIO()
    print_summary(summary(tasks), Console(file=file, width=width))
    return file.getvalue().splitlines()


@pytest.mark.parametrize(("tasks", "width"), [(1, 60), (5, 200), (10, 80), (11, 120), (20, 60)])
def test_every_line_fits_and_no_cell_is_cut(tasks: int, width: int) -> None:
    lines = printed(tasks, width)
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line for line in lines)
    rows = [line for line in lines if line.startswith("│")]
    assert len(rows) == tasks  # nothing wraps
    assert [row.split("│")[1].strip() for row in rows] == [str(task) for task in range(1, tasks + 1)]
    assert all(f"{99.9 - task:.1f}" in row for task, row in enumerate(rows))


def test_the_matrix_loses_decimals_before_it_is_left_out() -> None:
    wide, narrow, narrowest = ("\n".join(printed(10, width)) for width in (140, 80, 60))
    assert "59.1" in wide
    assert "59.1" not in narrow
    assert " 59 " in narrow
    assert " 59 " not in narrowest
    for text, reported in ((wide, False), (narrow, False), (narrowest, True)):
        assert ("summary.json" in text) == reported


def test_a_large_first_task_gets_the_harmonic_mean() -> None:
    file = io.StringIO()
    result = replace(summary(2), accuracy_by_class=[[80.0, 60.0], [90.0, 50.0, 30.0]])
    print_summary(result, Console(file=file, width=200))
    assert "larger first task 70.0 %, of later tasks 30.0 %, harmonic mean 42.0 %" in file.getvalue()
