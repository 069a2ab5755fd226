"""What a run writes can be read back, whichever version wrote it; what is not a run's is refused in one sentence."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gatf.config import RunConfig
from gatf.errors import UserError
from gatf.experiment import resume, start
from gatf.io import events
from gatf.io.events import KINDS, Event, JsonLines, parse_event, read_events
from gatf.io.files import new_file
from gatf.io.run_folder import DERIVED, RunFolder, Summary

TOLD: list[tuple[Event, str]] = [
    (events.RunStart(tasks=2, method="gatf", resumed_at=None, steps=(4, 4)),
     '{"event": "run_start", "tasks": 2, "method": "gatf", "resumed_at": null, "steps": [4, 4]}'),
    (events.WarningEvent(text="odd"), '{"event": "warning", "text": "odd"}'),
    (events.TaskStart(task=0, classes=5, images=100, steps=4),
     '{"event": "task_start", "task": 0, "classes": 5, "images": 100, "steps": 4}'),
    (events.Epoch(task=0, phase="train", epoch=1, losses={"ce": float("nan")}, lr=0.1, seconds=0.5),
     '{"event": "epoch", "task": 0, "phase": "train", "epoch": 1, "losses": {"ce": NaN}, "lr": 0.1, "seconds": 0.5}'),
    (events.Trained(task=0), '{"event": "trained", "task": 0}'),
    (events.Notice(task=0, name="fisher", values={"mean": 0.25, "max": 2.0}),
     '{"event": "notice", "name": "fisher", "task": 0, "mean": 0.25, "max": 2.0}'),
    (events.Task(task=0, seen=90.0, accuracies=[90.0], seconds=1.5),
     '{"event": "task", "task": 0, "seen": 90.0, "accuracies": [90.0], "seconds": 1.5}'),
    (events.Run(a_last=80.0, a_inc=90.0, forgetting=None, total_seconds=1.5),
     '{"event": "run", "a_last": 80.0, "a_inc": 90.0, "forgetting": null, "total_seconds": 1.5}'),
]  # fmt: skip
"""Every kind that is written, and its line, which scripts of others rely on."""

WRITTEN = {
    "method": "gatf", "dataset": "digits", "tasks": 2, "seed": 0, "class_order": [1, 0], "class_names": ["1", "0"],
    "a_last": 60.0, "a_inc": 80.0, "a_last_task_weighted": 50.0, "a_inc_task_weighted": 75.0,
    "forgetting": 20.0, "accuracy_matrix": [[100.0], [80.0, 20.0]],
    "accuracy_seen": [100.0, 60.0], "task_aware": [[100.0], [90.0, 80.0]],
    "accuracy_by_class": [[100.0], [80.0, 20.0]], "old_to_new": [None, 20.0], "seconds": [1.0, 2.0],
    "total_seconds": 3.0, "peak_memory_mb": [300.0, 300.0], "bytes_per_class": 176, "versions": {"gatf": "0.1.0"},
}  # fmt: skip
"""A summary without the fields that came later."""


def test_events_are_written_as_they_always_were_and_read_back(tmp_path: Path) -> None:
    write = JsonLines(tmp_path / "metrics.jsonl")
    for event, _ in TOLD:
        write(event)
    write(events.Step(task=0, phase="train", epoch=0, epochs=1))
    write(events.FeaturesExtracted(task=0, images=1, of=2))
    write.close()
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines == [line for _, line in TOLD]  # and no step
    assert {event.kind for event, _ in TOLD} == set(KINDS) - {"step", "features_extracted"}
    assert str(RunFolder(tmp_path).read_events()) == str([event for event, _ in TOLD])  # as text: NaN is not itself


def test_reading_on_leaves_a_line_that_is_not_ended(tmp_path: Path) -> None:
    path, lines = tmp_path / "metrics.jsonl", [line for _, line in TOLD]
    path.write_text(f"{lines[0]}\n{lines[1]}\n{lines[2][:20]}", encoding="utf-8")
    found, end = read_events(path)
    assert found == [TOLD[0][0], TOLD[1][0]]
    path.write_text("".join(f"{line}\n" for line in lines[:3]), encoding="utf-8")
    assert read_events(path, end) == ([TOLD[2][0]], path.stat().st_size)


def test_a_field_of_a_later_version_is_left_out() -> None:
    assert parse_event({"event": "trained", "task": 3, "colour": "red"}) == events.Trained(task=3)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"event": "tr', "line 2, is no event"),
        ("[1]", "it names no kind"), ('{"kind": "tea"}', "it names no kind"),
        ('{"event": "trained"}', "its 'task' is missing"), ('{"event": "trained", "task": "x"}', "its 'task': Input"),
        ('{"event": "notice", "name": "n", "task": 0, "mean": "much"}', r"its 'values.mean'"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_event_is_named(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f"{TOLD[0][1]}\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=words):
        RunFolder(tmp_path).read_events()


def test_an_old_summary_is_read(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(WRITTEN), encoding="utf-8")
    summary = RunFolder(tmp_path).read_summary()
    later = {"processor_seconds": [], "repaired": [], "config_changes": [], "networks_from": None, "networks_of": []}
    later |= {"returning": [], "domains": []}
    assert asdict(summary) == WRITTEN | later | {"machine": {}}


def test_a_summary_that_is_read_and_written_is_the_same_file(
    tmp_path: Path, tiny_config: Callable[..., RunConfig]
) -> None:
    returned = start(tiny_config("finetune"), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert resume(folder.path) == folder.read_summary() == returned
    written = folder.summary.read_text(encoding="utf-8")
    assert list(json.loads(written)) == [*Summary.__dataclass_fields__, *DERIVED]
    folder.write_summary(returned)
    assert folder.summary.read_text(encoding="utf-8") == written


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"a_last": None}, "'a_last': Input should be a valid number"),
        ({"seconds": [1.0]}, "'seconds' does not have an entry for each of its 2 tasks"),
        ({"accuracy_matrix": [[1.0], [2.0]]}, "a row of its 'accuracy_matrix'"),
        ({"tasks": 0}, "each of its 0 tasks"),
    ],
)
def test_a_foreign_summary_is_refused(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(WRITTEN | changed), encoding="utf-8")
    with pytest.raises(UserError, match=rf"summary.json is not the summary of a run: .*{words}"):
        RunFolder(tmp_path).read_summary()


@pytest.mark.parametrize("text", ["", json.dumps(WRITTEN)[:200], "\x00"])
def test_a_summary_that_is_cut_off_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0", encoding="utf-8")
    (tmp_path / "summary.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"summary.json cannot be read"):
        resume(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{}", "null"])
def test_json_that_is_no_summary_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="not the summary of a run"):
        RunFolder(tmp_path).read_summary()


def test_a_kind_of_event_of_a_later_version_is_passed_over(tmp_path: Path) -> None:
    lines = ['{"event": "tea", "sugar": 2}', '{"event": "trained", "task": 0}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert RunFolder(tmp_path).read_events() == [events.Trained(task=0)]


def test_forgetting_events_keeps_whole_lines_only(tmp_path: Path) -> None:
    """After a power cut the file may be shorter than the checkpoint says, and end in the middle of a line."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"event": "trained", "task": 0}\n{"event": "tra')
    log = JsonLines(path)
    log.truncate(10_000)
    log(events.Trained(task=1))
    log.close()
    assert read_events(path)[0] == [events.Trained(task=0), events.Trained(task=1)]


def test_the_newest_two_checkpoints_are_kept(tmp_path: Path) -> None:
    place = RunFolder(tmp_path)
    place.checkpoints.mkdir()
    for task in range(4):
        place.checkpoint(task, 0, 0, 0).touch()
    place.prune_checkpoints({place.checkpoint(0, 0, 0, 0)})
    assert place.saved_checkpoints() == [place.checkpoint(task, 0, 0, 0) for task in (0, 2, 3)]


def test_a_file_that_could_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with new_file(tmp_path / "x") as partial:
            partial.write_text("half")
            raise InterruptedError

    with pytest.raises(InterruptedError):
        write()
    assert list(tmp_path.iterdir()) == []
