"""Why does a method rank where it ranks on small problems? Each row changes one thing.

python experiments/orderings.py               do the runs that the record lacks
python experiments/orderings.py --dry-run     list them
python experiments/orderings.py dpcr --again  repeat one group

Settings that act after training are tried on the networks of one training: the ends of its tasks are repeated. So are
oracles, which use images of old classes.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from common import load, one_thread, save
from torch import Tensor, nn

from gatf.config import load_config
from gatf.data.loader import TaskData
from gatf.evaluation.metrics import forgetting, incremental_accuracy, last_accuracy
from gatf.experiment import Experiment
from gatf.io import events
from gatf.io.run_folder import RunFolder
from gatf.methods import Method

BETWEEN_TASKS = ("memory", "readout")
"""Parts of a method that are made at the end of a task, not trained."""
NOTED = ("fisher.mean", "shift.class_rank")
"""What methods report of themselves that the page quotes, one value a task."""

GLYPHS_40 = {"data.glyphs.classes": 40, "scenario.tasks": 4}
SMALL_START = {"data.glyphs.classes": 40, "scenario.task_sizes": [4, 12, 12, 12]}
LONGER = {"optimisation.first.epochs": 60, "optimisation.next.epochs": 60}


@dataclass(frozen=True)
class Row:
    """One line of a table: a method on a data set with settings that act in training, and others that act after it."""

    group: str
    dataset: str
    method: str
    what: str
    training: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    oracle: str | None = None
    seeds: tuple[int, ...] = (0,)

    @property
    def settings(self) -> dict[str, Any]:
        return self.training | self.after


def dpcr_rows(dataset: str, seeds: tuple[int, ...]) -> list[Row]:
    rank, cut = {"method.rank_tolerance": None}, {"method.rank_tolerance": 128 * 2.0**-23}
    variants: list[tuple[str, dict[str, Any], str | None]] = [
        ("as it is", {}, None),
        ("CIP at the rank of the images", rank, None),
        ("CIP cut at S·2⁻²³ of the largest", cut, None),
        ("nothing moved", {"method.tssp": False}, None),
        ("no CN", {"method.cn": False}, None),
        ("ridge ÷ 10", {"method.ridge": 20.0}, None),
        ("ridge × 10", {"method.ridge": 2000.0}, None),
        ("regularised map", {"method.relative_shift_ridge": True, "method.shift_ridge": 1e-3}, None),
        ("map fitted to images of all seen classes", {}, "map"),
        ("the same, CIP at the rank", rank, "map"),
        ("the same, CIP cut at S·2⁻²³", cut, "map"),
        ("oracle statistics for old classes", {"method.tssp": False}, "statistics"),
    ]
    return [Row("dpcr", dataset, "dpcr", what, {}, after, oracle, seeds) for what, after, oracle in variants]


def frozen_rows(what: str, training: dict[str, Any], seeds: tuple[int, ...]) -> list[Row]:
    return [Row("fetril", "glyphs", method, what, training, seeds=seeds) for method in ("fetril", "gatf")]


def adapter_rows(dataset: str, data: str, training: dict[str, Any]) -> list[Row]:
    faster = {"method.adapter_lr": 0.1}
    variants: list[tuple[str, dict[str, Any], dict[str, Any], str | None]] = [
        ("as it is", {}, {}, None),
        ("adapter: affine, least squares", {}, {}, "affine"),
        ("oracle statistics for old classes", {}, {}, "statistics"),
        ("adapter rate × 10", faster, {}, None),
    ]
    return [
        Row("adagauss", dataset, "adagauss", f"{data}, {what}", training | own, after, oracle)
        for what, own, after, oracle in variants
    ]


def ewc_rows(seeds: tuple[int, ...]) -> list[Row]:
    penalties = {"λ × 100": 5e5, "λ × 10⁴": 5e7, "λ × 10⁶": 5e9}
    stiffer = [
        Row("ewc", "digits", "ewc", what, {"method.penalty": value}, {}, None, seeds)
        for what, value in penalties.items()
    ]
    return [*(Row("ewc", "digits", name, "as it is", seeds=seeds) for name in ("finetune", "ewc")), *stiffer]


ROWS = [
    *dpcr_rows("digits", (0, 1, 2)),
    *[Row("dpcr", "digits", name, "2 tasks of 5", {"scenario.tasks": 2}, seeds=(0, 1, 2)) for name in ("dpcr", "sdc")],
    *dpcr_rows("glyphs", (0,)),
    *ewc_rows((0, 1)),
    Row("fetril", "digits", "fetril", "as it is", seeds=(0, 1, 2)),
    Row("fetril", "digits", "fetril", "1 epoch", {"optimisation.first.epochs": 1}, seeds=(0, 1, 2)),
    *frozen_rows("40 characters", GLYPHS_40, (0, 1)),
    *frozen_rows("40 characters, 60 epochs", GLYPHS_40 | LONGER, (0, 1)),
    *frozen_rows("40 characters, 60 epochs, 4 first", SMALL_START | LONGER, (0, 1)),
    *adapter_rows("glyphs", "40 characters", GLYPHS_40),
    *adapter_rows("glyphs", "40 characters, 60 epochs", GLYPHS_40 | LONGER),
]
"""In the order in which they are run."""


@dataclass
class Trained:
    """A finished training: its results, and the networks as they were when each task's training ended."""

    config: tuple[str, str, dict[str, Any]]
    result: dict[str, Any]
    networks: list[dict[str, dict[str, Tensor]]]


