"""How long a bench will take: a few steps of every row, timed, and multiplied."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatf import experiment
from gatf.bench.plan import Plan, PlannedRun
from gatf.config import RunConfig, validated
from gatf.errors import UserError

PROBE_EPOCHS = 2
"""Enough for phases of half the epochs to have one."""
PROBE_STEPS = 3


@dataclass(frozen=True)
class Estimate:
    """Seconds of one run of a row; None where it cannot be probed, and why."""

    setting: str
    row: str
    runs: int
    seconds: float | None
    why: str = ""


def estimate(plan: Plan) -> list[Estimate]:
    """One estimate for every row of every setting."""
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in plan.runs:
        groups.setdefault((run.setting, run.row), []).append(run)
    found = []
    for (setting, row), runs in groups.items():
        try:
            found.append(Estimate(setting, row, len(runs), seconds_of(runs[0].config)))
        except UserError as error:
            found.append(Estimate(setting, row, len(runs), None, str(error)))
    return found


def seconds_of(config: RunConfig) -> float:
    """Time two tasks on a few images of each class for two epochs, then count images × epochs of the whole run.

    Tasks after the first are taken to be like the second; statistics and evaluation cost what they cost in the probe.
    """
    whole = experiment.Experiment(config)
    images = [whole.task_info(task).images for task in range(len(whole.scenario))]
    with tempfile.TemporaryDirectory() as folder:
        experiment.start(shortened(config, max(whole.scenario.task_sizes)), Path(folder) / "probe")
        lines = (Path(folder) / "probe" / experiment.EVENTS).read_text(encoding="utf-8").splitlines()
        events = [json.loads(line) for line in lines]
        summary = json.loads((Path(folder) / "probe" / experiment.SUMMARY).read_text(encoding="utf-8"))
    total = 0.0
    for task, count in enumerate(images):
        like = min(task, len(summary["seconds"]) - 1)
        epochs = _stage(config, task, whole.method.exemplar_free).epochs
        rate, training = _seconds_an_image(events, like)
        total += rate * count * epochs / PROBE_EPOCHS + max(summary["seconds"][like] - training, 0.0)
    return total


def _stage(config: RunConfig, task: int, exemplar_free: bool) -> Any:
    """`joint` trains every task like the first."""
    return config.optimisation.stage(task if exemplar_free else 0)


def _seconds_an_image(events: list[dict[str, Any]], task: int) -> tuple[float, float]:
    """Seconds of an image in all epochs of the probe's task, its last epochs counted twice for the first, which warms
    up; and seconds of training in the probe."""
    images = next(event["images"] for event in events if event["event"] == "task_start" and event["task"] == task)
    epochs = [event for event in events if event["event"] == "epoch" and event["task"] == task]
    last = {event["phase"]: event["seconds"] for event in epochs}
    steady = sum(last[event["phase"]] for event in epochs)
    return steady / images, sum(event["seconds"] for event in epochs)


def shortened(config: RunConfig, classes: int) -> RunConfig:
    """The same run with two tasks, two epochs and a few steps each."""
    values = config.model_dump(mode="json")
    steps = PROBE_STEPS * max(config.optimisation.first.batch_size, config.optimisation.next.batch_size)
    few = -(-steps // classes)
    values["data"]["max_per_class"] = min(few, config.data.max_per_class or few)
    values["scenario"]["stop_after"] = min(2, config.scenario.stop_after or 2)
    for stage in ("first", "next"):
        values["optimisation"][stage]["epochs"] = PROBE_EPOCHS
    return validated({**values, "diagnostics": False, "checkpoint_every": None})
