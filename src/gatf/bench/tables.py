"""Results of many runs as one table: mean ± sample standard deviation over seeds, as CSV, Markdown, LaTeX
and on the terminal."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gatf.bench.published import OUTSIDE, difference, is_outside, load_published, own_column, published, weighting
from gatf.io.run_folder import Summary
from gatf.io.text import csv_text, harmless

COLUMNS = (
    "a_last", "a_inc", "a_last_task_weighted", "a_inc_task_weighted", "area_under_curve", "accuracy_new", "forgetting",
    "intransigence", "backward_transfer", "total_seconds",
)  # fmt: skip
HEADINGS = {
    "a_last": "A_last %", "a_inc": "A_inc %", "accuracy_new": "after learning %", "forgetting": "forgetting",
    "intransigence": "intransigence", "total_seconds": "seconds",
}  # fmt: skip
"""Columns of the tables; intransigence is shown only if `joint` is among the rows."""
ALSO = {"area_under_curve": "area %", "backward_transfer": "backward transfer"}
"""Further columns of reports."""
MISSING = "–"
UPPER_BOUND = "joint"
"""The row with training on all images at once."""
AVERAGED = (
    "Averaged over tasks: equal weights for tasks; over images: equal weights for test images. Ours use the source's "
    "weighting."
)
MOST_LEFT_OUT = 5
"""Columns that a narrow terminal may omit, from the right."""


@dataclass(frozen=True)
class Result:
    """One finished run and its place in the table."""

    setting: str
    row: str
    summary: Summary


def aggregate(results: Iterable[Result]) -> list[dict[str, Any]]:
    """One row per (setting, row) in the order of the runs, with mean and sample standard deviation over seeds."""
    groups: dict[tuple[str, str], list[Summary]] = {}
    for result in results:
        groups.setdefault((result.setting, result.row), []).append(result.summary)
    table = []
    for (setting, name), runs in groups.items():
        row: dict[str, Any] = {"setting": setting, "row": name, "method": runs[0].method, "seeds": len(runs)}
        upper_bounds = {run.seed: run for run in groups.get((setting, UPPER_BOUND), ())}
        for column in COLUMNS:
            values = [value for run in runs if (value := measure(run, column, upper_bounds.get(run.seed))) is not None]
            row[column] = statistics.fmean(values) if values else None
            row[f"{column}_std"] = statistics.stdev(values) if len(values) > 1 else None
        row["bytes_per_class"] = runs[0].bytes_per_class
        table.append(row)
    return table


def measure(run: Summary, column: str, upper_bound: Summary | None) -> float | None:
    """One of `COLUMNS`. Intransigence (Chaudhry et al., 2018) is the gap between the accuracies of `joint` and of the
    method after learning a task, mean over tasks; it needs a run of `joint` with the same seed."""
    if column != "intransigence":
        value: float | None = getattr(run, column)
        return value
    if upper_bound is None or upper_bound.tasks != run.tasks:
        return None
    return upper_bound.accuracy_new - run.accuracy_new


def spread(mean: float | None, std: float | None, *, plus_minus: str = " ± ") -> str:
    """`81.2 ± 0.4`, or `81.2` with one seed."""
    if mean is None:
        return MISSING
    return f"{mean:.1f}" + ("" if std is None else f"{plus_minus}{std:.1f}")


def to_csv(table: Sequence[dict[str, Any]]) -> str:
    """All columns with unrounded numbers, and published numbers."""
    table = [{**row, **_published_columns(row)} for row in table]
    names = list(table[0]) if table else []
    return csv_text([names, *([row[name] for name in names] for row in table)])


def shown_columns(table: Sequence[dict[str, Any]], known: Mapping[str, str] = HEADINGS) -> dict[str, str]:
    """The columns of `known` that any row has, with their headings."""
    return {column: name for column, name in known.items() if any(row[column] is not None for row in table)}


def headings(table: Sequence[dict[str, Any]]) -> list[str]:
    """Names of the columns that `cells` fills."""
    return [*_names(table), "seeds", *shown_columns(table).values(), "bytes per class"]


def _names(table: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The columns that name a row: the setting too if there are several."""
    return {"setting": "setting", "method": "row"} if len({row["setting"] for row in table}) > 1 else {"method": "row"}


