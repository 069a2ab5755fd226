"""GATF's options, one at a time and together, on validation images: what preset `plus` is chosen by; and AdaGauss with
less of what holds its features back.

python tools/options.py digits --seeds 0 1               run what benchmarks/results/options.json lacks
python tools/options.py glyphs cifar100-16px --only rda  rows whose name contains this, or one of several such words
Either also writes the table of docs/methods.md anew, from all that is on record.

Settings are chosen on training images that are held out, never on test images. A row's training is done once per seed;
rows that differ after training alone repeat the ends of its tasks, as tools/orderings.py does, and trainings that
differ in later tasks alone share their first one, which `cpu_seconds` counts in one of them.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from orderings import PAGE, Row, identity, run, same, spread
from update_docs import ROOT, replace_between

from gatf.io.files import write_text

RECORD = ROOT / "benchmarks" / "results" / "options.json"
VALIDATION = {"data.val_fraction": 0.2, "data.evaluate_on": "validation"}
DATA: dict[str, dict[str, Any]] = {
    "digits": VALIDATION,
    "glyphs": VALIDATION | {"data.glyphs.classes": 40, "scenario.tasks": 4},
    "cifar100-16px": VALIDATION
    | {"scenario.stop_after": 3, "optimisation.first.epochs": 16, "optimisation.next.epochs": 20},
}


def both(**settings: Any) -> dict[str, Any]:
    """A setting of both stages."""
    return {f"optimisation.{stage}.{name}": value for stage in ("first", "next") for name, value in settings.items()}


CLIP, COSINE, AVERAGE = both(clip_by="module"), both(schedule="cosine"), both(average=0.25)
RATE = {"optimisation.next.lr": 0.05}
EVAL = {"method.residual_target": "eval"}
REFRESH, IDENTITY = {"method.final_refresh": True}, {"method.anchor": "identity"}
RESURRECTED = {"method.resurrected": 20}
RDA, LINEAR = {"method.readout": "rda"}, {"method.readout": "linear"}
TRAININGS: dict[str, dict[str, Any]] = {
    "paper": {},
    "clip by module": CLIP,
    "later rate 0.05": RATE,
    "cosine": COSINE,
    "average": AVERAGE,
    "residual in eval mode": EVAL,
    "clip by module, later rate 0.05": CLIP | RATE,
    "topology 1": {"method.topology": 1.0},
    "topology 0.2": {"method.topology": 0.2},
}
AFTER: dict[str, dict[str, Any]] = {
    "": {},
    "final refresh": REFRESH,
    "identity": REFRESH | IDENTITY,
    "low rank": REFRESH | {"method.anchor": "lowrank"},
    "procrustes": REFRESH | {"method.anchor": "procrustes"},
    "identity, ridge chosen": REFRESH | IDENTITY | {"method.ridge": "auto"},
    "identity, resurrected": REFRESH | IDENTITY | RESURRECTED,
    "linear": LINEAR,
    "final refresh, linear": REFRESH | LINEAR,
    "rda": RDA,
    "final refresh, rda": REFRESH | RDA,
    "identity, rda": REFRESH | IDENTITY | RDA,
    "procrustes, rda": REFRESH | RDA | {"method.anchor": "procrustes"},
    "identity, resurrected, rda": REFRESH | IDENTITY | RESURRECTED | RDA,
}
ALWAYS = ("", "rda", "identity, rda")
"""What follows every training; the rest follows the paper's alone."""
NEXT_BEST: dict[str, dict[str, Any]] = {
    "adagauss": {},
    "adagauss, weight 2": {"method.distill": 2.0},
    "adagauss, weight 0.4": {"method.distill": 0.4},
    "adagauss, logits": {"method.distillation": "logit"},
}
"""Whether it gains likewise from less of what holds its features back, or from holding back logits instead."""
KEPT = ("a_last", "a_inc", "forgetting", "cpu_seconds")


def rows(dataset: str, seeds: tuple[int, ...]) -> list[Row]:
    wanted = [
        ("gatf", training, after) for training in TRAININGS for after in (AFTER if training == "paper" else ALWAYS)
    ]
    wanted += [("adagauss", training, after) for training in NEXT_BEST for after in ("", "rda")]
    trainings = TRAININGS | NEXT_BEST
    return [
        Row(
            "options", dataset, method, ": ".join(filter(None, (training, after))), DATA[dataset] | trainings[training],
            AFTER[after], seeds=seeds,
        )
        for method, training, after in wanted
    ]  # fmt: skip


def table(records: list[dict[str, Any]], order: Iterable[tuple[str, str]] | None = None) -> str:
    """A line for each row with results, mean ± standard deviation over its seeds; `order` names data and rows."""
    lines = ["| data | what | seeds | A_last % | A_inc % | forgetting |", "|---|---|---:|---:|---:|---:|"]
    for dataset, what in order or [(name, row.what) for name in DATA for row in rows(name, ())]:
        own = [record for record in records if (record["dataset"], record["what"]) == (dataset, what)]
        if own:
            numbers = [spread([record[name] for record in own]) for name in ("a_last", "a_inc", "forgetting")]
            lines.append("| " + " | ".join([dataset, what, str(len(own)), *numbers]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", choices=DATA)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose name contains one of these")
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else []
    known = [row for dataset in options.data for row in rows(dataset, tuple(options.seeds))]
    wanted = [row for row in known if any(word in row.what for word in options.only)]
    missing = [(row, seed) for row in wanted for seed in row.seeds if not any(same(one, row, seed) for one in records)]
    with tempfile.TemporaryDirectory() as trainings:
        for row, seed in missing:
            found = run(row, seed, Path(trainings))
            records.append(identity(row, seed) | {"what": row.what} | {name: found[name] for name in KEPT})
            lines = ",\n".join(json.dumps(record, ensure_ascii=False) for record in records)
            write_text(RECORD, f"[\n{lines}\n]\n")
            sys.stdout.write(f"{row.dataset}, seed {seed}, {row.what}: {found['a_last']}, {found['a_inc']}\n")
            sys.stdout.flush()
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(replace_between(page, "options", table(records)), encoding="utf-8")


if __name__ == "__main__":
    main()
