"""Figures show the numbers they were given; diagnostics of real, tiny runs; what is said of tables made by hand."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatf.config import RunConfig
from gatf.experiment import start
from gatf.report import figures
from gatf.report.figures import curve, in_tasks
from gatf.report.load import Run, load_runs
from gatf.report.page import diagnostics_table, write_report
from gatf.report.sections import at_the_end, diagnostic_figures
from gatf.report.style import line_styles


def test_mean_and_band_over_seeds() -> None:
    mean, std = figures.over_seeds([[90, 60], [92, 66]])
    assert mean.tolist() == [91, 63]
    assert std is not None
    np.testing.assert_allclose(std, [math.sqrt(2), math.sqrt(18)])
    assert figures.over_seeds([[90, 60]])[1] is None


def test_lines_show_the_numbers(fake_run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    gatf = fake_run(tmp_path / "a", "gatf")
    fake_run(tmp_path / "b", "lwf")
    axes = figures.accuracy_over_tasks(load_runs([tmp_path])).axes[0]
    assert axes.lines[0].get_ydata().tolist() == gatf["accuracy_seen"]
    assert [text.get_text() for text in axes.texts] == ["gatf", "lwf"]
    cells = figures.accuracy_matrix(load_runs([tmp_path / "a"])).axes[0]
    assert len(cells.texts) == 15  # a triangle of five tasks
    assert cells.texts[0].get_text() == f"{gatf['accuracy_matrix'][0][0]:.0f}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_config: Callable[..., RunConfig]) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    for method in ("gatf", "adagauss", "finetune"):
        start(tiny_config(method, diagnostics=True), folder / method)
    return load_runs([folder])


def test_every_diagnostic_has_its_figure(runs: list[Run], tmp_path: Path) -> None:
    names = [spec.name for spec in diagnostic_figures(runs)]
    assert names == [
        "drift", "kl", "tail", "margins", "spectrum", "plane-adagauss", "plane-finetune", "plane-gatf",
    ]  # fmt: skip
    write_report([run.folder for run in runs], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Why it forgets" in text
    assert "What is stored of old classes against what is true" in text
    assert text.count("<figure") == text.count('<svg role="img"') == 2 + 2 * 3 + 8


def test_old_classes_are_named_in_the_plane(runs: list[Run]) -> None:
    run = next(run for run in runs if run.row == "gatf")
    (axes,) = figures.transport_plane(run).axes
    old = len(run.summary.accuracy_by_class[-2])
    named = {text.get_text() for text in axes.texts} - {""}
    assert named == set(run.summary.class_names[:old])


def test_lines_have_room_below_the_top(runs: list[Run]) -> None:
    (axes,) = figures.error_over_tasks([run for run in runs if run.row == "gatf"], "drift", "distance").axes
    low, high = axes.get_ylim()
    highest = max(float(value) for line in axes.get_lines() for value in line.get_ydata())
    assert highest <= high - 0.04 * (high - low)


def test_a_row_has_its_colour_also_where_others_have_no_table(runs: list[Run]) -> None:
    kept = [Run(run.folder, run.setting, row, run.summary, run.config, run.diagnostics)
            for run in runs if run.row == "gatf" for row in ("b", "c")]  # fmt: skip
    (axes,) = figures.drift_over_tasks(kept, ("a", "b", "c")).axes
    styles = line_styles(("a", "b", "c"))
    assert [line.get_color() for line in axes.get_lines()] == [styles["b"].color, styles["c"].color]


def test_one_run_alone(runs: list[Run], tmp_path: Path) -> None:
    gatf = next(run for run in runs if run.row == "gatf")
    write_report([gatf.folder], tmp_path / "r.html")
    assert 'id="drift"' in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_runs_without_diagnostics_have_none(runs: list[Run]) -> None:
    bare = [Run(run.folder, run.setting, run.row, run.summary, run.config) for run in runs]
    assert diagnostic_figures(bare) == []
    assert diagnostics_table(bare) is None


def made_up(row: str, seed: int, error: float) -> Run:
    errors = [
        {"after_task": 0, "past_task": 0, "drift": 9.0},
        {"after_task": 1, "past_task": 0, "drift": error},
        {"after_task": 1, "past_task": 0, "drift": error + 2},
        {"after_task": 1, "past_task": 1, "drift": 9.0},
    ]
    return Run(Path(row), "digits", row, {"method": row, "seed": seed}, {}, {"errors": errors})


def test_numbers_at_the_end_are_of_old_classes_and_all_seeds() -> None:
    runs = [made_up("a", 0, 1.0), made_up("a", 1, 3.0), made_up("b", 0, 7.0)]
    assert at_the_end(runs, "errors", "drift") == {"a": 3.0, "b": 8.0}
    table = diagnostics_table(runs)
    assert table is not None
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["a", "300", *["–"] * 6],
        ["b", "800", *["–"] * 6],
    ]


def test_curves_are_means_within_a_seed_and_over_seeds() -> None:
    tables = [
        [{"k": 1, "v": 1.0}, {"k": 1, "v": 3.0}, {"k": 2, "v": 5.0}],
        [{"k": 1, "v": 4.0}, {"k": 2, "v": 7.0}, {"k": 3, "v": 1.0}],
    ]
    found = curve(tables, "k", "v", lambda row: True)
    assert found is not None
    places, mean, std = found
    assert places.tolist() == [1, 2]  # what both have
    assert mean.tolist() == [3, 6]
    np.testing.assert_allclose(std, [2**0.5, 2**0.5])
    assert curve(tables, "k", "v", lambda row: False) is None


def test_time_is_counted_in_tasks() -> None:
    """Whatever the number of epochs of a task."""
    rows = [{"task": 1, "epoch": 10}, {"task": 1, "epoch": 20}, {"task": 2, "epoch": 25}]
    assert [row["time"] for row in in_tasks(rows)] == [1.5, 2.0, 3.0]
