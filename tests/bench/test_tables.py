"""Means, spreads, published numbers and marks, by hand."""

import csv
import io
from typing import Any

import pytest
from rich.console import Console

from gatf.bench.plan import load_plan
from gatf.bench.published import Published, is_outside, load_published, published
from gatf.bench.tables import Result, aggregate, comparison, print_table, to_csv, to_latex, to_markdown
from gatf.config import recipe_names
from gatf.io.run_folder import Summary
from gatf.methods import METHODS


def summary(method: str, a_last: float, a_inc: float, forgetting: float | None = 5.0, **more: Any) -> Summary:
    """Of a run of one task, or of tasks that have equally many test images."""
    reported = {
        "method": method, "dataset": "digits", "tasks": 1, "seed": 0, "class_order": [0], "class_names": ["0"],
        "a_last": a_last, "a_inc": a_inc, "a_last_task_weighted": a_last, "a_inc_task_weighted": a_inc,
        "forgetting": forgetting, "accuracy_matrix": [[a_last]], "accuracy_seen": [a_last], "task_aware": [[a_last]],
        "accuracy_by_class": [[a_last]], "old_to_new": [None], "seconds": [60.0], "total_seconds": 60.0,
        "peak_memory_mb": [1.0], "bytes_per_class": 8576, "versions": {},
    }  # fmt: skip
    return Summary(**(reported | more))


def results(setting: str = "cifar100-t10", row: str = "gatf") -> list[Result]:
    return [Result(setting, row, summary("gatf", value, value + 12)) for value in (51.0, 53.0)]


def test_mean_and_sample_standard_deviation() -> None:
    (row,) = aggregate(results())
    assert row["a_last"] == 52
    assert row["a_last_std"] == pytest.approx(2**0.5)
    (single,) = aggregate(results()[:1])
    assert single["a_last_std"] is None
    (one_task,) = aggregate([Result("s", "r", summary("gatf", 1, 2, forgetting=None))])
    assert one_task["forgetting"] is None


MATRIX = [[90.0], [60.0, 80.0], [50.0, 70.0, 88.0]]


def test_forgetting_stands_beside_what_was_learnt_at_all() -> None:
    """A method that never learns a task has nothing to forget: joint − after learning is intransigence (Chaudhry et
    al.)."""
    tasks = {"tasks": 3, "accuracy_matrix": MATRIX, "accuracy_seen": [90.0, 70.0, 60.0]}
    one = summary("gatf", 60.0, 73.3, 15.0, **tasks)
    assert one.accuracy_new == (90 + 80 + 88) / 3
    assert one.backward_transfer == (50 - 90 + 70 - 80) / 2
    assert one.area_under_curve == (90 / 2 + 70 + 60 / 2) / 2
    ceiling = summary(
        "joint", 94.0, 96.0, 1.0, **tasks | {"accuracy_matrix": [[98.0], [95.0, 96.0], [95.0, 94.0, 94.0]]}
    )
    other_seed = summary("gatf", 60.0, 73.3, 15.0, **tasks, seed=1)
    table = aggregate([Result("s", "gatf", one), Result("s", "gatf", other_seed), Result("s", "joint", ceiling)])
    assert table[0]["intransigence"] == (8 + 16 + 6) / 3  # of the seed that joint has too
    assert table[1]["intransigence"] == 0
    lines = to_markdown(table).splitlines()
    assert lines[0] == (
        "| method | seeds | A_last % | A_inc % | after learning % | forgetting | intransigence | seconds "
        "| bytes per class |"
    )
    assert lines[2].startswith("| gatf | 2 | 60.0 ± 0.0 | 73.3 ± 0.0 | 86.0 ± 0.0 | 15.0 ± 0.0 | 10.0 | ")
    assert "intransigence" not in to_markdown(aggregate([Result("s", "gatf", one)])).splitlines()[0]
    (line,) = csv.DictReader(io.StringIO(to_csv(aggregate([Result("s", "gatf", one)]))))
    assert float(line["backward_transfer"]) == -25
    assert float(line["area_under_curve"]) == 72.5
    single = summary("gatf", 60.0, 60.0, None)
    assert (single.accuracy_new, single.backward_transfer, single.area_under_curve) == (60.0, None, 60.0)


