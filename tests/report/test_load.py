"""Runs are found in folders, and what cannot be read is told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatf.errors import UserError
from gatf.report.load import load_runs, read_csv


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
    (tmp_path / "t.csv").write_text("task,share,name,none\n1,0.5,a,\n")
    assert read_csv(tmp_path / "t.csv") == [{"task": 1, "share": 0.5, "name": "a", "none": None}]
