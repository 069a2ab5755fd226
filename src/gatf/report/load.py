"""Finished runs, read from their folders for a report."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gatf.bench.suite import INDEX
from gatf.bench.tables import COLUMNS, UPPER_BOUND, Result, measure
from gatf.errors import UserError, extra, near_misses
from gatf.io.parsing import parse_json, parse_yaml
from gatf.io.run_folder import CONFIG, SUMMARY, RunFolder, Summary
from gatf.io.text import csv_cell, harmless, rejoined

ABOUT = "about.json"
"""Names of a run in the short form of `tools/collect.py`."""
Rows = list[dict[str, Any]]
NEEDED: dict[str, tuple[str, ...]] = {
    "accuracy": ("after_task", "past_task", "accuracy"),
    "class_accuracy": ("after_task", "class", "past_task", "accuracy"),
    "confusion": ("after_task", "past_task", "to_new"),
    "drift": ("task", "epoch", "past_task", "drift"),
    "errors": ("after_task", "class", "past_task"),
    "certified": ("after_task", "certified"),
    "margins": ("after_task", "form", "low", "high", "density"),
    "plane": ("after_task", "class", "kind", "x", "y"),
    "spectra": ("after_task", "of", "past_task", "rank", "eigenvalue"),
    "tail": ("after_task", "map", "k", "tail"),
    "explain": ("after_task", "own", "probe"),
}
"""Required columns of each table; other columns are optional."""
MAYBE = {"explain": ("stored", "reestimated", "joint", "transport", "readout", "representation")}
"""Required columns whose cells may be empty."""
WORDS = ("form", "kind", "of", "map")
"""Columns of text; all others are numbers."""
FORMER = {"anew": "reestimated", "answered": "predicted"}
"""Columns by their names in older files."""
COUNTED = ("after_task", "past_task", "task", "epoch", "class", "rank")
"""Columns of whole numbers."""


@dataclass(frozen=True)
class Run:
    """One finished run."""

    folder: Path
    setting: str
    """Data and split: only runs of one setting are compared."""
    row: str
    """Its name in tables and legends: the method, or a row of an ablation."""
    summary: Summary
    config: dict[str, Any]
    diagnostics: dict[str, Rows] = field(default_factory=dict)
    """Tables by name."""
    explained: Rows = field(default_factory=list)
    """The results of `gatf explain run`, one row per explained task."""
    confusion: list[tuple[int, int, int]] = field(default_factory=list)
    """True class and prediction, as indices into the summary, and number of images at the end; empty for runs of
    earlier versions."""
    reference: bool = False
    """Only compared with: it has a place in tables and common figures, and no figures of its own."""

    @property
    def result(self) -> Result:
        return Result(self.setting, self.row, self.summary)

    @property
    def old_to_new(self) -> list[float]:
        """The summary's values, after each task but the first."""
        return [share for share in self.summary.old_to_new if share is not None]


def load_runs(paths: Iterable[Path]) -> list[Run]:
    """The finished runs in run folders and bench folders, each once, in the order given."""
    found: dict[Path, Run] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"there is no folder {path}: name the folder of a run or of a bench")
        runs = list(_runs_in(path))
        if not runs:
            unfinished = any(path.glob(f"**/{CONFIG}"))
            why = "its runs are not finished" if unfinished else f"no {SUMMARY} is in it or below it"
            raise UserError(f"{path} has nothing to report: {why}")
        for run in runs:
            found.setdefault(run.folder.resolve(), run)
    return list(found.values())


def load_references(paths: Iterable[Path], own: Sequence[Run]) -> list[Run]:
    """The runs that `own` ones are compared with: those of the same settings, without rows that `own` has."""
    settings, rows = {run.setting for run in own}, {run.row for run in own}
    found = [run for run in load_runs(paths) if run.setting in settings]
    if not found:
        raise UserError(
            f"no run in {', '.join(map(str, paths))} has the setting {' or '.join(sorted(settings))}: compare with a "
            "folder of the same bench"
        )
    return [replace(run, reference=True) for run in found if run.row not in rows]


def results(*folders: str | Path) -> Any:
    """The finished runs in run folders and bench folders as a pandas `DataFrame`: one row per run, one column
    per metric.

    >>> short = {"scenario.stop_after": 1, "optimisation.first.epochs": 1}
    >>> config = gatf.load_config("digits", method="ncm", overrides=short)
    >>> summary = gatf.run(config, Path("runs/ncm"))
    >>> frame = gatf.results("runs")
    >>> list(frame.groupby("row")["a_last"].mean().index)
    ['ncm']
    """
    pandas = extra("pandas")
    runs = load_runs(Path(folder) for folder in folders)
    upper_bounds = {(run.setting, run.summary.seed): run.summary for run in runs if run.row == UPPER_BOUND}
    return pandas.DataFrame(
        {"setting": run.setting, "row": run.row, "method": run.summary.method, "seed": run.summary.seed}
        | {name: measure(run.summary, name, upper_bounds.get((run.setting, run.summary.seed))) for name in COLUMNS}
        | {"bytes_per_class": run.summary.bytes_per_class, "folder": str(run.folder)}
        for run in runs
    )


def _runs_in(path: Path) -> Iterator[Run]:
    if RunFolder(path).finished:
        yield read_run(path)
        return
    if (path / INDEX).is_file():
        for folder, setting, row in _read_index(path / INDEX):
            if RunFolder(path / folder).finished:
                yield read_run(path / folder, setting=setting, row=row)
        return
    for summary in sorted(path.glob(f"*/{SUMMARY}")):
        yield read_run(summary.parent)