def build(dataset: str, method: str, settings: dict[str, Any]) -> Experiment:
    return Experiment(load_config(dataset, method=method, overrides={"device": "cpu", **settings}))


@cache
def trained(dataset: str, method: str, settings: str) -> Trained:
    """Train once; `settings` is JSON, so that it can be a key of the cache."""
    loaded = json.loads(settings)
    experiment = build(dataset, method, loaded)
    networks: list[dict[str, dict[str, Tensor]]] = []
    notes: dict[str, list[float]] = {}

    def listen(event: events.Event) -> None:
        if isinstance(event, events.Trained):
            networks.append(
                {
                    name: {key: value.clone() for key, value in part.state_dict().items()}
                    for name, part in experiment.method.named_children()
                    if name not in BETWEEN_TASKS
                }
            )
        if isinstance(event, events.Notice):
            take_note(notes, event.name, event.values)

    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        place = RunFolder(Path(folder) / "run")
        place.create(experiment.config.to_yaml())
        summary = experiment.run(place.path, (listen,))
    result = {name: round(getattr(summary, name), 3) for name in ("a_last", "a_inc", "forgetting")}
    result |= {"cpu_seconds": round(time.process_time() - begun, 1), "notes": notes}
    return Trained((dataset, method, loaded), result, networks)


def take_note(notes: dict[str, list[float]], name: str, values: dict[str, Any]) -> None:
    for key, value in values.items():
        if f"{name}.{key}" in NOTED:
            notes.setdefault(f"{name}.{key}", []).append(float(f"{value:.3g}"))


@torch.no_grad()
def replayed(once: Trained, after: dict[str, Any], oracle: str | None) -> dict[str, Any]:
    """The ends of the tasks again, with other settings or an oracle's help."""
    dataset, name, settings = once.config
    experiment, begun = build(dataset, name, settings | after), time.process_time()
    method, notes = experiment.method, dict[str, list[float]]()
    matrix: list[list[float]] = []
    seen: list[float] = []
    for task, networks in enumerate(once.networks):
        method.begin_task(experiment.task_info(task))
        for part, state in networks.items():
            getattr(method, part).load_state_dict(state)
        method.eval()
        data = experiment.task_data(task)
        if oracle is not None and task > 0:
            ORACLES[oracle](method, data, [experiment.task_data(old) for old in range(task)])
        method.end_task(data)
        for notice in method.notices:
            take_note(notes, notice.name, notice.values)
        method.notices.clear()
        result = experiment.evaluate(task)
        matrix.append(result.by_task)
        seen.append(result.seen)
    metrics = {"a_last": last_accuracy(seen), "a_inc": incremental_accuracy(seen), "forgetting": forgetting(matrix)}
    result = {key: round(value, 3) for key, value in metrics.items()}
    return result | {"cpu_seconds": round(time.process_time() - begun, 1), "notes": notes}


