"""Results of many runs as one table: mean ± sample standard deviation over seeds, as CSV, Markdown and LaTeX."""

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gatf.bench.published import OUTSIDE, difference, is_outside, load_published, published

COLUMNS = ("a_last", "a_inc", "forgetting", "total_seconds")
HEADINGS = {
    "a_last": "A_last %", "a_inc": "A_inc %", "forgetting": "forgetting", "total_seconds": "seconds",
}  # fmt: skip
MISSING = "–"


@dataclass(frozen=True)
class Result:
    """One finished run and where it stands in the table."""

    setting: str
    row: str
    summary: dict[str, Any]


def aggregate(results: Iterable[Result]) -> list[dict[str, Any]]:
    """A row for every (setting, row) in the order of the runs, with mean and sample standard deviation over seeds."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result.setting, result.row), []).append(result.summary)
    table = []
    for (setting, name), runs in groups.items():
        row: dict[str, Any] = {"setting": setting, "row": name, "method": runs[0]["method"], "seeds": len(runs)}
        for column in COLUMNS:
            values = [run[column] for run in runs if run[column] is not None]
            row[column] = statistics.fmean(values) if values else None
            row[f"{column}_std"] = statistics.stdev(values) if len(values) > 1 else None
        row["bytes_per_class"] = runs[0]["bytes_per_class"]
        table.append(row)
    return table


def spread(mean: float | None, std: float | None, *, plus_minus: str = " ± ") -> str:
    """`81.2 ± 0.4`, without the second part where there is one seed."""
    if mean is None:
        return MISSING
    return f"{mean:.1f}" + ("" if std is None else f"{plus_minus}{std:.1f}")


def to_csv(table: Sequence[dict[str, Any]]) -> str:
    """All columns, numbers in full, with what was published beside them."""
    table = [{**row, **_published_columns(row)} for row in table]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def headings(table: Sequence[dict[str, Any]]) -> list[str]:
    """Names of the columns that `cells` fills."""
    several = len({row["setting"] for row in table}) > 1
    shown = ["setting"] if several else []
    shown += ["method", "seeds", *HEADINGS.values(), "bytes per class"]
    return shown


def cells(row: dict[str, Any], *, setting: bool, write: Callable[..., str] = spread) -> list[str]:
    """One row as text."""
    shown = [row["setting"]] if setting else []
    shown += [row["row"], str(row["seeds"])]
    shown += [write(row[column], row[f"{column}_std"]) for column in COLUMNS]
    return [*shown, f"{row['bytes_per_class']:,}"]


def to_markdown(table: Sequence[dict[str, Any]]) -> str:
    """A Markdown table, numbers to the right."""
    names = headings(table)
    setting = names[0] == "setting"
    left = 2 if setting else 1
    lines = ["| " + " | ".join(names) + " |", "|" + "|".join(["---"] * left + ["---:"] * (len(names) - left)) + "|"]
    lines += ["| " + " | ".join(cells(row, setting=setting)) + " |" for row in table]
    return "\n".join(lines) + "\n"


def _published_columns(row: dict[str, Any]) -> dict[str, Any]:
    cells = published(row["setting"], row["row"])
    columns: dict[str, Any] = {}
    for column in ("a_last", "a_inc"):
        columns[f"published_{column}"] = getattr(cells[0], column) if cells else None
        columns[f"difference_{column}"] = difference(row, cells[0], column) if cells else None
    return columns | {"source": cells[0].source if cells else None}


def comparison(table: Sequence[dict[str, Any]]) -> str:
    """Ours beside published, as Markdown; empty where nothing was published of these rows."""
    lines, used = [], []
    for row in table:
        for cell in published(row["setting"], row["row"]):
            shown = [row["setting"], row["row"]]
            for column in ("a_last", "a_inc"):
                mark = f" {OUTSIDE}" if is_outside(row, cell, column) else ""
                theirs = spread(getattr(cell, column), getattr(cell, f"{column}_std"))
                gap = difference(row, cell, column)
                shown += [spread(row[column], row[f"{column}_std"]), theirs]
                shown.append(MISSING if gap is None else f"{gap:+.1f}{mark}")
            used.append(cell.source)
            lines.append("| " + " | ".join([*shown, cell.source]) + " |")
    if not lines:
        return ""
    names = [
        "setting",
        "method",
        *[f"{name} {part}" for name in ("A_last", "A_inc") for part in ("ours", "published", "Δ")],
    ]
    head = ["| " + " | ".join([*names, "source"]) + " |", "|---|---|" + "---:|" * 6 + "---|"]
    sources = load_published().sources
    notes = [f"- {key}: {sources[key]}" for key in dict.fromkeys(used)]
    legend = (
        f"{OUTSIDE} differs by more than two standard deviations (ours over seeds and theirs, where printed, combined)."
    )
    return "\n".join([*head, *lines, "", legend, "", *notes]) + "\n"


def to_latex(table: Sequence[dict[str, Any]]) -> str:
    """A booktabs table: methods down, settings across, A_last and A_inc each; in brackets published and difference."""
    settings = list(dict.fromkeys(row["setting"] for row in table))
    rows = list(dict.fromkeys(row["row"] for row in table))
    cells = {(row["setting"], row["row"]): row for row in table}
    lines = [
        r"% needs \usepackage{booktabs}; in brackets: published, difference; \neq: over two standard deviations",
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
    ours = spread(row[column], row[f"{column}_std"], plus_minus=r"{\scriptstyle\,\pm\,").replace(MISSING, "-")
    closing = "}" if row[f"{column}_std"] is not None else ""
    theirs = published(row["setting"], row["row"])
    if not theirs:
        return f"${ours}{closing}$"
    gap = difference(row, theirs[0], column)
    mark = r"^{\neq}" if is_outside(row, theirs[0], column) else ""
    beside = "" if gap is None else f", ${gap:+.1f}{mark}$"
    return f"${ours}{closing}$ [{getattr(theirs[0], column):.1f}{beside}]"


def _tex(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "&%$#_{}" else letter for letter in text)
