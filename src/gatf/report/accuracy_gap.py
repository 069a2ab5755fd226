"""`gatf explain run`: decompose a run's accuracy gap, from its checkpoints, and write it beside its results."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gatf.errors import UserError
from gatf.evaluation.accuracy_gap import Explained, explain_task
from gatf.evaluation.observer import DiagnosticsData, table_text
from gatf.experiment import reopen
from gatf.io.files import write_text
from gatf.io.run_folder import SUMMARY, RunFolder, Summary

LOSSES = ("transport", "readout", "representation")


def explain_run(
    folder: Path, *, every_task: bool = False, joint: Path | None = None, overrides: Mapping[str, Any] | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> list[Explained]:  # fmt: skip
    """Explain a finished run after its last task, or after every task whose checkpoint is kept, and write it down.

    `joint` is the folder of a joint run of the same data and split; by default one beside the folder.
    `overrides` are settings of the place, such as `data.root`. `report` receives a sentence about each missing input.
    """
    place = RunFolder(folder)
    summary = _summary(place)
    joint_run = _named_joint(joint, summary) if joint is not None else find_joint(folder, summary)
    last = summary.tasks - 1
    wanted = range(summary.tasks) if every_task else range(last, last + 1)
    tasks = [task for task in wanted if place.after_task(task).is_file()]
    if last not in tasks:
        raise UserError(f"{folder} has no checkpoint of its last task, which this command needs: run it again")
    if len(tasks) < len(wanted):
        missing = ", ".join(str(task + 1) for task in wanted if task not in tasks)
        report(f"no checkpoint after task {missing}: only runs with --set keep_networks=true keep them")
    if joint_run is None and summary.method != "joint":
        report("no joint run to compare with: give one with --joint")
    experiment = reopen(folder, overrides)
    data = DiagnosticsData(experiment.scenario, experiment.session.pipeline, experiment.session.device)
    rows = []
    for task in tasks:
        experiment.go_to(folder, task)
        found = explain_task(experiment.method, data, task, joint_accuracy(joint_run, summary, task))
        _check(found, summary)
        rows.append(found)
    _write(place, rows, joint_run)
    return rows


def _summary(place: RunFolder) -> Summary:
    if not place.finished:
        raise UserError(f"{place.path} contains no finished run (it has no {SUMMARY})")
    return place.read_summary()


def _check(found: Explained, summary: Summary) -> None:
    """Refuse other data than the run's: the accuracies would not be comparable."""
    known = summary.accuracy_seen[found.after_task]
    if abs(found.own - known) > 1:
        raise UserError(
            f"the network after task {found.after_task + 1} has {found.own:.1f} % here and had {known:.1f} % in the "
            "run: is this the same data?"
        )


def _named_joint(folder: Path, summary: Summary) -> Summary:
    joint_run = _summary(RunFolder(folder))
    if not _comparable(joint_run, summary):
        raise UserError(f"{folder} is no joint run of the same classes in the same order")
    return joint_run


def find_joint(folder: Path, summary: Summary) -> Summary | None:
    """A finished joint run beside the folder, of the same classes in the same order; preferably with the same seed,
    then with the same tasks. None for a joint run itself."""
    if summary.method == "joint":
        return None
    beside = [RunFolder(path.parent) for path in sorted(folder.resolve().parent.glob(f"*/{SUMMARY}"))]
    found = [joint_run for joint_run in (each.read_summary() for each in beside) if _comparable(joint_run, summary)]
    return min(
        found,
        key=lambda each: (each.seed != summary.seed, _classes_known(each) != _classes_known(summary), each.seed),
        default=None,
    )


def joint_accuracy(joint_run: Summary | None, summary: Summary, task: int) -> float | None:
    """The accuracy of the joint run over the same seen classes. One that learnt all classes at once has it only at the
    end."""
    if joint_run is None:
        return None
    known = dict(zip(_classes_known(joint_run), joint_run.accuracy_seen, strict=True))
    return known.get(_classes_known(summary)[task])


def _comparable(joint_run: Summary, summary: Summary) -> bool:
    same_classes = (joint_run.dataset, joint_run.class_order) == (summary.dataset, summary.class_order)
    return joint_run.method == "joint" and same_classes


def _classes_known(summary: Summary) -> list[int]:
    """Seen classes after each task. The last number is exact even if a file omits accuracies per class."""
    return [len(row) for row in summary.accuracy_by_class[:-1]] + [len(summary.class_order)]


def _write(place: RunFolder, rows: list[Explained], joint_run: Summary | None) -> None:
    table = [{**asdict(row), **{loss: getattr(row, loss) for loss in LOSSES}} for row in rows]
    write_text(place.explained, table_text(table))
    content = {
        "rows": table,
        "joint_seed": None if joint_run is None else joint_run.seed,
        "sentences": rows[-1].sentences(),
    }
    write_text(place.explained_in_words, json.dumps(content, indent=1))
