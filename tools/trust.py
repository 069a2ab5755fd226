"""Tables of docs/reliability.md, docs/contributing.md and docs/privacy.md from what was measured: torture.json,
mutants.json, coverage.json and privacy.json in benchmarks/results. `tools/update_docs.py` puts them in place."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

WORDS = {"crashes": "every file operation"}
RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"


def read(name: str) -> dict[str, Any]:
    return dict(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


def table(header: Sequence[str], rows: Iterable[Sequence[object]], align: str) -> str:
    """Markdown; `align` has a letter per column, l or r."""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join("---" if side == "l" else "---:" for side in align) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)]) + "\n"


def torture_part() -> str:
    """What `make torture` was asked to do, and found."""
    told = read("torture")
    figures: dict[str, list[dict[str, Any]]] = {}
    for job in told.values():
        for entry in job["figures"]:
            for kind, values in entry.items():
                figures.setdefault(kind, []).append(values)
    parts = [_what_was_run(told)]
    if "crashes" in figures:
        rows = [
            (f"`gatf {each['command']}`", each["operations"], each["tried"], each["died"], each["tried"])
            for each in figures["crashes"]
        ]
        head = ("command", "file operations", "tried", "deaths and refusals", "same files and bits after")
        parts.append(table(head, rows, "lrrrr"))
    for each in figures.get("kills", ()):
        died = ", ".join(f"{count} of `gatf {name}`" for name, count in each["died"].items())
        parts.append(
            f"Killed at moments drawn from a seed: {each['commands']} commands, {sum(each['died'].values())} kills "
            f"({died}); after every one the repeated command ended with the same files and bits.\n"
        )
    if "fuzz" in figures:
        rows = [(each["reader"], each["files"], each["failures"]) for each in figures["fuzz"]]
        parts.append(table(("reader", "changed files", "neither one sentence nor a right answer"), rows, "lrr"))
    if "tasks" in figures:
        rows = [
            (
                f"`{each['method']}`", each["tasks"], f"{1000 * each['first']:.0f} ms", f"{1000 * each['last']:.0f} ms",
                *(f"{1000 * seconds:.0f} ms" if seconds else "–" for seconds in each.get("training", (0, 0))),
                f"{each['resident'][0]:.0f} MB", f"{each['resident'][1]:.0f} MB", f"{each['class_bytes']} bytes",
                f"{each['accuracy']:.1f} %",
            )
            for each in figures["tasks"]
        ]  # fmt: skip
        head = (
            "method", "tasks of one class", "processor time of a task, first quarter", "last quarter",
            "of it training, first quarter", "last quarter",
            "memory of the process after a quarter", "at the end", "state per class", "A_last",
        )  # fmt: skip
        parts.append(table(head, rows, "lrrrrrrrrr"))
    for each in figures.get("updates", ()):
        first, kept, last = each["bytes"]
        early, late = (f"{1000 * each[name]:.0f} ms" for name in ("first", "last"))
        parts.append(
            f"{each['updates']} updates of one model, with more images of the same two classes: {early} of processor "
            f"time each in the first quarter, {late} in the last; the file has {first} bytes after the first update, "
            f"{kept} when its history is full, {last} at the end.\n"
        )
    return "\n".join(parts)


def _what_was_run(told: dict[str, Any]) -> str:
    """A row for each part of `make torture`: how often it wants it, and how often it was run."""
    from torture import PARTS, jobs

    rows = []
    for name, part in PARTS.items():
        done = [told[job] for job in jobs(name, 1) if job in told]
        numbers, dates = sorted({each["number"] for each in done}), sorted({each["date"] for each in done})
        failed = sum(not each["passed"] for each in done)
        times = [WORDS.get(name, str(number)) if number >= part[-1] else str(number) for number in numbers]
        rows.append(
            (
                f"`{name}`", WORDS.get(name, part[-1]), " and ".join(times) or "not yet",
                " and ".join(dates),
                "–" if not done else "passed" if not failed else f"{failed} failed",
            )
        )  # fmt: skip
    return table(("part", "wanted", "run", "on", "outcome"), rows, "lrrll")


def mutants_part() -> str:
    told = read("mutants")
    by_package: dict[str, list[bool]] = {}
    for mutant in told["mutants"]:
        by_package.setdefault(mutant["file"].split("/")[0], []).append(mutant["killed"])
    rows = [(f"`{name}`", len(each), sum(each)) for name, each in sorted(by_package.items())]
    alive = [
        f"`{each['before'].strip()}` as `{each['after'].strip()}` in `{each['file']}`"
        for each in told["mutants"]
        if not each["killed"]
    ]
    text = table(("part", "mutants", "killed"), rows, "lrr")
    return text + "\n" + (f"Alive: {'; '.join(alive)}.\n" if alive else "None survives.\n")


def coverage_part() -> str:
    if not (RESULTS / "coverage.json").is_file():
        return "`make coverage` measures it and writes a table here.\n"
    told = read("coverage")
    rows = [(f"`{name}`", each["lines"], f"{each['percent']:.0f} %") for name, each in sorted(told["packages"].items())]
    least = ", ".join(f"`{each['file']}` ({each['percent']:.0f} %)" for each in told["least"])
    text = table(("package", "lines", "covered"), rows, "lrr")
    return text + f"\nCovered least: {least}. Measured by `{told['command']}`.\n"


def privacy_part() -> str:
    told = read("privacy")
    rows = [
        (
            each["data"], each["images"], each["what"], f"{each['auc']:.3f}",
            f"{each['low']:.3f} to {each['high']:.3f}", f"{each['accuracy']:.1f} %",
        )
        for each in told["attacks"]
    ]  # fmt: skip
    head = ("data", "training images per class", "the attacker has", "AUC", "95 % interval", "A_last of the model")
    return table(head, rows, "lrlrrr")