def test_settings_are_rows_of_their_own() -> None:
    table = aggregate([*results(), *results("cifar100-t20")])
    assert [row["setting"] for row in table] == ["cifar100-t10", "cifar100-t20"]
    lines = to_markdown(table).splitlines()
    assert lines[0].startswith("| setting | method |")
    assert (
        "| cifar100-t10 | gatf | 2 | 52.0 ± 1.4 | 64.0 ± 1.4 | 52.0 ± 1.4 | 5.0 ± 0.0 | 60.0 ± 0.0 | 8,576 |" in lines
    )
    assert to_markdown(table[:1]).startswith("| method | seeds |")


def test_marks_need_two_standard_deviations_of_both() -> None:
    row = {"a_last": 50.0, "a_last_std": 1.0}
    assert not is_outside(row, Published(a_last=52.0, a_inc=0, source="ldc"), "a_last")
    assert is_outside(row, Published(a_last=52.1, a_inc=0, source="ldc"), "a_last")
    assert not is_outside(row, Published(a_last=52.1, a_inc=0, a_last_std=0.5, source="ldc"), "a_last")
    assert not is_outside({"a_last": 50.0, "a_last_std": None}, Published(a_last=99, a_inc=0, source="ldc"), "a_last")
    tasks = row | {"a_last_task_weighted": 49.0, "a_last_task_weighted_std": 1.4}
    assert not is_outside(tasks, Published(a_last=51.8, a_inc=0, source="gatf"), "a_last")
    assert is_outside(tasks, Published(a_last=51.9, a_inc=0, source="gatf"), "a_last")


def test_ours_is_averaged_as_the_published_number_is() -> None:
    """CUB-200's classes differ in test images: AdaGauss's numbers weigh its tasks equally, and ours beside them too."""
    runs = [
        summary("gatf", value, 60.0, a_last_task_weighted=value + 0.4, a_inc_task_weighted=60.5)
        for value in (50.0, 52.0)
    ]
    table = aggregate(Result("cub200-t10", "gatf", run) for run in runs)
    assert "| gatf | 2 | 51.0 ± 1.4 | 60.0 ± 0.0 |" in to_markdown(table)  # our own table: by images
    beside = "| cub200-t10 | gatf | 51.4 ± 1.4 | 52.4 | -1.0 | 60.5 ± 0.0 | 63.1 | -2.6 ≠ | tasks | gatf |"
    assert beside in comparison(table)
    (row,) = csv.DictReader(io.StringIO(to_csv(table)))
    assert float(row["a_last"]) == 51
    assert float(row["a_last_task_weighted"]) == pytest.approx(51.4)
    assert float(row["difference_a_last"]) == pytest.approx(-1.0)
    assert row["published_averaged_over"] == "tasks"
    assert r"$51.4{\scriptstyle\,\pm\,1.4}$ [52.4, $-1.0$]" in to_latex(table)
    ldc = aggregate([Result("imagenet100-t10", "ldc", summary("ldc", 50.4, 70.4, a_last_task_weighted=1.0))])
    lines = [line for line in comparison(ldc).splitlines() if line.startswith("| imagenet")]
    assert lines[0] == "| imagenet100-t10 | ldc | 50.4 | 51.4 | -1.0 | 70.4 | 69.4 | +1.0 | images | gatf-ldc |"


def test_ours_beside_published() -> None:
    text = comparison(aggregate(results()))
    assert "| cifar100-t10 | gatf | 52.0 ± 1.4 | 52.0 | +0.0 | 64.0 ± 1.4 | 64.4 | -0.4 | tasks | gatf |" in text
    assert "- gatf: Xu & Krawczyk" in text
    far = [Result("cifar100-t10", "adagauss", summary("adagauss", value, 60.9)) for value in (30.0, 31.0)]
    lines = [line for line in comparison(aggregate(far)).splitlines() if "adagauss |" in line]
    assert len(lines) == 2  # one for each source
    assert "-16.3 ≠" in lines[0]
    assert comparison(aggregate(results("digits"))) == ""


def test_csv_has_everything_in_full() -> None:
    (row,) = csv.DictReader(io.StringIO(to_csv(aggregate(results()))))
    assert (row["published_a_last"], row["source"]) == ("52.0", "gatf")
    assert float(row["difference_a_inc"]) == pytest.approx(-0.4)
    assert float(row["a_last_std"]) == pytest.approx(2**0.5)


