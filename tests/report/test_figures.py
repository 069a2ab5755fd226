"""Figures show the numbers they were given; diagnostics of real, tiny runs; what is said of tables made by hand."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatf.config import RunConfig
from gatf.experiment import start
from gatf.io.events import Epoch
from gatf.report import costs, figures
from gatf.report.figures import curve, in_tasks
from gatf.report.load import Run, load_runs
from gatf.report.page import diagnostics_table, write_report
from gatf.report.sections import at_the_end, diagnostic_figures, figures_of
from gatf.report.style import GREY, line_styles


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
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {"gatf", "lwf"}
    cells = figures.accuracy_matrix(load_runs([tmp_path / "a"])).axes[0]
    assert len(cells.texts) == 15  # a triangle of five tasks
    assert cells.texts[0].get_text() == f"{gatf['accuracy_matrix'][0][0]:.0f}"


def test_what_was_learnt_in_one_task_is_a_level_across(fake_run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "gatf")
    ceiling = fake_run(tmp_path / "b", "joint", tasks=1)
    axes = figures.accuracy_over_tasks(load_runs([tmp_path])).axes[0]
    assert axes.lines[1].get_xdata().tolist() == [1, 2, 3, 4, 5]
    assert axes.lines[1].get_ydata().tolist() == pytest.approx([ceiling["a_last"]] * 5)


def test_the_confusion_map_grows_linearly_with_the_classes(
    fake_run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    classes = 2 * figures.MOST_LINES + 500
    fake_run(tmp_path / "many", classes=classes, confused=True)
    runs = load_runs([tmp_path / "many"])
    found = figures.confusion_shares(runs)
    assert len(found.percent) == 2 * classes  # the pairs that occur
    assert found.percent.tolist()[:2] == [80, 20]
    assert (found.true[1], found.predicted[1]) == (0, 1)
    axes = figures.confusion_matrix(runs).axes[0]
    cells = axes.images[0].get_array()
    assert max(cells.shape) <= figures.MOST_LINES
    # three classes to a cell: of a class and its neighbours 80 % is the largest share, the last one's neighbour is the
    # next cell's first
    assert cells[0, :3].filled(-1).tolist() == [80, 20, -1]
    (pairs,) = (spec for spec in figures_of(runs) if spec.name.startswith("pairs"))
    assert "A cell covers 3 × 3 classes" in pairs.sentence


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
    assert "Stored and true statistics of old classes" in text
    assert (
        text.count("<figure") == text.count('<svg role="img"') == 2 + 3 * 3 + 8 + 2 + 3 * 2
    )  # losses and rates of each


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


def test_percentages_have_room_and_names_too() -> None:
    def panel(highest: float, rows: int) -> tuple[float, float]:
        series = {f"row {number}": [[highest, 10.0]] for number in range(rows)}
        figure = figures.lines_over_tasks(series, first=1, label="")
        return figure.axes[0].get_ylim()[1], figure.get_figheight()

    assert panel(73.0, 3) == (80.0, 3.0)
    assert panel(80.0, 3)[0] == 100.0
    assert panel(80.1, 3)[0] == 102.0  # a marker at 100 % is seen whole
    assert panel(0.0, 3)[0] == 20.0


def test_a_row_has_its_colour_also_where_others_have_no_table(runs: list[Run]) -> None:
    kept = [Run(run.folder, run.setting, row, run.summary, run.config, run.diagnostics)
            for run in runs if run.row == "gatf" for row in ("b", "c")]  # fmt: skip
    (axes,) = figures.drift_over_tasks(kept, ("a", "b", "c")).axes
    styles = line_styles(("a", "b", "c"))
    assert [line.get_color() for line in axes.get_lines()] == [styles["b"].color, styles["c"].color]


def test_one_run_alone(runs: list[Run], tmp_path: Path) -> None:
    gatf = next(run for run in runs if run.row == "gatf")
    write_report([gatf.folder], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    for name in ("drift", "losses-gatf", "rates-gatf"):
        assert f'id="{name}"' in text


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
    assert [[cell.text for cell in row] for row in table.rows] == [["a", "300", *["–"] * 6], ["b", "800", *["–"] * 6]]


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


def test_a_task_ends_with_its_line() -> None:
    """The drift after a task's transport, mean over classes: the line's last point, the sentence and the table."""
    drift = [{"task": 1, "epoch": number, "past_task": 0, "drift": 5.0} for number in (10, 20)]
    errors = [
        {"after_task": 1, "past_task": 0, "drift": 1.0},
        {"after_task": 1, "past_task": 0, "drift": 2.0},
        {"after_task": 1, "past_task": 1, "drift": 9.0},
    ]
    found = in_tasks(drift, errors)
    assert [(row["time"], row["drift"]) for row in found] == [(1 + 1 / 3, 5.0), (1 + 2 / 3, 5.0), (2.0, 1.5)]
    run = Run(Path("a"), "digits", "gatf", {"method": "gatf", "seed": 0}, {}, {"drift": drift, "errors": errors})
    (axes,) = figures.drift_over_tasks([run]).axes
    assert [line.get_ydata()[-1] for line in axes.get_lines()] == [at_the_end([run], "errors", "drift")["gatf"]]


def epoch(task: int, number: int, lr: float, **losses: float) -> Epoch:
    return Epoch(task=task, phase="train", epoch=number, losses=losses, lr=lr, seconds=1.0)


def test_losses_and_rates_over_tasks(tmp_path: Path) -> None:
    """Two epochs of task 0, three of task 1; a term that task 0 does not have begins with task 1."""
    reported = [
        epoch(0, 0, 0.1, ce=4.0),
        epoch(0, 1, 0.1, ce=2.0),
        *(epoch(1, n, 0.01, ce=1.0, kd=n + 1.0) for n in range(3)),
    ]
    lines = [json.dumps(event.record()) for event in reported]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run = Run(tmp_path, "digits", "gatf", {}, {})
    assert costs.losses(run) == {
        "ce": ([0.5, 1.0, 1 + 1 / 3, 1 + 2 / 3, 2.0], [4.0, 2.0, 1.0, 1.0, 1.0]),
        "kd": ([1 + 1 / 3, 1 + 2 / 3, 2.0], [1.0, 2.0, 3.0]),
    }
    assert costs.rates(run) == {"rate": ([0.5, 1.0, 1 + 1 / 3, 1 + 2 / 3, 2.0], [0.1, 0.1, 0.01, 0.01, 0.01])}
    (axes,) = costs.training_lines(costs.losses(run), "loss").axes
    assert [line.get_ydata()[-1] for line in axes.get_lines()] == [1.0, 3.0]
    assert costs.losses(Run(tmp_path / "none", "digits", "gatf", {}, {})) == {}


def test_many_classes_stand_in_the_order_of_their_accuracy(fake_bench: Path) -> None:
    runs = load_runs([fake_bench / "gatf-seed0"])
    (axes,) = figures.accuracy_by_class(runs).axes
    named = [label.get_text() for label in axes.get_yticklabels()]
    last = dict(zip(runs[0].summary.class_names, runs[0].summary.accuracy_by_class[-1], strict=True))
    accuracies = [last[name] for name in named]
    (spec,) = [spec for spec in figures_of(runs) if spec.name == "classes-gatf"]
    assert spec.sentence.endswith("Sorted by final accuracy.")
    assert len(named) == 25
    assert accuracies == sorted(accuracies, reverse=True)


def test_at_most_eight_lines_have_names() -> None:
    """One's own row, the landmarks and the best of the others; the rest is grey."""
    series = {f"m{number}": [[90.0, 50.0 - number]] for number in range(9)} | {"joint": [[60.0, 60.0]]}
    axes = figures.lines_over_tasks(series, first=1, label="%", named={"m8"}).axes[0]
    names = {text.get_text() for text in axes.get_legend().get_texts()}
    assert names == {"joint", "m8", *(f"m{number}" for number in range(6))}
    grey = [line for line in axes.get_lines() if line.get_color() == GREY]
    assert sorted(line.get_ydata()[-1] for line in grey) == [43.0, 44.0]  # m7 and m6


def test_gaps_are_stacked_up_to_joint_training() -> None:
    explained = {
        "gatf": {"own": 30.0, "transport": 2.0, "readout": 1.0, "representation": 15.0},
        "lwf": {"own": 25.0, "transport": None, "readout": 10.0, "representation": -1.0},
    }
    axes = figures.accuracy_gaps(explained).axes[0]
    ends = [max(bar.get_x() + bar.get_width() for bar in bars) for bars in zip(*axes.containers, strict=True)]
    assert ends == [35.0, 48.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["lwf", "gatf"]
