"""The report: one HTML file that needs nothing else, for the screen and the phone, by day and by night."""

import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from gatf import __version__
from gatf.bench.published import OUTSIDE, difference, is_outside, load_published, published
from gatf.bench.tables import HEADINGS, MISSING, aggregate, spread
from gatf.files import write_text
from gatf.report.diagnostic_sections import WHY, diagnostics_table
from gatf.report.load import Run, by_row, chosen_rows, load_runs
from gatf.report.sections import GROUPS, Section, build_sections
from gatf.report.specs import Cell, FigureSpec, Table, number_cell
from gatf.report.style import NAMES, css_variables, line_styles
from gatf.report.svg import inline_svg, save_figure

EXPLAINED = {
    "A_last %": "accuracy over all classes after the last task",
    "A_inc %": "mean of the accuracy over all classes so far, over tasks",
    "forgetting": "how far the accuracy on a task has fallen from its best, mean over old tasks; lower is better",
    "seconds": "training and evaluation, all tasks",
}


def write_report(
    paths: Sequence[Path], out: Path, *, figures: Path | None = None, rows: Sequence[str] | None = None
) -> int:
    """Write the report of the runs in `paths` to one file, and each figure to `figures`; returns the number of runs.

    `rows` keeps only some of the methods, in that order."""
    runs = load_runs(paths)
    runs = runs if rows is None else chosen_rows(runs, rows)
    sections = build_sections(runs)
    command = "gatf report " + " ".join(shlex.quote(path.name) for path in paths)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, render(sections, command=command))
    if figures is not None:
        for section in sections:
            for spec in section.figures:
                save_figure(spec.draw(), figures, spec.name)
    return len(runs)


def render(sections: Sequence[Section], *, command: str) -> str:
    """The whole page."""
    runs = [run for section in sections for run in section.runs]
    return (
        environment()
        .get_template("template.html.j2")
        .render(
            title=_title(runs),
            command=command,
            version=__version__,
            light=css_variables(dark=False),
            dark=css_variables(dark=True),
            sections=[_fill(section, number) for number, section in enumerate(sections)],
            versions=sorted({tuple(sorted(run.summary["versions"].items())) for run in runs}),
            configs=[(row, _config_text(group)) for row, group in by_row(runs).items()],
            several=len(sections) > 1,
        )
    )