def test_latex_is_balanced_and_escaped() -> None:
    text = to_latex(aggregate([*results(), *results("my_set", "50 % & more")]))
    std = r"{\scriptstyle\,\pm\,1.4}"
    assert rf"gatf & $52.0{std}$ [52.0, $+0.0$] & $64.0{std}$ [64.4, $-0.4$] & -- & -- \\" in text
    assert r"50 \% \& more" in text
    assert r"^{\neq}" not in text
    far = to_latex(aggregate(results(row="adagauss")))
    assert r"[46.8, $+5.2^{\neq}$]" in far
    assert r"my\_set" in text
    assert text.count("{") == text.count("}")
    assert text.count(r"\begin") == text.count(r"\end") == 1


def test_published_numbers_name_known_things() -> None:
    """Settings are run recipes, rows are methods or rows of the ablation, sources are explained."""
    file = load_published()
    rows = set(METHODS) | {run.row for run in load_plan("paper-table3", seeds="0").runs}
    for setting, methods in file.numbers.items():
        assert setting in recipe_names()
        assert set(methods) <= rows
        for cell in (cell for cells in methods.values() for cell in cells):
            assert cell.source in file.sources
            assert 10 < cell.a_last < cell.a_inc < 70


PAPER = {
    "cifar100-t10": (12, 485.9, 673.7), "cifar100-t20": (12, 352.6, 539.9),
    "tinyimagenet-t10": (12, 366.9, 528.4), "tinyimagenet-t20": (12, 278.1, 447.3),
    "imagenet100-t10": (12, 490.0, 678.7), "imagenet100-t20": (12, 338.5, 537.3),
    "cub200-t10": (11, 453.9, 588.9), "cub200-t20": (11, 345.9, 493.3),
}  # fmt: skip
"""Cells, sum of A_last and sum of A_inc of each column pair of GATF's Tables 1 and 2. A script read the rows "method |
A_last/A_inc | …" of a transcript of the tables and added them up in decimal; it never saw the file tested here."""
ABLATION = {
    "cifar100-t10": (4, 200.8, 252.7), "cifar100-t20": (4, 164.8, 223.2),
    "tinyimagenet-t10": (4, 142.7, 196.1), "tinyimagenet-t20": (4, 121.1, 174.1),
}  # fmt: skip
"""The same of Table 3."""


def test_the_papers_tables_add_up() -> None:
    numbers = load_published().numbers
    ablation = list(dict.fromkeys(run.row for run in load_plan("paper-table3", seeds="0").runs))
    for rows, sums in ((list(METHODS), PAPER), (ablation, ABLATION)):
        for setting, (count, a_last, a_inc) in sums.items():
            firsts = [cells[0] for row, cells in numbers[setting].items() if row in rows]
            assert all(cell.source.startswith("gatf") for cell in firsts)
            assert len(firsts) == count
            assert sum(cell.a_last for cell in firsts) == pytest.approx(a_last, abs=1e-6)
            assert sum(cell.a_inc for cell in firsts) == pytest.approx(a_inc, abs=1e-6)
    assert set(numbers) == set(PAPER)


@pytest.mark.parametrize(("bench", "count"), [("paper-table1", 48), ("paper-table2", 46), ("paper-table3", 16)])
def test_the_papers_benches_have_every_number_beside_them(bench: str, count: int) -> None:
    runs = load_plan(bench, seeds="0").runs
    found = {(run.setting, run.row): published(run.setting, run.row) for run in runs}
    without = [key for key, cells in found.items() if not cells]
    assert without == ([("cub200-t10", "dpcr"), ("cub200-t20", "dpcr")] if bench == "paper-table2" else [])
    assert len(found) - len(without) == count
    wanted = {"gatf-ablation"} if bench == "paper-table3" else {"gatf", "gatf-ldc"}
    assert {cells[0].source for cells in found.values() if cells} <= wanted


def test_the_papers_own_numbers() -> None:
    assert [(cell.a_last, cell.a_inc) for cell in published("cifar100-t10", "gatf")] == [(52.0, 64.4)]
    assert published("tinyimagenet-t20", "adagauss")[1].a_last_std == 1.0
    assert published("cub200-t10", "gatf")[0].a_inc == 63.1
    assert published("digits", "gatf") == []


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_no_number_of_the_table_is_cut(width: int) -> None:
    more = {"total_seconds": 1234.5, "bytes_per_class": 33536}
    runs = [summary("adagauss", value, 100.0, forgetting=100.0, **more) for value in (100.0, 80.0)]
    table = aggregate([Result("digits", "adagauss", run) for run in runs])
    file = io.StringIO()
    print_table(table, Console(file=file, width=width))
    assert "…" not in file.getvalue()
    assert "90.0 ± 14.1" in file.getvalue()
    assert ("33,536" in file.getvalue()) == (width == 120)