def cells(table: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The rows as printable text."""
    names, columns = _names(table).values(), shown_columns(table)
    return [
        [
            *(harmless(row[name]) for name in names), str(row["seeds"]),
            *(spread(row[column], row[f"{column}_std"]) for column in columns), f"{row['bytes_per_class']:,}",
        ]
        for row in table
    ]  # fmt: skip


def to_markdown(table: Sequence[dict[str, Any]]) -> str:
    """A Markdown table with right-aligned numbers."""
    names = headings(table)
    left = 2 if names[0] == "setting" else 1
    lines = ["| " + " | ".join(names) + " |", "|" + "|".join(["---"] * left + ["---:"] * (len(names) - left)) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells(table)]
    return "\n".join(lines) + "\n"


def _published_columns(row: dict[str, Any]) -> dict[str, Any]:
    cells = published(row["setting"], row["row"])
    columns: dict[str, Any] = {}
    for column in ("a_last", "a_inc"):
        columns[f"published_{column}"] = getattr(cells[0], column) if cells else None
        columns[f"difference_{column}"] = difference(row, cells[0], column) if cells else None
    columns["published_averaged_over"] = weighting(cells[0]) if cells else None
    return columns | {"source": cells[0].source if cells else None}


def comparison(table: Sequence[dict[str, Any]]) -> str:
    """Our and published numbers as Markdown; empty if none of these rows was published."""
    lines, used = [], []
    for row in table:
        for cell in published(row["setting"], row["row"]):
            shown = [row["setting"], row["row"]]
            for column in ("a_last", "a_inc"):
                mark = f" {OUTSIDE}" if is_outside(row, cell, column) else ""
                theirs = spread(getattr(cell, column), getattr(cell, f"{column}_std"))
                gap, own = difference(row, cell, column), own_column(cell, column)
                shown += [spread(row[own], row[f"{own}_std"]), theirs]
                shown.append(MISSING if gap is None else f"{gap:+.1f}{mark}")
            used.append(cell.source)
            lines.append("| " + " | ".join([*shown, weighting(cell), cell.source]) + " |")
    if not lines:
        return ""
    names = [f"{name} {part}" for name in ("A_last", "A_inc") for part in ("ours", "published", "Δ")]
    names = ["setting", "method", *names, "averaged over", "source"]
    head = ["| " + " | ".join(names) + " |", "|---|---|" + "---:|" * 6 + "---|---|"]
    sources = load_published().sources
    notes = [f"- {key}: {sources[key].text}" for key in dict.fromkeys(used)]
    legend = f"{OUTSIDE} differs by more than two standard deviations (ours over seeds and the published one combined)."
    return "\n".join([*head, *lines, "", legend, AVERAGED, "", *notes]) + "\n"


def to_latex(table: Sequence[dict[str, Any]]) -> str:
    """A booktabs table: one row per method, A_last and A_inc per setting; in brackets published number and difference.

    Beside published numbers, ours use the same weighting, of tasks or of images."""
    settings = list(dict.fromkeys(row["setting"] for row in table))
    rows = list(dict.fromkeys(row["row"] for row in table))
    cells = {(row["setting"], row["row"]): row for row in table}
    lines = [
        r"% needs \usepackage{booktabs}; in brackets: published, difference; \neq: over two standard deviations",
        "% beside published numbers, ours use their weighting: equal weights for tasks or for images",
        r"\begin{tabular}{l" + "cc" * len(settings) + "}",
        r"\toprule",
        " & ".join(["", *(rf"\multicolumn{{2}}{{c}}{{{_tex(setting)}}}" for setting in settings)]) + r" \\",
        "method" + r" & $A_\mathrm{last}$ & $A_\mathrm{inc}$" * len(settings) + r" \\",
        r"\midrule",
    ]
    for name in rows:
        shown = [_tex(name)]
        for setting in settings:
            row = cells.get((setting, name))
            shown += ["--", "--"] if row is None else [_tex_number(row, column) for column in ("a_last", "a_inc")]
        lines.append(" & ".join(shown) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex_number(row: dict[str, Any], column: str) -> str:
    theirs = published(row["setting"], row["row"])
    own = own_column(theirs[0], column) if theirs else column
    ours = spread(row[own], row[f"{own}_std"], plus_minus=r"{\scriptstyle\,\pm\,").replace(MISSING, "-")
    closing = "}" if row[f"{own}_std"] is not None else ""
    if not theirs:
        return f"${ours}{closing}$"
    gap = difference(row, theirs[0], column)
    mark = r"^{\neq}" if is_outside(row, theirs[0], column) else ""
    beside = "" if gap is None else f", ${gap:+.1f}{mark}$"
    return f"${ours}{closing}$ [{getattr(theirs[0], column):.1f}{beside}]"


TEX = str.maketrans(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {letter: f"\\{letter}" for letter in "&%$#_{}"}
)


def _tex(text: str) -> str:
    return harmless(text).translate(TEX)


def print_table(table: list[dict[str, Any]], console: Console) -> None:
    """Print the results; a narrow terminal omits the last columns instead of truncating numbers."""
    names = headings(table)
    columns = len(names)
    while columns > len(names) - MOST_LEFT_OUT and not fits(_first_columns(table, names[:columns]), console):
        columns -= 1
    console.print(_first_columns(table, names[:columns]))
    if columns < len(names):
        console.print(f"{', '.join(names[columns:])}: in results.md", highlight=False)


def _first_columns(table: list[dict[str, Any]], names: list[str]) -> Table:
    made = Table(header_style="bold")
    for name in names:
        made.add_column(name, justify="left" if name in ("setting", "method") else "right", no_wrap=True)
    for row in cells(table):
        made.add_row(*(Text(text) for text in row[: len(names)]))
    return made


def fits(table: Table, console: Console) -> bool:
    """Whether the table can be printed without cutting or wrapping a cell."""
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum <= console.width
