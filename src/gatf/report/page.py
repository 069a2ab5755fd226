"""The report: one self-contained HTML file with tables and figures."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from gatf import __version__
from gatf.bench.published import OUTSIDE, difference, is_outside, load_published, own_column, published, weighting
from gatf.bench.tables import ALSO, AVERAGED, MISSING, aggregate, shown_columns, spread
from gatf.evaluation.accuracy_gap import Explained
from gatf.io.files import write_text
from gatf.io.run_folder import CONFIG, CONFUSION, EVENTS, SUMMARY, RunFolder
from gatf.io.run_folder import EXPLAINED as EXPLAINED_FILE
from gatf.methods import METHODS
from gatf.report.costs import on_threads
from gatf.report.load import Run, by_row, chosen_rows, load_references, load_runs
from gatf.report.sections import (
    GROUPS,
    WHY,
    FigureSpec,
    Section,
    at_the_end,
    at_the_end_explained,
    best_of,
    build_sections,
    plain,
    with_table,
)
from gatf.report.style import NAMES, css_variables, inline_svg, line_styles, save_figure

EXPLAINED = {
    "A_last %": "accuracy over all classes after the last task",
    "A_inc %": "mean over tasks of the accuracy over all seen classes",
    "area %": "area under the accuracy curve",
    "after learning %": "accuracy after learning the task, mean over tasks",
    "intransigence": "the gap from there to joint training; lower is better",
    "forgetting": "drop from the best accuracy on a task, mean over old tasks; lower is better",
    "backward transfer": "final accuracy on a task minus that after learning it, mean over old tasks; higher is better",
    "seconds": "training and evaluation, all tasks",
}
MOST_COMMANDS = 3
"""Commands shown at the top of the page."""
CERTIFIED = {
    "certified %": "as printed",
    "certified, whitened %": "in whitened coordinates",
    "certified by range %": "by the range of distances",
    "certified by range, shrunk %": "by that range with shrunk covariances",
}
"""Columns that are omitted if they are 0 in every row, and the forms of Theorem 2 that they name."""


def write_report(
    paths: Sequence[Path], out: Path, *, figures: Path | None = None, rows: Sequence[str] | None = None,
    against: Sequence[Path] = (),
) -> list[Run]:  # fmt: skip
    """Write the report of the runs in `paths` to one file, and each figure to `figures`; returns the runs.

    `rows` keeps only some of the methods, in that order. The runs in `against` are added to tables and common
    figures."""
    runs = load_runs(paths)
    runs = runs if rows is None else chosen_rows(runs, rows)
    runs += load_references(against, runs) if against else []
    sections = build_sections(runs)
    write_page(
        out, "report.html.j2", title=_title(runs),
        command="gatf report " + " ".join(
            [shlex.quote(str(_seen_from_here(path))) for path in paths]
            + [f"--against {shlex.quote(str(_seen_from_here(path)))}" for path in against]
        ),
        sections=[_fill(section, number, out) for number, section in enumerate(sections)],
        versions=sorted({tuple(sorted(run.summary.versions.items())) for run in runs}),
        machines=machines(runs), made=made_by(runs), files=files_beside(paths, runs, out),
        bibtex=bibtex(runs),
        configs=[
            (row, yaml.safe_dump(group[0].config, sort_keys=False, allow_unicode=True))  # others differ in the seed
            for row, group in by_row(_own(runs)).items()
        ],
        several=len(sections) > 1,
    )  # fmt: skip
    if figures is not None:
        for spec in (spec for section in sections for spec in section.figures):
            save_figure(spec.draw(), figures, spec.name)  # as PDF and PNG
    return runs


def _own(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if not run.reference]


def _seen_from_here(path: Path) -> Path:
    """The path relative to the current directory; only the name if it is elsewhere, to keep private paths out."""
    if not path.is_absolute():
        return path
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(path.name)


def write_page(out: Path, template: str, **values: Any) -> None:
    """Render a template of this package; everything is escaped unless marked safe."""
    environment = Environment(
        loader=PackageLoader("gatf.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    themes = {"light": css_variables(dark=False), "dark": css_variables(dark=True)}
    page = environment.get_template(template).render(version=__version__, **themes, **values)
    page = re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", page)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page)


def draw_groups(specs: Sequence[FigureSpec], name: str) -> dict[str, list[tuple[FigureSpec, str]]]:
    """Figures as SVG, by group; `name` and a number prefix their ids."""
    groups: dict[str, list[tuple[FigureSpec, str]]] = {}
    for number, spec in enumerate(specs):
        svg = inline_svg(spec.draw(), name=f"{name}{number}", alt=spec.alt)
        groups.setdefault(spec.group, []).append((spec, svg))
    return groups


def _title(runs: Sequence[Run]) -> str:
    settings = list(dict.fromkeys(run.setting for run in runs))
    rows = list(by_row(runs))
    what = " and ".join(settings) if len(settings) <= 2 else f"{len(settings)} settings"
    return f"{rows[0]} on {what}" if len(rows) == 1 else f"{len(rows)} methods on {what}"


def _fill(section: Section, number: int, out: Path) -> dict[str, Any]:
    runs = section.runs
    methods, seeds = len(by_row(runs)), len({run.summary.seed for run in runs})
    first = runs[0].summary
    return {
        "setting": section.setting,
        "facts": f"{len(first.class_names)} classes in {first.tasks} tasks · "
        f"{methods} method{'s' if methods > 1 else ''} · {seeds} seed{'s' if seeds > 1 else ''}",
        "cards": cards(runs),
        "results": results_table(runs) if len(runs) > 1 else tasks_table(runs[0]),
        "published": published_table(runs),
        "explained": explained_table(runs),
        "diagnosis": diagnostics_table(runs),
        "runs": runs_table(_own(runs), out) if len(runs) > 1 else None,
        "classes": [
            classes_table(row, group)
            for row, group in by_row(_own(runs)).items()
            if group[0].summary.accuracy_by_class[-1]
        ],
        "groups": draw_groups(section.figures, f"f{number}x"),
        "intros": GROUPS,
        "why": WHY,
        "swatches": {row: f"var(--{NAMES[style.color]})" for row, style in line_styles(by_row(runs)).items()},
    }


@dataclass(frozen=True)
class Cell:
    """A table cell: its text and its sort key."""

    text: str
    key: float | str
    href: str = ""
    """Link target relative to the report; empty if it is no link."""


@dataclass(frozen=True)
class Table:
    caption: str
    headings: Sequence[tuple[str, str]]
    """Name and explanation."""
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    """Lines below it."""


def number_cell(mean: float | None, std: float | None = None) -> Cell:
    """Missing numbers sort below all others."""
    return Cell(spread(mean, std), -1e9 if mean is None else mean)


def cards(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Headline numbers: value, name and explanation; of the best method if several are compared."""
    table = aggregate(run.result for run in runs)
    best = best_of(table)
    of = "" if len(table) == 1 else f" of {best['row']}"
    last, mean = (spread(best[column], best[f"{column}_std"]) + " %" for column in ("a_last", "a_inc"))
    shown = [
        (last, f"A_last{of}{of and ', the highest'}", EXPLAINED["A_last %"]),
        (mean, f"A_inc{of}", EXPLAINED["A_inc %"]),
    ]
    if best["forgetting"] is not None:
        forgotten = spread(best["forgetting"], best["forgetting_std"])
        new = spread(best["accuracy_new"], best["accuracy_new_std"])
        about = f"{EXPLAINED['forgetting']}; accuracy after learning a task: {new} %"
        shown.append((forgotten, f"forgetting{of}", about))
    bytes_kept = best["bytes_per_class"]
    kept = f"{bytes_kept / 1024:.1f} kB" if bytes_kept >= 1024 else f"{bytes_kept} B"
    shown.append((kept, "stored per class", "in addition to the network, instead of images"))
    return shown