@cache
def environment() -> Environment:
    """Templates of this package, with everything escaped that is not said to be safe."""
    return Environment(
        loader=PackageLoader("gatf.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip


def _title(runs: Sequence[Run]) -> str:
    settings = list(dict.fromkeys(run.setting for run in runs))
    rows = list(by_row(runs))
    what = " and ".join(settings) if len(settings) <= 2 else f"{len(settings)} settings"
    return f"{rows[0]} on {what}" if len(rows) == 1 else f"{len(rows)} methods on {what}"


def _fill(section: Section, number: int) -> dict[str, Any]:
    drawn = [(spec, _draw(spec, number, index)) for index, spec in enumerate(section.figures)]
    groups: dict[str, list[tuple[FigureSpec, str]]] = {}
    for spec, svg in drawn:
        groups.setdefault(spec.group, []).append((spec, svg))
    seeds = len({run.summary["seed"] for run in section.runs})
    first = section.runs[0].summary
    return {
        "setting": section.setting,
        "facts": f"{len(first['class_names'])} classes in {first['tasks']} tasks · "
        f"{len(by_row(section.runs))} method{'s' if len(by_row(section.runs)) > 1 else ''} · "
        f"{seeds} seed{'s' if seeds > 1 else ''}",
        "cards": cards(section.runs),
        "results": results_table(section.runs) if len(section.runs) > 1 else tasks_table(section.runs[0]),
        "published": published_table(section.runs),
        "diagnosis": diagnostics_table(section.runs),
        "runs": runs_table(section.runs) if len(section.runs) > 1 else None,
        "groups": groups,
        "intros": GROUPS,
        "why": WHY,
        "swatches": {row: f"var(--{NAMES[style.color]})" for row, style in line_styles(by_row(section.runs)).items()},
    }


def _draw(spec: FigureSpec, section: int, index: int) -> str:
    return inline_svg(spec.draw(), name=f"f{section}x{index}", alt=spec.alt)


def cards(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Headline numbers: value, name and explanation; of the best method where several are compared."""
    table = aggregate(run.result for run in runs)
    contenders = [row for row in table if row["method"] not in ("joint", "finetune")] or table
    best = max(contenders, key=lambda row: row["a_last"])
    of = "" if len(table) == 1 else f" of {best['row']}"
    shown = [
        (
            spread(best["a_last"], best["a_last_std"]) + " %",
            "A_last" + (of and f"{of}, the best here"),
            EXPLAINED["A_last %"],
        ),
        (
            spread(best["a_inc"], best["a_inc_std"]) + " %",
            "A_inc" + (of and f" of {best['row']}"),
            EXPLAINED["A_inc %"],
        ),
    ]
    if best["forgetting"] is not None:
        forgotten = spread(best["forgetting"], best["forgetting_std"])
        shown.append((forgotten, "forgetting" + of, EXPLAINED["forgetting"]))
    bytes_kept = best["bytes_per_class"]
    kept = f"{bytes_kept / 1024:.1f} kB" if bytes_kept >= 1024 else f"{bytes_kept} B"
    shown.append((kept, "kept for each class", "beside the network, instead of images"))
    return shown


def results_table(runs: Sequence[Run]) -> Table:
    """A row a method, mean ± standard deviation over seeds."""
    headings = [("method", "")] + [(name, EXPLAINED[name]) for name in HEADINGS.values()]
    headings += [("bytes per class", "kept between tasks"), ("seeds", "")]
    rows = []
    for row in aggregate(run.result for run in runs):
        cells = [Cell(row["row"], row["row"])]
        cells += [number_cell(row[column], row[f"{column}_std"]) for column in HEADINGS]
        cells += [Cell(f"{row['bytes_per_class']:,}", row["bytes_per_class"]), Cell(str(row["seeds"]), row["seeds"])]
        rows.append(cells)
    return Table("Results, mean ± standard deviation over seeds", headings, rows)


def published_table(runs: Sequence[Run]) -> Table | None:
    """Ours beside published; None where nothing was published of these rows in this setting."""
    rows = []
    for row in aggregate(run.result for run in runs):
        for cell in published(row["setting"], row["row"]):
            cells = [Cell(row["row"], row["row"])]
            for column in ("a_last", "a_inc"):
                gap = difference(row, cell, column)
                mark = f" {OUTSIDE}" if is_outside(row, cell, column) else ""
                cells.append(number_cell(row[column], row[f"{column}_std"]))
                cells.append(number_cell(getattr(cell, column), getattr(cell, f"{column}_std")))
                cells.append(Cell(MISSING if gap is None else f"{gap:+.1f}{mark}", -1e9 if gap is None else gap))
            rows.append([*cells, Cell(cell.source, cell.source)])
    if not rows:
        return None
    headings = [("method", "")]
    for name in ("A_last", "A_inc"):
        headings += [(f"{name} ours", ""), ("published", ""), ("Δ", "ours minus published")]
    sources = load_published().sources
    notes = [f"{key}: {sources[key]}" for key in dict.fromkeys(str(row[-1].key) for row in rows)]
    if any(OUTSIDE in cell.text for row in rows for cell in row):
        notes.insert(
            0, f"{OUTSIDE}: outside two standard deviations, ours over seeds and theirs, where printed, combined"
        )
    return Table("Beside published numbers", [*headings, ("source", "")], rows, notes)


def tasks_table(run: Run) -> Table:
    """A row a task, of one run."""
    summary = run.summary
    matrix = summary["accuracy_matrix"]
    headings = [
        ("task", ""), ("all so far %", "accuracy over all classes after this task"),
        ("when new %", "accuracy on this task's images just after it"),
        ("at the end %", "accuracy on this task's images after the last one"),
        ("old to new %", "old images taken for a class of this task"), ("seconds", ""), ("peak MB", "memory"),
    ]  # fmt: skip
    rows = []
    for task, row in enumerate(matrix):
        values = (
            summary["accuracy_seen"][task], row[task], matrix[-1][task], summary["old_to_new"][task],
            summary["seconds"][task], summary["peak_memory_mb"][task],
        )  # fmt: skip
        rows.append([Cell(str(task + 1), task), *(number_cell(value) for value in values)])
    return Table("Task by task", headings, rows)


def runs_table(runs: Sequence[Run]) -> Table:
    """A row a run."""
    headings = [("method", ""), ("seed", "")] + [(name, EXPLAINED[name]) for name in HEADINGS.values()]
    rows = []
    for run in runs:
        cells = [Cell(run.row, run.row), Cell(str(run.summary["seed"]), run.summary["seed"])]
        rows.append(cells + [number_cell(run.summary[column]) for column in HEADINGS])
    return Table("Every run", headings, rows)


def _config_text(runs: Sequence[Run]) -> str:
    """The config of a row's first run; its other runs differ in the seed."""
    return str(yaml.safe_dump(runs[0].config, sort_keys=False, allow_unicode=True))
