"""Copy what is small of a bench's finished runs to where it is committed, and draw its picture.

python tools/collect.py BENCHFOLDER [--threads N] [--processor NAME]

results/<bench>/<run>/ gets
  about.json     row, setting, seed, processor, threads, minutes of the processor (of the clock in old runs), with
                 those of a run whose networks it took
  config.yaml    every setting: gatf run --recipe results/<bench>/<run>/config.yaml repeats the run
  summary.json   the run's summary without accuracies per class, numbers to four decimals
  curves.csv     task, phase, epoch, loss and learning rate of every epoch
  explain.json   where the points go, if `gatf explain run` was asked
and docs/img/<bench>.png shows accuracies over tasks. Then run tools/update_docs.py, which writes docs/results.md and
the README's part from these files. Runs that are collected already are replaced, others stay.
"""

import argparse
import csv
import io
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import results
from gatf.bench.plan import load_plan
from gatf.errors import UserError
from gatf.experiment import processor_name
from gatf.io.events import Epoch
from gatf.io.files import write_text
from gatf.io.run_folder import RunFolder, Summary

DECIMALS = 4


def collect(folder: Path, out: Path, *, threads: int, processor: str) -> list[str]:
    """Copy the finished runs of a bench folder; returns their names."""
    bench = folder.resolve().name.removeprefix("bench-")
    done = []
    for run, row, setting in planned(bench, folder):
        place = RunFolder(folder / run)
        if not place.finished:
            continue
        summary = place.read_summary()
        target = out / bench / run
        target.mkdir(parents=True, exist_ok=True)
        about = {
            "bench": bench, "setting": setting, "row": row, "seed": summary.seed,
            "processor": processor, "threads": threads, "minutes": round(sum(seconds(place)) / 60, 1),
        }  # fmt: skip
        write_text(target / results.ABOUT, json.dumps(about, indent=1, ensure_ascii=False) + "\n")
        write_text(target / results.CONFIG, place.config.read_text(encoding="utf-8"))
        write_text(target / results.SUMMARY, json.dumps(small(summary)) + "\n")
        write_text(target / results.CURVES, curves(place))
        if place.explained_in_words.is_file():
            write_text(target / results.EXPLAINED, place.explained_in_words.read_text(encoding="utf-8"))
        done.append(run)
    return done


def seconds(place: RunFolder) -> list[float]:
    """Of each task, of the processor, or of the clock in old runs; with those of the run whose network was taken."""
    summary = place.read_summary()
    own = summary.processor_seconds or summary.seconds
    if summary.networks_from is None:
        return own
    theirs, taken = seconds(RunFolder(place.path.parent / summary.networks_from)), summary.networks_of
    return [mine + theirs[task] * (task in taken or not taken) for task, mine in enumerate(own)]


def planned(bench: str, folder: Path) -> list[tuple[str, str, str]]:
    """Name, row and setting of every run that the bench has, or of what is in the folder if there is no such bench."""
    try:
        return [(run.name, run.row, run.setting) for run in load_plan(bench).runs]
    except UserError:
        found = [RunFolder(path.parent) for path in sorted(folder.glob("*/summary.json"))]
        return [(place.path.name, place.read_summary().method, bench) for place in found]


def small(summary: Summary) -> dict[str, Any]:
    """A summary that can still be read as one, without what is large: a row per class and task."""
    return rounded(asdict(summary)) | {"accuracy_by_class": [[] for _ in summary.accuracy_by_class]}


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return round(value, DECIMALS) if isinstance(value, float) else value


def curves(place: RunFolder) -> str:
    """The loss of every epoch, its terms added up."""
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
    parser.add_argument("--threads", type=int, default=1, help="that each run had")
    parser.add_argument("--processor", default=f"{os.cpu_count()} × {processor_name()}", help="that they ran on")
    given = parser.parse_args()
    done = collect(given.folder, results.RESULTS, threads=given.threads, processor=given.processor)
    bench = given.folder.resolve().name.removeprefix("bench-")
    results.draw(bench)
    print(f"{len(done)} runs in {results.RESULTS / bench}; now: python tools/update_docs.py")


if __name__ == "__main__":
    main()