def read_run(folder: Path, *, setting: str | None = None, row: str | None = None) -> Run:
    """One run's results, config and diagnostics; names are made safe to print. A run in the short form of
    `tools/collect.py` has its names in about.json and its decomposition in explain.json."""
    files = RunFolder(folder)
    summary, config = files.read_summary(), files.config
    problem = "does not describe a run; remove it, or get it again"
    about = _read_mapping(folder / ABOUT, problem) if (folder / ABOUT).is_file() else {}
    setting, row = setting or about.get("setting"), row or about.get("row")
    return Run(
        folder=folder,
        setting=harmless(str(setting or f"{summary.dataset}, {summary.tasks} tasks")),
        row=harmless(str(row or summary.method)),
        summary=replace(summary, class_names=[harmless(name) for name in summary.class_names]),
        config=_read_mapping(config, "is not the config of a run", parse_yaml) if config.is_file() else {},
        diagnostics={path.stem: read_table(path) for path in files.diagnostics.glob("*.csv") if path.stem in NEEDED},
        explained=_explained(files),
        confusion=read_confusion(files.confusion, summary.class_names) if files.confusion.is_file() else [],
    )


def _explained(files: RunFolder) -> Rows:
    if files.explained.is_file():
        return read_table(files.explained)
    if not files.explained_in_words.is_file():
        return []
    problem = "is no decomposition of a run; remove it, or get it again"
    rows = _read_mapping(files.explained_in_words, problem).get("rows")
    columns = {*NEEDED["explain"], *MAYBE["explain"]}
    found = [_renamed(row) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if not isinstance(rows, list) or len(found) < len(rows) or not all(row.keys() >= columns for row in found):
        raise UserError(f"{files.explained_in_words} {problem}")
    return found


def _renamed(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the names of today."""
    row = {FORMER.get(name, name): value for name, value in row.items()}
    return row | {name: "transported" for name in WORDS if row.get(name) == "carried"}


def _read_mapping(path: Path, problem: str, parse: Callable[[str], Any] = parse_json) -> dict[str, Any]:
    try:
        loaded = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path} {problem}")
    return loaded


def _read_index(path: Path) -> list[tuple[str, str, str]]:
    """Folder, setting and row of each run of a bench."""
    problem = "is not the index of a bench: it lacks the folder, setting and row of runs"
    try:
        runs = _read_mapping(path, problem)["runs"]
        return [(str(entry["folder"]), str(entry["setting"]), str(entry["row"])) for entry in runs]
    except (KeyError, TypeError):
        raise UserError(f"{path} {problem}") from None


def read_table(path: Path) -> Rows:
    """A table of diagnostics or a decomposition; an empty cell is None. A `UserError` if required columns are missing
    or a cell is invalid."""
    rows = []
    for cells in _read_rows(path):
        for name in (*NEEDED[path.stem], *MAYBE.get(path.stem, ())):
            if name not in cells or (name in NEEDED[path.stem] and not cells[name]):
                raise UserError(f"{path} is not a table of diagnostics: it lacks '{name}'; remove it, or get it again")
        try:
            rows.append({name: _value(name, text) for name, text in cells.items()})
        except ValueError as error:
            raise UserError(f"{path} is not a table of diagnostics: {error}") from None
    return rows


def read_confusion(path: Path, names: Sequence[str]) -> list[tuple[int, int, int]]:
    """Triples of true class, prediction and number of images. Names stay text: '007' is no number."""
    place = {csv_cell(name): number for number, name in enumerate(names)}
    found = []
    for row in _read_rows(path):
        if set(row) != {"class", "predicted", "images"} or not re.fullmatch("[0-9]{1,15}", row["images"]):
            raise UserError(f"{path} is not a table of predictions; remove it, or get it again")
        for name in (row["class"], row["predicted"]):
            if name not in place:
                raise UserError(
                    f"{path} is not a table of this run's predictions: no class is called {name[:80]!r}; remove it, or "
                    "get it again"
                )
        found.append((place[row["class"]], place[row["predicted"]], int(row["images"])))
    return found


def _read_rows(path: Path) -> list[dict[str, str]]:
    """The cells by column; a row with too few or too many cells is a `UserError`."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a table: {error}") from None
    if any(None in row or None in row.values() for row in rows):
        raise UserError(f"{path} is not a table: it has a row with too few or too many cells")
    return [_renamed(row) for row in rows]


def _value(column: str, text: str) -> Any:
    if text == "" or column in WORDS:
        return text or None
    try:
        return int(text) if column in COUNTED else float(text)
    except ValueError:
        raise ValueError(f"its '{column}' has {text[:80]!r}") from None


def last_task(rows: Rows) -> int:
    """The last task of a diagnostics table."""
    return int(max(row["after_task"] for row in rows))


def chosen_rows(runs: Iterable[Run], rows: Iterable[str]) -> list[Run]:
    """The runs of some rows, in the order of the rows; names with commas may be split."""
    groups = by_row(runs)
    rows = rejoined(list(rows), groups)
    for row in rows:
        if row not in groups:
            raise UserError(f"there is no run of '{row}'{near_misses(row, groups)}")
    return [run for row in rows for run in groups[row]]


def by_row(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs of the same row, in the order in which rows first appear."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.row, []).append(run)
    return groups
