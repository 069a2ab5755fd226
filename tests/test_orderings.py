"""The runs behind the page on orderings: still possible, and the page shows what is on record."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from gatf.config import RunConfig, load_config
from gatf.io.run_folder import RunFolder

ROOT = Path(__file__).parent.parent


@pytest.fixture
def orderings(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("orderings")


def test_every_row_can_still_be_run(orderings: ModuleType) -> None:
    """No setting has gone, and no row asks for an oracle that is not there."""
    for row in orderings.ROWS:
        config = load_config(row.dataset, method=row.method, overrides=row.settings)
        assert config.method.name == row.method
        assert row.oracle is None or row.oracle in orderings.ORACLES


def test_every_row_is_on_record_once(orderings: ModuleType) -> None:
    records = json.loads(orderings.RECORD.read_text(encoding="utf-8"))
    wanted = [(row, seed) for row in orderings.ROWS for seed in row.seeds]
    for row, seed in wanted:
        found = [record for record in records if orderings.same(record, row, seed)]
        assert len(found) == 1, f"run tools/orderings.py for {row} with seed {seed}"
        assert 0 <= found[0]["a_last"] <= 100
    for record in records:
        assert any(orderings.same(record, row, seed) for row, seed in wanted), f"nothing asks for {record}"


def test_the_page_shows_the_record(orderings: ModuleType) -> None:
    records = json.loads(orderings.RECORD.read_text(encoding="utf-8"))
    page = orderings.PAGE.read_text(encoding="utf-8")
    for group in {row.group for row in orderings.ROWS}:
        shown = page.split(f"<!-- orderings:{group} -->\n")[1].split(f"<!-- /orderings:{group} -->")[0]
        assert shown == orderings.table(group, records), "run tools/orderings.py"


@pytest.mark.parametrize("method", ["dpcr", "adagauss"])
def test_ending_the_tasks_again_changes_nothing(
    orderings: ModuleType, tiny_config: Callable[..., RunConfig], method: str
) -> None:
    """Without other settings or an oracle, the repeated ends of tasks give what the training gave, note by note."""
    config = tiny_config(method).model_dump(mode="json")
    settings = {section: config[section] for section in ("data", "scenario", "backbone", "optimisation", "method")}
    once = orderings.trained("digits", method, json.dumps(settings))
    again = orderings.replayed(once, {}, None)
    for name in ("a_last", "a_inc", "forgetting", "notes"):
        assert again[name] == once.result[name]


def test_trainings_beside_each_other_share_their_first_task(
    orderings: ModuleType, tiny_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = tiny_config("gatf").model_dump(mode="json")
    base = {section: config[section] for section in ("data", "scenario", "backbone", "optimisation", "method")}
    settings = json.dumps(base | {"method": config["method"] | {"topology": 1.0}})
    alone = orderings.trained("digits", "gatf", settings)
    orderings.trained("digits", "gatf", json.dumps(base), tmp_path)
    shared = orderings.trained("digits", "gatf", settings, tmp_path)
    assert {name: value for name, value in shared.result.items() if name != "cpu_seconds"} == {
        name: value for name, value in alone.result.items() if name != "cpu_seconds"
    }
    taken = [RunFolder(place).read_summary().networks_of for place in tmp_path.iterdir()]
    assert sorted(taken) == [[], [0]]


def test_mean_and_deviation_by_hand(orderings: ModuleType) -> None:
    assert orderings.spread([50.0]) == "50.0"
    assert orderings.spread([40.0, 50.0, 60.0]) == "50.0 ± 10.0"
