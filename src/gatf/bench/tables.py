"""Results of many runs as one table: mean ± sample standard deviation over seeds, as CSV, Markdown and LaTeX."""

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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
    """All columns, numbers in full."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def headings(table: Sequence[dict[str, Any]]) -> list[str]:
    """Names of the columns that `cells` fills."""
    several = len({row["setting"] for row in table}) > 1
    shown = ["setting"] if several else []
    shown += ["method", "seeds", *HEADINGS.values(), "bytes a class"]
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
