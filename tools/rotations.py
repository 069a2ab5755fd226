"""Would GATF gain from four rotations of every class in all tasks, instead of the first alone, at the same cost?

python tools/rotations.py glyphs cifar100-16px --seeds 0 1   run what benchmarks/results/rotations.json lacks
Either also writes the table of docs/methods.md anew, from all that is on record.

A step sees a quarter as many images, each at 0°, 90°, 180° and 270°, and later tasks have a quarter of the epochs: as
many pictures go through the network as with the paper's settings (row "paper" of tools/options.py, whose data and
held-out images these are). *Distilled* also has a head of the upright classes, which learns from the labels and from
what the four turned copies of an image say together (Lee et al., "Self-supervised Label Augmentation via Input
Transformations", ICML 2020).
"""

import argparse
import json
import sys
from typing import Any

import torch
from options import DATA, IDENTITY, RDA, REFRESH, table
from orderings import PAGE, Row, run, trained
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from update_docs import ROOT, replace_between

from gatf.config import load_config
from gatf.io.files import write_text
from gatf.methods import METHODS
from gatf.methods.base import Batch, TaskInfo
from gatf.methods.gatf import GATF
from gatf.methods.lwf import softened_cross_entropy

RECORD = ROOT / "benchmarks" / "results" / "rotations.json"
KEPT = ("a_last", "a_inc", "forgetting", "cpu_seconds")
AFTER: dict[str, dict[str, Any]] = {"": {}, "identity, rda": REFRESH | IDENTITY | RDA}


class Turning(GATF):
    """Four rotations of every class in every task."""

    def _rotates(self, task: TaskInfo) -> bool:
        return self.config.rotation


class TwoHeads(nn.Module):
    """A head of the turned classes, which remembers what it was asked, and one of the upright classes."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.turned, self.plain = nn.Linear(dim, 4 * classes), nn.Linear(dim, classes)

    def forward(self, features: Tensor) -> Tensor:
        self.asked, self.answer = features, self.turned(features)
        return self.answer


class Distilled(Turning):
    """The upright classes' head learns from the labels and from the four turned answers of an image together."""

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        heads: Any = self.make(lambda: TwoHeads(self.feature_dim, task.new), "two heads", task.index)
        self.head = heads

    def _loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        terms = super()._loss(batch, task)
        heads: Any = self.head
        upright, together = heads.asked.chunk(4)[0], agreed(heads.answer.detach(), task.new)
        logits = heads.plain(upright)
        return terms | {
            "plain": cross_entropy(logits, batch.labels - task.old),
            "together": softened_cross_entropy(logits, together, 1.0),
        }


def agreed(answers: Tensor, classes: int) -> Tensor:
    """Logits [B, n] of upright classes from those [4B, 4n] of turned ones: the mean over turns of class c at turn k, as
    the copy that was turned so has it."""
    turns = answers.unflatten(0, (4, -1)).unflatten(2, (4, classes))  # [turn of the copy, B, turn of the class, n]
    return turns.diagonal(dim1=0, dim2=2).mean(2)  # [B, n]


VARIANTS: dict[str, type[GATF]] = {
    "four rotations in every task": Turning,
    "four rotations in every task, distilled": Distilled,
}


def rows(dataset: str) -> list[tuple[str, Row]]:
    """Of each variant, with what follows training."""
    epochs = load_config(dataset, method="gatf", overrides=DATA[dataset]).optimisation.next.epochs
    quarter = {"optimisation.next.epochs": epochs // 4, "method.refresh": 1}
    return [
        (variant, Row("rotations", dataset, "gatf", ": ".join(filter(None, (variant, after))),
                      DATA[dataset] | quarter, AFTER[after]))
        for variant in VARIANTS
        for after in AFTER
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", choices=DATA)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else []
    for dataset in options.data:
        for variant, row in rows(dataset):
            METHODS["gatf"] = VARIANTS[variant]
            for seed in options.seeds:
                known = {"dataset": dataset, "what": row.what, "seed": seed}
                if any(known.items() <= record.items() for record in records):
                    continue
                found = run(row, seed)
                records.append(known | {name: found[name] for name in KEPT})
                lines = ",\n".join(json.dumps(record, ensure_ascii=False) for record in records)
                write_text(RECORD, f"[\n{lines}\n]\n")
                sys.stdout.write(f"{dataset}, seed {seed}, {row.what}: {found['a_last']}, {found['a_inc']}\n")
                sys.stdout.flush()
            if row.after:
                trained.cache_clear()  # the next variant has the same settings
    page = PAGE.read_text(encoding="utf-8")
    told = table(records, dict.fromkeys((record["dataset"], record["what"]) for record in records))
    PAGE.write_text(replace_between(page, "rotations", told), encoding="utf-8")


if __name__ == "__main__":
    main()
