"""Copy the small part of a bench's finished runs to `results/`, where it is committed.

python tools/collect.py BENCHFOLDER [--threads N] [--processor NAME]
python tools/collect.py BENCHFOLDER --table     only the table over all seeds, as for digits and glyphs

results/<bench>/<run>/ gets
  about.json     row, setting, seed, processor, threads, CPU minutes (wall time in old runs), including the minutes of
                 a run whose networks it reused
  config.yaml    every setting: `gatf run --recipe results/<bench>/<run>/config.yaml` repeats the run
  summary.json   the summary without accuracies per class, numbers rounded to four decimals
  curves.csv     task, phase, epoch, loss and learning rate of every epoch
  explain.json   the decomposition of the accuracy gap, if `gatf explain run` computed it
With --table, results/<bench>/table.json gets a row for every row of the bench. Runs and rows that were collected
earlier are replaced, others stay. Then run `python tools/update_docs.py --figures`.
"""

import argparse
import csv
import io
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pages import RESULTS

from gatf.bench.plan import load_plan
from gatf.bench.tables import Result, aggregate
from gatf.io.events import Epoch
from gatf.io.files import write_text
from gatf.io.provenance import processor_name
from gatf.io.run_folder import RunFolder, Summary

DECIMALS = 4
COLUMNS = ("a_last", "a_inc", "accuracy_new", "forgetting", "intransigence", "total_seconds")


def collect(bench: str, folder: Path, out: Path, *, threads: int, processor: str) -> list[str]:
    """Copy the finished runs of a bench; returns their names."""
    done = []
    for run in load_plan(bench).runs:
        place = RunFolder(folder / run.name)
        if not place.finished:
            continue
        summary, target = place.read_summary(), out / bench / run.name
        target.mkdir(parents=True, exist_ok=True)
        about = {
            "bench": bench, "setting": run.setting, "row": run.row, "seed": summary.seed,
            "processor": processor, "threads": threads, "minutes": round(sum(seconds(place)) / 60, 1),
        }  # fmt: skip
        write_text(target / "about.json", json.dumps(about, indent=1, ensure_ascii=False) + "\n")
        write_text(target / "config.yaml", place.config.read_text(encoding="utf-8"))
        write_text(target / "summary.json", json.dumps(small(summary)) + "\n")
        write_text(target / "curves.csv", curves(place))
        if place.explained_in_words.is_file():
            write_text(target / "explain.json", place.explained_in_words.read_text(encoding="utf-8"))
        done.append(run.name)
    return done


def collect_table(bench: str, folder: Path, out: Path) -> list[str]:
    """Mean and deviation over the seeds of every row with finished runs, in CPU seconds; returns the rows."""
    places = [(run, RunFolder(folder / run.name)) for run in load_plan(bench).runs]
    found = aggregate(
        Result(run.setting, run.row, replace(place.read_summary(), total_seconds=round(sum(seconds(place)), 3)))
        for run, place in places
        if place.finished
    )
    path = out / bench / "table.json"
    rows = {row["row"]: row for row in json.loads(path.read_text(encoding="utf-8"))} if path.is_file() else {}
    for row in found:
        numbers = {name: row[name] for column in COLUMNS for name in (column, f"{column}_std")}
        kept = {name: row[name] for name in ("row", "seeds")} | numbers | {"bytes_per_class": row["bytes_per_class"]}
        rows[row["row"]] = rounded(kept)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "[\n" + ",\n".join(json.dumps(row) for row in rows.values()) + "\n]\n")
    return [row["row"] for row in found]


def seconds(place: RunFolder) -> list[float]:
    """CPU seconds of each task, including those of the run whose networks were reused."""
    summary = place.read_summary()
    own = summary.processor_seconds or summary.seconds
    if summary.networks_from is None:
        return own
    theirs, tasks = seconds(RunFolder(place.path.parent / summary.networks_from)), summary.networks_of
    return [mine + theirs[task] * (task in tasks or not tasks) for task, mine in enumerate(own)]


def small(summary: Summary) -> dict[str, Any]:
    """A summary that can still be parsed, without the accuracies per class."""
    return rounded(asdict(summary)) | {"accuracy_by_class": [[] for _ in summary.accuracy_by_class]}


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return round(value, DECIMALS) if isinstance(value, float) else value


def curves(place: RunFolder) -> str:
    """The total loss of every epoch as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["task", "phase", "epoch", "loss", "lr"])
    for event in place.read_events():
        if isinstance(event, Epoch):
            loss = f"{sum(event.losses.values()):.5g}"
            writer.writerow([event.task, event.phase, event.epoch, loss, f"{event.lr:.5g}"])
    return text.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--table", action="store_true", help="store the table only")
    parser.add_argument("--threads", type=int, default=1, help="threads of each run")
    parser.add_argument("--processor", default=f"{os.cpu_count()} × {processor_name()}", help="processor of the runs")
    given = parser.parse_args()
    bench = given.folder.resolve().name.removeprefix("bench-")
    if given.table:
        done = collect_table(bench, given.folder, RESULTS)
    else:
        done = collect(bench, given.folder, RESULTS, threads=given.threads, processor=given.processor)
    print(f"{len(done)} stored in {RESULTS / bench}; now run: python tools/update_docs.py --figures")


if __name__ == "__main__":
    main()
