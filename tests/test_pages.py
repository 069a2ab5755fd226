"""Tables of the documentation show what was recorded, and what is recorded of runs is small and complete."""

import importlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from gatf.config import RunConfig
from gatf.experiment import start
from gatf.io.run_folder import RunFolder

ROOT = Path(__file__).parent.parent
Tiny = Callable[..., RunConfig]


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("pages")


@pytest.fixture
def collect(pages: ModuleType) -> ModuleType:
    return importlib.import_module("collect")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, tiny_config: Tiny) -> Path:
    """Two finished runs and one that has just begun, named as a bench of digits names them."""
    folder = tmp_path_factory.mktemp("runs") / "bench-digits"
    start(tiny_config("finetune"), folder / "finetune-seed0")
    start(tiny_config("gatf"), folder / "gatf-seed0")
    RunFolder(folder / "lwf-seed0").create(tiny_config("lwf").to_yaml())
    return folder


def store(root: Path, bench: Path, runs: dict[str, tuple[float, ...]], name: str = "digits") -> None:
    """Stored runs with these A_last by row and seed; all else is that of one real run."""
    summary = json.loads((bench / "gatf-seed0" / "summary.json").read_text(encoding="utf-8"))
    for row, accuracies in runs.items():
        for seed, a_last in enumerate(accuracies):
            folder = root / name / f"{row}-seed{seed}"
            folder.mkdir(parents=True)
            about = {"setting": name, "row": row, "processor": "a chip", "threads": 1, "minutes": 3.0}
            (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
            reported = json.dumps(summary | {"seed": seed, "a_last": a_last})
            (folder / "summary.json").write_text(reported, encoding="utf-8")


def test_collected_runs_are_small_and_complete(
    bench: Path, collect: ModuleType, pages: ModuleType, tmp_path: Path
) -> None:
    done = collect.collect("digits", bench, tmp_path, threads=1, processor="a chip")
    assert set(done) == {"finetune-seed0", "gatf-seed0"}
    files = {path.name: path.stat().st_size for path in (tmp_path / "digits" / "gatf-seed0").iterdir()}
    assert set(files) == {"about.json", "config.yaml", "summary.json", "curves.csv"}
    assert sum(files.values()) < 20_000
    curves = (tmp_path / "digits" / "gatf-seed0" / "curves.csv").read_text(encoding="utf-8").splitlines()
    assert len(curves) == 1 + 3 * 3  # three tasks of three epochs
    summary = RunFolder(bench / "gatf-seed0").read_summary()
    table = pages.leaderboard("digits", tmp_path)
    assert f"| gatf | {summary.a_last:.1f} | {summary.a_inc:.1f} |" in table
    assert re.search(r"Not run yet: .*\blwf\b", table)
    assert "Machines: a chip, 1 thread per run (2 runs)." in table


def test_the_leaderboard_is_sorted_and_has_commands(bench: Path, pages: ModuleType, tmp_path: Path) -> None:
    store(tmp_path, bench, {"lwf": (40.0, 42.0), "gatf plus": (50.0, 51.0), "joint": (90.0,)})
    rows = [line.split(" | ") for line in pages.leaderboard("digits", tmp_path).splitlines()[2:5]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("| joint", "`--methods joint` |"),
        ("| gatf plus", '`--methods "gatf plus"` |'),
        ("| lwf", "`--methods lwf` |"),
    ]


def test_a_stored_table_keeps_the_rows_that_are_not_new(bench: Path, collect: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "digits" / "table.json"
    path.parent.mkdir()
    path.write_text(json.dumps([{"row": "gatf", "seeds": 9}, {"row": "ncm", "seeds": 5}]), encoding="utf-8")
    assert collect.collect_table("digits", bench, tmp_path) == ["finetune", "gatf"]
    rows = {row["row"]: row for row in json.loads(path.read_text(encoding="utf-8"))}
    assert list(rows) == ["gatf", "ncm", "finetune"]
    assert (rows["gatf"]["seeds"], rows["ncm"]) == (1, {"row": "ncm", "seeds": 5})


def test_minutes_include_the_run_whose_networks_were_reused(
    bench: Path, collect: ModuleType, pages: ModuleType, tmp_path: Path
) -> None:
    summary = json.loads((bench / "gatf-seed0" / "summary.json").read_text(encoding="utf-8"))
    runs = {
        "sdc-seed0": {"processor_seconds": [3600.0, 1200.0, 600.0]},
        "adc-seed0": {"processor_seconds": [600.0, 0.0, 0.0], "networks_from": "sdc-seed0"},
        "ldc-seed0": {"processor_seconds": [0.0, 60.0, 60.0], "networks_from": "sdc-seed0", "networks_of": [0]},
    }
    for name, changes in runs.items():
        folder = Path(shutil.copytree(bench / "gatf-seed0", tmp_path / "bench-digits" / name))
        (folder / "summary.json").write_text(json.dumps(summary | changes), encoding="utf-8")
    collect.collect("digits", tmp_path / "bench-digits", tmp_path / "out", threads=1, processor="a chip")
    found = pages.collected("digits", tmp_path / "out")
    assert {each.run.row: each.about["minutes"] for each in found} == {"sdc": 90.0, "adc": 100.0, "ldc": 62.0}
    text = pages.reused(found)
    assert "ldc-seed0 used the network of the first task of sdc-seed0" in text
    assert "adc-seed0 used the networks of sdc-seed0" in text


def test_rows_are_compared_by_common_seeds(
    bench: Path, pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains of 1, 2 and 3 points: t = 2/(1/√3) = 3.46 with two degrees of freedom, of which p is 0.074."""
    store(tmp_path, bench, {"gatf": (51.0, 52.0, 53.0, 99.0), "lwf": (50.0, 50.0, 50.0)})
    text = pages.paired("digits", "gatf", "lwf", tmp_path)
    assert "+1.0, +2.0, +3.0 points; mean +2.0" in text
    assert "p = 0.074" in text
    assert pages.paired("digits", "gatf", "ncm", tmp_path) == f"gatf against ncm: {pages.NOT_RUN}.\n"
    rows = {"topology-aware + MLP, refined": "lwf", "topology-aware + anchor": "gatf"}
    monkeypatch.setattr(pages, "ABLATION", rows)
    assert pages.ablation("digits", tmp_path).splitlines()[2:] == [
        "| topology-aware + MLP, refined | lwf | 3 | 50.0 ± 0.0 | – | – | – |",
        "| topology-aware + anchor | gatf | 4 | 63.8 ± 23.5 | – | +2.0 | +1.7 |",  # 52.0 − 50.3 in the paper
    ]


def test_ranks_are_compared_pair_by_pair(bench: Path, pages: ModuleType, tmp_path: Path) -> None:
    store(tmp_path, bench, {"gatf": (40.0,), "adagauss": (50.0,), "ewc": (10.0,)})
    text = pages.order_sentence("digits", tmp_path)
    assert "2 of 3 pairs of methods have the order" in text
    assert "adagauss 10.0 points above gatf" in text


def test_a_run_counts_for_every_setting_with_its_config(bench: Path, pages: ModuleType, tmp_path: Path) -> None:
    """On CUB-200, `joint` learns one task in either setting; fine-tuning does not."""
    store(tmp_path, bench, {"joint": (50.0,), "finetune": (40.0,)}, pages.PHOTOS)
    lines = {line.split(" | ")[0]: line for line in pages.settings_table(pages.PHOTOS, tmp_path).splitlines()}
    assert pages.NOT_RUN not in lines["| joint"]
    assert lines["| finetune"].count(pages.NOT_RUN) == 2


def test_a_missed_target_is_shown(pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "BENCHMARKS", tmp_path)
    result = {"what": "x", "unit": "MB", "ours": 1234.5, "reference": None, "ratio": None}
    text = json.dumps({"results": [{**result, "target": "ours ≤ 1 MB", "met": False}]})
    (tmp_path / "scoring.json").write_text(text, encoding="utf-8")
    assert pages.comparisons("scoring").splitlines()[2] == (
        "| x (`scoring`) | 1 234 MB | – | – | ours ≤ 1 MB, **missed** |"
    )
    with pytest.raises(SystemExit, match=r"anchor\.json does not exist"):
        pages.comparisons("anchor")


def test_units(pages: ModuleType) -> None:
    assert [pages.duration(each) for each in (7200, 90, 0.25, 2e-6)] == ["2 h", "1.5 min", "250 ms", "2 µs"]
    assert [pages.size(each) for each in (12, 8_576, 3.3e9)] == ["12 B", "8.58 kB", "3.3 GB"]


def test_markers_are_filled_and_unknown_ones_refused(pages: ModuleType) -> None:
    page = "a\n<!-- one -->\nold\n<!-- /one -->\nb\n"
    assert pages.filled(page, {"one": lambda: "new\n"}) == "a\n<!-- one -->\nnew\n<!-- /one -->\nb\n"
    with pytest.raises(SystemExit, match="'one'"):
        pages.filled(page, {})


def test_torture_runs_show_one_date_only(pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of another date are not shown; a smaller run keeps the count of the larger one before it."""
    torture = importlib.import_module("torture")
    monkeypatch.setattr(torture, "OUT", tmp_path / "torture.json")
    monkeypatch.setattr(pages, "BENCHMARKS", tmp_path)
    monkeypatch.setattr(torture, "commit", lambda: "0123abcd")
    crash = {"command": "run", "operations": 70, "tried": 8, "died": 7}
    kills = {"commands": 100, "died": {"run": 100}}
    old = {
        "crashes": {"number": 1000, "date": "2000-01-01", "passed": True, "figures": [{"crashes": crash}]},
        "kills": {"number": 100, "date": "2000-01-01", "passed": True, "figures": [{"kills": kills}]},
    }
    torture.OUT.write_text(json.dumps(old), encoding="utf-8")
    assert "| `gatf run` | 70 | 8 (7) |" in pages.torture_faults()
    kills = {"commands": 6, "died": {"run": 5}}
    torture.record("kills", 6, f"figure: {json.dumps({'kills': kills})}\n1 failed, 2 passed in 3 s", passed=False)
    runs = pages.torture_runs()
    assert "| `kills` | 100 kills | 6 kills | 1 failed | 100 kills, 2000-01-01 |" in runs
    assert runs.startswith("Commit: 0123abcd.\n")
    assert "| `crashes` | all operations | – | not run: `make torture TORTURE=crashes` |" in runs
    faults = pages.torture_faults()
    assert "5 in 6 commands" in faults
    assert "gatf run` | 70" not in faults
    assert "Not run on" in pages.server_attacks()
    assert "Not run on" in pages.server_load()
