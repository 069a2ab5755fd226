"""Runs are found in folders, and what cannot be read is reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatf.errors import UserError
from gatf.report.load import load_references, load_runs, read_table


def test_rows_of_a_bench_keep_their_names(fake_run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    entries = []
    for row in ("with anchor", "without"):
        fake_run(tmp_path / row, "gatf", seed=len(row))
        entries.append({"folder": row, "setting": "digits", "row": row})
    entries.append({"folder": "not run yet", "setting": "digits", "row": "third"})
    (tmp_path / "bench.json").write_text(json.dumps({"runs": entries}), encoding="utf-8")
    assert [run.row for run in load_runs([tmp_path])] == ["with anchor", "without"]


def test_nothing_to_report_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to report: no summary"):
        load_runs([tmp_path])
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").write_text("seed: 0")
    with pytest.raises(UserError, match="not finished"):
        load_runs([tmp_path])
    (tmp_path / "a" / "summary.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        load_runs([tmp_path])


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no folder .*nowhere"):
        load_runs([tmp_path / "nowhere"])


@pytest.mark.parametrize("content", ["{}", "[1]", '{"runs": [{"name": "x"}]}', '{"runs": 3}', '{"runs": ["a"]}'])
def test_a_foreign_index_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "bench.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"bench\.json is not the index of a bench"):
        load_runs([tmp_path])


def test_tables_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "tail.csv"
    path.write_text("after_task,map,k,tail,more\n1,none,2,0.5,\n")
    assert read_table(path) == [{"after_task": 1, "map": "none", "k": 2.0, "tail": 0.5, "more": None}]
    path.write_text("after_task,map,k,tail\n1,none,2,\n")
    with pytest.raises(UserError, match=r"tail.csv is not a table of diagnostics: it lacks 'tail'"):
        read_table(path)
    path.write_text("after_task,map,k,tail\n1,none,2,much\n")
    with pytest.raises(UserError, match=r"tail.csv is not a table of diagnostics: its 'tail' has 'much'"):
        read_table(path)


def short_form(folder: Path, row: str, **more: Any) -> None:
    """Turn a run into the form of `tools/collect.py`: names beside it, no accuracies of classes."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    summary["accuracy_by_class"] = [[] for _ in summary["accuracy_by_class"]]
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    about = {"setting": "digits, 5 tasks", "row": row, **more}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")


class TestReferences:
    def test_have_the_rows_of_their_descriptions(self, fake_run: Callable[..., Any], tmp_path: Path) -> None:
        fake_run(tmp_path / "known" / "a", "gatf")
        short_form(tmp_path / "known" / "a", "gatf, tuned")
        fake_run(tmp_path / "mine", "lwf")
        own = load_runs([tmp_path / "mine"])
        (known,) = load_references([tmp_path / "known"], own)
        assert (known.row, known.reference, own[0].reference) == ("gatf, tuned", True, False)

    def test_a_row_of_ones_own_replaces_the_stored_one(self, fake_run: Callable[..., Any], tmp_path: Path) -> None:
        for row in ("gatf", "lwf"):
            fake_run(tmp_path / "known" / row, row)
            short_form(tmp_path / "known" / row, row)
        fake_run(tmp_path / "mine", "lwf")
        found = load_references([tmp_path / "known"], load_runs([tmp_path / "mine"]))
        assert [run.row for run in found] == ["gatf"]

    def test_of_another_setting_are_refused(self, fake_run: Callable[..., Any], tmp_path: Path) -> None:
        fake_run(tmp_path / "known" / "a", "gatf")
        short_form(tmp_path / "known" / "a", "gatf", setting="cifar100-16px-v2")
        fake_run(tmp_path / "mine", "lwf")
        with pytest.raises(
            UserError, match=r"no run in .*known has the setting digits, 5 tasks: compare with a folder"
        ):
            load_references([tmp_path / "known"], load_runs([tmp_path / "mine"]))

    def test_bring_their_decomposition(self, fake_run: Callable[..., Any], tmp_path: Path) -> None:
        fake_run(tmp_path / "a", "gatf")
        names = ("after_task", "own", "probe", "stored", "joint", "transport", "readout", "representation")
        for name in ("reestimated", "anew"):  # today, and in older files
            (tmp_path / "a" / "explain.json").write_text(json.dumps({"rows": [dict.fromkeys((*names, name), 4)]}))
            assert load_runs([tmp_path / "a"])[0].explained == [dict.fromkeys((*names, "reestimated"), 4)]

    def test_of_older_versions_have_other_names(self, fake_run: Callable[..., Any], tmp_path: Path) -> None:
        fake_run(tmp_path / "a", "gatf", confused=True)
        confusion, plane = tmp_path / "a" / "confusion.csv", tmp_path / "a" / "diagnostics" / "plane.csv"
        now = load_runs([tmp_path / "a"])[0].confusion
        confusion.write_text(confusion.read_text().replace("predicted", "answered"))
        plane.parent.mkdir(exist_ok=True)
        plane.write_text("after_task,class,kind,x,y\n1,0,carried,0.5,0.25\n")
        (run,) = load_runs([tmp_path / "a"])
        assert run.confusion == now != []
        assert run.diagnostics["plane"][0]["kind"] == "transported"

    @pytest.mark.parametrize("content", ["[]", '{"rows": [{"own": 3}]}', '{"rows": 3}', "{"])
    def test_a_foreign_decomposition_is_one_sentence(
        self, fake_run: Callable[..., Any], tmp_path: Path, content: str
    ) -> None:
        fake_run(tmp_path / "a", "gatf")
        (tmp_path / "a" / "explain.json").write_text(content)
        with pytest.raises(UserError, match=r"explain\.json (is no decomposition|cannot be read)"):
            load_runs([tmp_path / "a"])

    def test_a_foreign_description_is_one_sentence(self, fake_run: Callable[..., Any], tmp_path: Path) -> None:
        fake_run(tmp_path / "a", "gatf")
        (tmp_path / "a" / "about.json").write_text("[1]")
        with pytest.raises(UserError, match=r"about\.json does not describe a run"):
            load_runs([tmp_path / "a"])