def oracle_statistics(method: Any, data: TaskData, old: list[TaskData]) -> None:
    """Statistics of old classes from their images through the new network: what a perfect transport would give."""
    for name, buffer in list(method.memory.named_buffers()):
        setattr(method.memory, name, buffer[:0])
    view = ("test",) if method.name == "dpcr" else ()
    for task in old:
        method.memory.learn(method.backbone, task, *view)
    if method.name == "adagauss":
        method.push_memory = lambda mapping, task: None  # these statistics are of the new network already


def map_from_all_images(method: Any, data: TaskData, old: list[TaskData]) -> None:
    """DPCR's regression old → new with old images beside the new ones."""
    statistics_of = type(method)._task_statistics

    def statistics(data: TaskData) -> tuple[dict[str, Tensor], Tensor]:
        grams, targets = statistics_of(method, data)
        for task in old:
            for batch in task.batches("test"):
                before, now = (net(batch.images).double() for net in (method.base.teacher, method.backbone))
                grams["old"] += before.T @ before
                grams["cross"] += before.T @ now
        return grams, targets

    method._task_statistics = statistics


def affine_adapter(method: Any, data: TaskData, old: list[TaskData]) -> None:
    """AdaGauss's adapter replaced by the affine least-squares fit to the task's own images; no oracle at all."""
    pairs = [(method.teacher(batch.images), method.backbone(batch.images)) for batch in data.batches("test")]
    before, now = (torch.cat(part).double() for part in zip(*pairs, strict=True))
    ones = torch.ones(len(before), 1, dtype=torch.float64)
    solution = torch.linalg.lstsq(torch.cat([before, ones], dim=1), now, driver="gelsd").solution  # [S + 1, S]
    adapter = nn.Linear(before.shape[1], now.shape[1])
    adapter.weight.copy_(solution[:-1].T)
    adapter.bias.copy_(solution[-1])
    method.adapter = adapter.eval()


ORACLES: dict[str, Callable[[Method, TaskData, list[TaskData]], None]] = {
    "statistics": oracle_statistics, "map": map_from_all_images, "affine": affine_adapter,
}  # fmt: skip


def run(row: Row, seed: int) -> dict[str, Any]:
    """The record of a row."""
    once = trained(row.dataset, row.method, json.dumps(row.training | {"seed": seed}))
    result = once.result if not row.after and row.oracle is None else replayed(once, row.after, row.oracle)
    return {"group": row.group, "what": row.what} | identity(row, seed) | result


def identity(row: Row, seed: int) -> dict[str, Any]:
    """What was run, whatever the page calls it."""
    return {
        "dataset": row.dataset, "method": row.method, "settings": row.settings, "oracle": row.oracle, "seed": seed,
    }  # fmt: skip


def same(record: dict[str, Any], row: Row, seed: int) -> bool:
    return all(record[key] == value for key, value in identity(row, seed).items())


def main() -> None:
    groups = list(dict.fromkeys(row.group for row in ROWS))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="group", help=f"of {', '.join(groups)}; default: all")
    parser.add_argument("--again", action="store_true", help="also what is on record")
    parser.add_argument("--dry-run", action="store_true", help="run nothing")
    options = parser.parse_args()
    unknown = set(options.groups) - set(groups)
    if unknown:
        parser.error(f"no group is called {', '.join(sorted(unknown))}")
    one_thread()
    records = load("orderings", [])
    for row in ROWS:
        for seed in row.seeds:
            known = [record for record in records if same(record, row, seed)]
            if (options.groups and row.group not in options.groups) or (known and not options.again):
                continue
            print(f"{row.group}: {row.method} on {row.dataset}, {row.what}, seed {seed}", flush=True)
            if not options.dry_run:
                records = [record for record in records if record not in known] + [run(row, seed)]
                save("orderings", records)


if __name__ == "__main__":
    main()
