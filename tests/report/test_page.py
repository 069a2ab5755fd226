"""The page says what the runs say, needs nothing else, and tells what it cannot show."""

import json
import re
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gatf import cli
from gatf.errors import UserError
from gatf.io.run_folder import RunFolder
from gatf.io.text import csv_cell
from gatf.report.load import load_runs
from gatf.report.page import (
    bibtex,
    classes_table,
    diagnostics_table,
    machines,
    results_table,
    tasks_table,
    write_report,
)
from gatf.report.sections import plain

FakeRun = Callable[..., dict[str, Any]]
LIGHT_ENOUGH = 3_000_000


class Page(HTMLParser):
    """Tags that must be closed, images that must be described, links that must not be."""

    VOID = frozenset({"meta", "link", "br", "path", "use", "image"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.figures = self.described = 0
        self.outside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag not in self.VOID:
            self.open.append(tag)
        self.figures += tag == "figure"
        self.described += tag == "svg" and bool(given.get("aria-label")) and given.get("role") == "img"
        for name in ("src", "href"):
            value = given.get(name)
            if value and not value.startswith(("#", "data:")):
                self.outside.append(value)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(fake_bench: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "out.html"
    assert len(write_report([fake_bench], out)) == 15
    return out.read_text(encoding="utf-8")


def test_a_row_that_learnt_all_in_one_task_stands_beside_the_others(
    fake_run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """As `joint` does in some benches: it has no older classes that could be taken for new ones."""
    rows = {"gatf": 5, "joint": 1}
    for row, tasks in rows.items():
        fake_run(tmp_path / "bench" / row, row, tasks=tasks)
    runs = [{"folder": row, "setting": "digits", "row": row, "seed": 0} for row in rows]
    (tmp_path / "bench" / "bench.json").write_text(json.dumps({"name": "b", "title": "b", "runs": runs}))
    assert len(write_report([tmp_path / "bench"], tmp_path / "page.html")) == 2
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    (chart,) = re.findall(r'aria-label="(Old classes predicted as new ones[^"]*)"', page)
    assert "gatf" in chart
    assert "joint" not in chart


def test_the_page_is_whole_described_and_needs_nothing_else(page: str) -> None:
    parsed = Page(page)
    assert parsed.open == []
    assert parsed.figures == parsed.described == 2 + 2 * 5 + 2
    assert parsed.outside == []
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    assert len(page.encode()) < LIGHT_ENOUGH


def test_the_page_agrees_with_the_runs(page: str, fake_bench: Path) -> None:
    summaries = [json.loads(path.read_text()) for path in sorted(fake_bench.glob("gatf-*/summary.json"))]
    mean = sum(summary["a_last"] for summary in summaries) / 3
    assert f"gatf ends at {mean:.1f}\u00a0%" in page
    assert "below training on all images (joint)" in page
    assert "<title>5 methods on cifar100, 10 tasks</title>" in page
    assert "Configuration of gatf" in page
    assert "torch 2.6.0" in page
    assert "Traceback" not in page
    assert str(fake_bench.parent) not in page  # nobody's folders are reported


def test_backward_transfer_and_the_area_stand_in_the_tables(fake_run: FakeRun, tmp_path: Path) -> None:
    for method in ("gatf", "lwf"):
        fake_run(tmp_path / method, method)
    runs = load_runs([tmp_path])
    reported = dict(zip([name for name, _ in results_table(runs).headings], results_table(runs).rows[0], strict=True))
    summary = runs[0].summary
    seen, matrix = summary.accuracy_seen, summary.accuracy_matrix
    assert reported["method"].text == "gatf"
    assert reported["area %"].key == pytest.approx((seen[0] / 2 + sum(seen[1:-1]) + seen[-1] / 2) / 4)
    changed = [matrix[-1][task] - matrix[task][task] for task in range(4)]
    assert reported["backward transfer"].key == pytest.approx(sum(changed) / 4)
    notes = " ".join(tasks_table(runs[0]).notes)
    assert f"since they were learnt: {sum(changed) / 4:+.1f} points." in notes
    assert f"accuracy curve: {reported['area %'].text} %" in notes


def test_settings_are_not_compared_with_each_other(fake_run: FakeRun, tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "gatf")
    fake_run(tmp_path / "b", "gatf", tasks=2)
    write_report([tmp_path / "a", tmp_path / "b", tmp_path / "a"], tmp_path / "r.html", figures=tmp_path / "figures")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<h2>digits, 5 tasks</h2>" in text
    assert "<h2>digits, 2 tasks</h2>" in text
    assert (tmp_path / "figures" / "digits--5-tasks-accuracy.pdf").is_file()
    assert len(load_runs([tmp_path, tmp_path / "a"])) == 2


def test_rows_can_be_chosen(fake_bench: Path, tmp_path: Path) -> None:
    arguments = ["report", str(fake_bench), "-o", str(tmp_path / "r.html"), "--methods", "gatf,lwf"]
    reported = CliRunner().invoke(cli.app, arguments)
    assert reported.exit_code == 0, reported.output
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<title>2 methods on" in text
    assert text.index('id="matrix-gatf"') < text.index('id="matrix-lwf"')
    assert isinstance(CliRunner().invoke(cli.app, [*arguments[:-1], "gaft"]).exception, UserError)


def test_ours_stand_beside_published_numbers(fake_run: FakeRun, tmp_path: Path) -> None:
    for seed in range(2):
        fake_run(tmp_path / f"seed{seed}", "gatf", seed)
    entries = [{"folder": f"seed{seed}", "setting": "cifar100-t10", "row": "gatf"} for seed in range(2)]
    (tmp_path / "bench.json").write_text(json.dumps({"runs": entries}), encoding="utf-8")
    write_report([tmp_path], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "≠: outside two standard deviations" in text
    assert ">52.0</td>" in text
    assert "Xu &amp; Krawczyk" in text


def test_a_hostile_name_stays_text(fake_run: FakeRun, tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "gatf")
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    summary["class_names"][0] = "<script>alert(1)</script>"
    (tmp_path / "a" / "summary.json").write_text(json.dumps(summary))
    write_report([tmp_path / "a"], tmp_path / "r.html")
    assert "<script>alert" not in (tmp_path / "r.html").read_text(encoding="utf-8")


def rename(folder: Path, names: list[str]) -> None:
    """Other names for a run's classes, in its summary and in its table of predictions."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    summary["class_names"] = names
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    one, other = (csv_cell(name) for name in names[:2])
    RunFolder(folder).write_confusion([*((name, name, 8) for name in names), (names[0], names[1], 2)])
    assert f"{one},{other},2" in (folder / "confusion.csv").read_text(encoding="utf-8").replace('"', "")


@pytest.mark.parametrize(
    "names",
    [["007", "00"], ["1_000", "1e3"], ["nan", "inf"], ["=a", "@b"], ["$\\frac{$", "US$ _^"], ["猫", "ก"], ["", " "]],
    ids=str,
)  # fmt: skip
def test_odd_names_of_classes_are_distinguished_and_drawn(names: list[str], fake_run: FakeRun, tmp_path: Path) -> None:
    """Numbers with zeros in front, spreadsheet formulas, what Matplotlib takes for mathematics or has no letters for; a
    warning would be an error here."""
    fake_run(tmp_path / "a", "gatf", classes=10)
    rename(tmp_path / "a", [*names, *(f"class {number}" for number in range(2, 10))])
    write_report([tmp_path / "a"], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert f"“{escape(names[0])}” is predicted as “{escape(names[1])}” for 20\u00a0% of its images" in text


def test_names_with_escape_sequences_are_shown_as_such(fake_run: FakeRun, tmp_path: Path) -> None:
    evil = "\x1b[2Jcat\x07\u202e"
    fake_run(tmp_path / "a", "gatf")
    rename(tmp_path / "a", [evil, "\t=b", *(f"class {number}" for number in range(2, 10))])
    index = {"runs": [{"folder": "a", "setting": evil, "row": evil + "$\\frac{$"}]}
    (tmp_path / "bench.json").write_text(json.dumps(index), encoding="utf-8")
    write_report([tmp_path], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert not set("\x1b\x07\u202e") & set(text)
    assert "“\\u001b[2Jcat\\u0007\\u202e” is predicted as “\\u0009=b” for 20\u00a0% of its images" in text


def test_predictions_that_are_no_classes_of_the_run_are_refused(fake_run: FakeRun, tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "gatf", confused=True)
    (tmp_path / "a" / "confusion.csv").write_text("class,predicted,images\nclass 0,nobody,3\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"confusion.csv is not a table of this run's predictions: no class is called"):
        load_runs([tmp_path / "a"])


def test_runs_of_one_method_on_other_classes_are_not_mixed(fake_run: FakeRun, tmp_path: Path) -> None:
    """Two folders of pictures have one setting, by its name; what is taken for what is asked of the same classes."""
    for folder, letter in (("a", "x"), ("b", "y")):
        fake_run(tmp_path / folder, "gatf")
        rename(tmp_path / folder, [f"{letter}{number}" for number in range(10)])
    write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "r.html")
    assert "Confusion matrix" not in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_one_task_has_no_forgetting_and_no_confusion(fake_run: FakeRun, tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "gatf", tasks=1)
    write_report([tmp_path / "a"], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Old classes taken" not in text
    assert Page(text).figures == 3


def test_the_command(fake_run: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_run(tmp_path / "runs" / "a b", "gatf")
    monkeypatch.chdir(tmp_path)
    for given in (Path("runs/a b"), tmp_path / "runs" / "a b"):
        reported = CliRunner().invoke(cli.app, ["report", str(given)])
        page = (tmp_path / "runs" / "a b" / "report.html").read_text(encoding="utf-8")
        assert "gatf report &#39;runs/a b&#39;" in page  # as it can be typed again
    assert reported.exit_code == 0, reported.output
    assert "report of 1 run: " in reported.output


def test_machines_and_classes_are_listed(fake_run: FakeRun, tmp_path: Path) -> None:
    for seed, day in enumerate(("01", "03")):
        reported = fake_run(tmp_path / f"s{seed}", "gatf", seed)
        reported["machine"] = {"date": f"2026-11-{day}T10:00:00+00:00", "processor": "Abacus 2", "threads": "1"}
        (tmp_path / f"s{seed}" / "summary.json").write_text(json.dumps(reported), encoding="utf-8")
    runs = load_runs([tmp_path])
    assert machines(runs) == ["2 runs on Abacus 2, 1 thread; 2026-11-01 to 2026-11-03"]
    table = classes_table("gatf", runs)
    assert [cell.text for cell in table.rows[3][:2]] == ["class 3", "2"]
    new = sum(run.summary.accuracy_by_class[1][3] for run in runs) / 2
    end = sum(run.summary.accuracy_by_class[-1][3] for run in runs) / 2
    assert [cell.key for cell in table.rows[3][2:]] == [new, end]


def test_the_head_of_a_report_has_its_command_and_files(fake_run: FakeRun, tmp_path: Path) -> None:
    machine = {"date": "2026-11-01T10:00:00+00:00", "processor": "Abacus 2", "threads": "2"}
    for seed in range(2):
        reported = fake_run(tmp_path / f"gatf seed{seed}", "gatf", seed, confused=True)
        reported["machine"] = machine | {"command": "gatf bench <digits>", "commit": "0123456789ab-dirty"}
        (tmp_path / f"gatf seed{seed}" / "summary.json").write_text(json.dumps(reported), encoding="utf-8")
    (tmp_path / "results.csv").write_text("a,b", encoding="utf-8")
    write_report([tmp_path], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    head = text[: text.index("<main>")]
    assert "2 runs on Abacus 2, 2 threads; 2026-11-01" in head
    assert "gatf 0.1.0, commit 0123456789ab-dirty" in head
    assert "<code>$ gatf bench &lt;digits&gt;</code>" in head
    assert Page(text).outside == ["results.csv", "gatf%20seed0/", "gatf%20seed1/"]
    assert ("seconds, 2 threads", "training and evaluation, all tasks") in results_table(load_runs([tmp_path])).headings
    elsewhere = tmp_path / "elsewhere" / "report.html"
    write_report([tmp_path], elsewhere)  # where links would tell of somebody's folders
    assert Page(elsewhere.read_text(encoding="utf-8")).outside == []
    runs = sorted(tmp_path.glob("gatf *"))
    write_report(runs, tmp_path / "report.html")  # the files of each have the same names: only folders are linked
    assert Page((tmp_path / "report.html").read_text(encoding="utf-8")).outside == ["gatf%20seed0/", "gatf%20seed1/"]
    alone = tmp_path / "gatf seed0"
    (alone / "diagnostics").mkdir()
    (alone / "diagnostics" / "confusion.csv").write_text("after_task,past_task,to_new\n1,0,2\n", encoding="utf-8")
    write_report([alone], alone / "report.html")
    text = (alone / "report.html").read_text(encoding="utf-8")
    assert Page(text).outside == ["summary.json", "confusion.csv", "config.yaml", "diagnostics/confusion.csv"]
    assert ">diagnostics/confusion.csv</a>" in text  # two files of one name are reported apart


def test_confusions_are_drawn_and_the_most_frequent_is_named(fake_run: FakeRun, tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "gatf", confused=True)
    write_report([tmp_path / "a"], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Confusion matrix" in text
    assert "Most frequent error: “class 0” is predicted as “class 1” for 20\u00a0% of its images." in text


def test_a_certificate_that_never_holds_is_a_note_and_not_a_column(fake_run: FakeRun, tmp_path: Path) -> None:
    fake_run(tmp_path / "a", "gatf")
    (tmp_path / "a" / "diagnostics").mkdir()
    lines = "after_task,past_task,class,certified,whitened\n4,0,0,0.0,0.25\n4,1,2,0.0,0.75\n"
    (tmp_path / "a" / "diagnostics" / "certified.csv").write_text(lines, encoding="utf-8")
    table = diagnostics_table(load_runs([tmp_path / "a"]))
    assert table is not None
    assert "certified %" not in [name for name, _ in table.headings]
    assert "50.0" in [cell.text for cell in table.rows[0]]
    assert table.notes == ["Theorem 2 certifies no prediction: as printed."]


def test_the_publications_of_a_table(fake_run: FakeRun, tmp_path: Path) -> None:
    for method in ("gatf", "finetune", "lwf"):
        reported = fake_run(tmp_path / method, method)
        reported["method"] = method.replace("lwf", "ewc")
        (tmp_path / method / "summary.json").write_text(json.dumps(reported), encoding="utf-8")
    text = bibtex(load_runs([tmp_path]))
    assert text.count("@") == 3  # finetune has no paper
    assert "@article{ewc2017,\n  author = {James Kirkpatrick and Razvan Pascanu and " in text
    assert "  journal = {PNAS},\n  year = {2017}\n}" in text
    assert "@inproceedings{gatf2026,\n  author = {Xu and Krawczyk},\n  title = {{Geometry-Anchored" in text
    assert "booktitle = {ECCV},\n  year = {2026}" in text
    assert text.endswith("@misc{gatf-cil,\n  title = {gatf-cil},\n  note = {Version 0.1.0}\n}")


@pytest.mark.parametrize(
    ("method", "author", "title"),
    [
        ("adc", "Joost van de Weijer", "Resurrecting Old Classes with New Data for Exemplar-Free Continual Learning"),
        ("fecam", "Yuyang Liu", "FeCAM: Exploiting the Heterogeneity of Class Distributions in Exemplar-Free"),
        ("dpcr", "Run He and Di Fang and", "Classifier Reconstruction for Exemplar-Free Class-Incremental Learning}}"),
        ("ncm", "Florent Perronnin", "Generalizing to New Classes at Near-Zero Cost}}"),
        ("gatf", "Xu and Krawczyk", "Transport Framework for Exemplar-Free Class-Incremental Learning}}"),
    ],
)
def test_publications_have_whole_titles_and_all_authors(
    fake_run: FakeRun, tmp_path: Path, method: str, author: str, title: str
) -> None:
    reported = fake_run(tmp_path / "run", "gatf") | {"method": method}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(reported), encoding="utf-8")
    entry, _ = bibtex(load_runs([tmp_path])).split("\n\n")
    assert author in entry
    assert title in entry


def test_ones_own_row_has_its_place_among_stored_ones(fake_run: FakeRun, tmp_path: Path) -> None:
    """The table is sorted, and only the own run has figures of its own."""
    for row in ("gatf", "finetune"):
        summary = fake_run(tmp_path / "known" / row, row)
        summary["accuracy_by_class"] = [[] for _ in summary["accuracy_by_class"]]
        (tmp_path / "known" / row / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        about = {"setting": "digits, 5 tasks", "row": row}
        (tmp_path / "known" / row / "about.json").write_text(json.dumps(about), encoding="utf-8")
    fake_run(tmp_path / "mine", "lwf")
    reported = CliRunner().invoke(cli.app, ["report", str(tmp_path / "mine"), "--against", str(tmp_path / "known")])
    assert reported.exit_code == 0, reported.output
    assert "digits, 5 tasks: lwf is number 2 of 3 with A_last" in reported.output
    page = (tmp_path / "mine" / "report.html").read_text(encoding="utf-8")
    results = page[page.index("<table") : page.index("</table>")]
    assert results.index(">gatf<") < results.index(">lwf<") < results.index(">finetune<")
    assert re.findall(r'aria-label="Accuracy per task: (\w+)', page) == ["lwf"]


def test_numbers_have_three_digits_and_no_exponent() -> None:
    values = [0.0, 0.401, 0.7, 44.6, 126.4, 126_000.4]
    assert [plain(value) for value in values] == ["0.00", "0.401", "0.700", "44.6", "126", "126,000"]


def test_a_number_and_its_percent_sign_stay_on_one_line(page: str) -> None:
    assert re.search(r"\d\u00a0%", page)
    assert not re.search(r"\d %", page)