def results_table(runs: Sequence[Run]) -> Table:
    """One row per method, mean ± standard deviation over seeds; sorted by A_last if it has rows to compare with."""
    table = aggregate(run.result for run in runs)
    if any(run.reference for run in runs):
        table.sort(key=lambda row: -row["a_last"])
    columns, also = shown_columns(table), shown_columns(table, ALSO)
    headings = [("method", ""), *_explained_headings(columns, runs)]
    headings += [("bytes per class", "stored between tasks"), ("seeds", ""), *_explained_headings(also, runs)]
    rows = []
    for row in table:
        cells = [Cell(row["row"], row["row"])]
        cells += [number_cell(row[column], row[f"{column}_std"]) for column in columns]
        cells += [Cell(f"{row['bytes_per_class']:,}", row["bytes_per_class"]), Cell(str(row["seeds"]), row["seeds"])]
        cells += [number_cell(row[column], row[f"{column}_std"]) for column in also]
        rows.append(cells)
    several = any(row["seeds"] > 1 for row in table)
    return Table("Results, mean ± standard deviation over seeds" if several else "Results", headings, rows)


def _explained_headings(columns: Mapping[str, str], runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Headings with explanations; seconds with the number of threads if all runs had the same."""
    return [
        (f"{name}{on_threads(runs)}" if column == "total_seconds" else name, EXPLAINED[name])
        for column, name in columns.items()
    ]


def tasks_table(run: Run) -> Table:
    """One row per task, of one run."""
    summary = run.summary
    matrix = summary.accuracy_matrix
    headings = [
        ("task", ""), ("seen classes %", "accuracy over all seen classes after this task"),
        ("after learning %", "accuracy on this task's images after learning it"),
        ("at the end %", "accuracy on this task's images after the last task"),
        ("old to new %", "old images predicted as a class of this task"), (f"seconds{on_threads([run])}", ""),
        ("peak MB", "memory"),
    ]  # fmt: skip
    rows = []
    for task, row in enumerate(matrix):
        values = (
            summary.accuracy_seen[task], row[task], matrix[-1][task], summary.old_to_new[task],
            summary.seconds[task], summary.peak_memory_mb[task],
        )  # fmt: skip
        rows.append([Cell(str(task + 1), task), *(number_cell(value) for value in values)])
    notes = [f"Area under the accuracy curve: {summary.area_under_curve:.1f} %."]
    if summary.backward_transfer is not None:
        change = round(summary.backward_transfer, 1) + 0.0  # no "-0.0"
        notes.append(f"Backward transfer, the mean change of old tasks since they were learnt: {change:+.1f} points.")
    return Table("Task by task", headings, rows, notes)


def runs_table(runs: Sequence[Run], out: Path) -> Table:
    """One row per run, with a link to its folder if that is below the report's."""
    table = [aggregate([run.result])[0] for run in runs]
    columns = shown_columns(table) | shown_columns(table, ALSO)
    headings = [("method", ""), ("seed", "its folder"), *_explained_headings(columns, runs)]
    rows = []
    for run, row in zip(runs, table, strict=True):
        cells = [Cell(run.row, run.row), Cell(str(run.summary.seed), run.summary.seed, _beside(run.folder, out))]
        rows.append(cells + [number_cell(row[column]) for column in columns])
    return Table("Every run", headings, rows)


def classes_table(row: str, runs: Sequence[Run]) -> Table:
    """One row per class, mean over seeds; a heat map cannot name many classes."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for run in runs:
        summary = run.summary
        before = 0
        for task, accuracies in enumerate(summary.accuracy_by_class):
            for number in range(before, len(accuracies)):
                ends = accuracies[number], summary.accuracy_by_class[-1][number]
                found.setdefault(summary.class_names[number], []).append((task, *ends))
            before = len(accuracies)
    rows = []
    for name, seen in found.items():
        tasks, new, end = zip(*seen, strict=True)
        learnt = str(tasks[0] + 1) if len(set(tasks)) == 1 else MISSING  # seeds may have orders of their own
        rows.append([Cell(name, name), Cell(learnt, tasks[0]), number_cell(fmean(new)), number_cell(fmean(end))])
    headings = [("class", ""), ("task", ""), ("after learning %", "its task"), ("at the end %", "")]
    return Table(f"Every class of {row}", headings, rows)


def _beside(path: Path, out: Path) -> str:
    """A link from the report to a file or folder below its own folder; empty if it is elsewhere."""
    target, here = path.resolve(), out.parent.resolve()
    if target == here or not target.is_relative_to(here) or not target.exists():
        return ""
    return quote(target.relative_to(here).as_posix()) + ("/" if target.is_dir() else "")


def files_beside(paths: Sequence[Path], runs: Sequence[Run], out: Path) -> list[tuple[str, str]]:
    """Names and links of the tables and logs beside the report; of a run only if it is the only one."""
    places = [(name, path / name) for path in paths for name in ("results.csv", "results.md", "results.tex")]
    if len(runs) == 1:
        folder, tables = runs[0].folder, RunFolder(runs[0].folder).diagnostics
        places += [(name, folder / name) for name in (SUMMARY, CONFUSION, EVENTS, CONFIG, f"{EXPLAINED_FILE}.csv")]
        places += [(f"{tables.name}/{table.name}", table) for table in sorted(tables.glob("*.csv"))]
    return [(name, link) for name, place in places if (link := _beside(place, out))]


def made_by(runs: Sequence[Run]) -> list[str]:
    """Provenance for the top of the page: machines and days, version and commit, commands."""
    gatf = {
        f"gatf {run.summary.versions.get('gatf', '')}"
        + (f", commit {commit}" if (commit := run.summary.machine.get("commit")) else "")
        for run in runs
    }
    commands = list(dict.fromkeys(run.summary.machine["command"] for run in runs if "command" in run.summary.machine))
    hidden = len(commands) - MOST_COMMANDS
    more = [f"and {hidden} more command{'s' if hidden > 1 else ''}"] if hidden > 0 else []
    return [*machines(runs), "; ".join(sorted(gatf)), *(f"$ {text}" for text in commands[:MOST_COMMANDS]), *more]


def bibtex(runs: Sequence[Run]) -> str:
    """BibTeX entries of the methods in the report and of this software."""
    names = [name for name in dict.fromkeys(run.summary.method for run in runs) if name in METHODS]
    entries = {METHODS[name].card.title: METHODS[name].card.bibtex(name) for name in names}  # one entry per paper
    versions = ", ".join(sorted({run.summary.versions.get("gatf", "") for run in runs}))
    software = f"@misc{{gatf-cil,\n  title = {{gatf-cil}},\n  note = {{Version {versions}}}\n}}"
    return "\n\n".join([*filter(None, entries.values()), software])


def machines(runs: Sequence[Run]) -> list[str]:
    """One line per kind of machine, with the first and the last day of its runs."""
    found: dict[str, list[str]] = {}
    for run in runs:
        machine = run.summary.machine
        parts = [machine[name] for name in ("processor", "device") if name in machine]
        if "threads" in machine:
            parts.append(f"{machine['threads']} thread{'s' if machine['threads'] != '1' else ''}")
        if parts:
            found.setdefault(", ".join(parts), []).append(machine.get("date", "")[:10])
    lines = []
    for where, dates in found.items():
        days = " to ".join(sorted({min(dates), max(dates)}))
        lines.append(f"{len(dates)} run{'s' if len(dates) > 1 else ''} on {where}; {days}")
    return lines


def published_table(runs: Sequence[Run]) -> Table | None:
    """Our numbers and published ones; None if none were published for these rows in this setting."""
    rows = []
    for row in aggregate(run.result for run in runs):
        for cell in published(row["setting"], row["row"]):
            cells = [Cell(row["row"], row["row"])]
            for column in ("a_last", "a_inc"):
                gap, own = difference(row, cell, column), own_column(cell, column)
                mark = f" {OUTSIDE}" if is_outside(row, cell, column) else ""
                cells.append(number_cell(row[own], row[f"{own}_std"]))
                cells.append(number_cell(getattr(cell, column), getattr(cell, f"{column}_std")))
                cells.append(Cell(MISSING if gap is None else f"{gap:+.1f}{mark}", -1e9 if gap is None else gap))
            rows.append([*cells, Cell(weighting(cell), weighting(cell)), Cell(cell.source, cell.source)])
    if not rows:
        return None
    headings = [("method", "")]
    for name in ("A_last", "A_inc"):
        headings += [(f"{name} ours", ""), ("published", ""), ("Δ", "ours minus published")]
    sources = load_published().sources
    notes = [f"{key}: {sources[key].text}" for key in dict.fromkeys(str(row[-1].key) for row in rows)]
    if any(OUTSIDE in cell.text for row in rows for cell in row):
        notes.insert(
            0, f"{OUTSIDE}: outside two standard deviations (ours over seeds combined with the published one, if any)"
        )
    headings += [("averaged over", AVERAGED), ("source", "")]
    return Table("Comparison with published numbers", headings, rows, notes)


def explained_table(runs: Sequence[Run]) -> Table | None:
    """Accuracy decomposition after the last task, one row per method, mean over the runs with results of `gatf explain
    run`; None if there are none."""
    columns = {
        "own %": ("accuracy of the method itself", "own"),
        "re-estimated %": ("its readout with re-estimated statistics of old classes (oracle)", "reestimated"),
        "linear probe %": ("a linear classifier on the features of all training images", "probe"),
        "joint %": ("a network trained on all images at once", "joint"),
        "transport": ("accuracy gap because old statistics are transported, not re-estimated", "transport"),
        "readout": ("accuracy gap between the readout and a linear probe on these features", "readout"),
        "representation": ("accuracy gap because the network learnt task by task", "representation"),
    }
    rows, notes, ends = [], [], at_the_end_explained(runs)
    for row, group in by_row(run for run in runs if run.explained).items():
        rows.append([Cell(row, row), *(number_cell(ends[row][column]) for _, column in columns.values())])
        if len(group) == 1 and not group[0].reference:
            last = Explained(**{field.name: group[0].explained[-1][field.name] for field in fields(Explained)})
            notes += [f"{row}: {sentence}" for sentence in last.sentences()]
    if not rows:
        return None
    return Table(
        "Accuracy decomposition", [("method", ""), *((name, why) for name, (why, _) in columns.items())], rows, notes
    )


def diagnostics_table(runs: Sequence[Run]) -> Table | None:
    """Errors of the stored statistics at the end, one row per method; None if nothing was measured."""
    columns = {
        "drift %": (
            "errors", "drift", 100, "distance between stored and true means of old classes, in standard deviations of "
            "the class",
        ),
        "covariance error": ("errors", "cov_relative", 1, "Frobenius norm of the difference, relative to the true one"),
        "symmetric KL": ("errors", "symmetric_kl", 1, "of stored and true Gaussians"),
        "certified %": (
            "certified", "certified", 100, "predictions certified against these errors by Theorem 2 as printed",
        ),
        "certified, whitened %": ("certified", "whitened", 100, "by Theorem 2 in coordinates that whiten each class"),
        "certified by range %": ("certified", "range", 100, "by the range of each distance there"),
        "certified by range, shrunk %": (
            "certified", "range_shrunk", 100, "the same, with covariances shrunk by 1",
        ),
    }  # fmt: skip
    found: dict[str, dict[str, float]] = {}
    for name, (table, column, factor, _) in columns.items():
        measured = [run for run in with_table(runs, table) if column in run.diagnostics[table][0]]
        for row, value in at_the_end(measured, table, column).items():
            found.setdefault(row, {})[name] = factor * value
    if not found:
        return None
    nothing = [name for name in CERTIFIED if {values[name] for values in found.values() if name in values} == {0.0}]
    columns = {name: column for name, column in columns.items() if name not in nothing}
    headings = [("method", ""), *((name, why) for name, (*_, why) in columns.items())]
    rows = []
    for row, values in found.items():
        numbers = [values.get(name) for name in columns]
        rows.append([Cell(row, row), *(number_cell(None) if v is None else Cell(plain(v), v) for v in numbers)])
    forms = ", ".join(CERTIFIED[name] for name in nothing)
    notes = [f"Theorem 2 certifies no prediction: {forms}."] if nothing else []
    return Table("Stored and true statistics of old classes after the last task", headings, rows, notes)
