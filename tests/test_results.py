"""What is committed of runs is small and enough for the results page; the study of maps errs where it should."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gatf.config import RunConfig
from gatf.errors import UserError
from gatf.experiment import start
from gatf.io.run_folder import RunFolder
from gatf.report.points import explain_run

ROOT = Path(__file__).parent.parent
Load = Callable[[str], ModuleType]
Tiny = Callable[..., RunConfig]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    for folder in ("benchmarks", "tools"):
        monkeypatch.syspath_prepend(ROOT / folder)
    return importlib.import_module


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, tiny_config: Tiny) -> Path:
    """Two finished runs and one that has just begun, where a bench of digits would have them."""
    folder = tmp_path_factory.mktemp("runs") / "bench-digits"
    start(tiny_config("finetune"), folder / "finetune-seed0")
    start(tiny_config("gatf", keep_networks=True), folder / "gatf-seed0")
    explain_run(folder / "gatf-seed0")
    RunFolder(folder / "lwf-seed0").create(tiny_config("lwf").to_yaml())
    return folder


def test_what_is_collected_is_small_and_enough(bench: Path, load: Load, tmp_path: Path) -> None:
    collect, results = load("collect"), load("results")
    assert set(collect.collect(bench, tmp_path, threads=1, processor="a chip")) == {"finetune-seed0", "gatf-seed0"}
    assert results.borrowed("digits", tmp_path) == ""
    files = {path.name: path.stat().st_size for path in (tmp_path / "digits" / "gatf-seed0").iterdir()}
    assert set(files) == {"about.json", "config.yaml", "summary.json", "curves.csv", "explain.json"}
    assert sum(files.values()) < 20_000
    assert not (tmp_path / "digits" / "finetune-seed0" / "explain.json").exists()
    curves = (tmp_path / "digits" / "gatf-seed0" / "curves.csv").read_text(encoding="utf-8").splitlines()
    assert len(curves) == 1 + 3 * 3  # three tasks of three epochs
    one, other = results.read("digits", tmp_path)
    assert (one.run.row, other.run.row) == ("finetune", "gatf")
    assert other.run.summary.accuracy_seen == pytest.approx(
        RunFolder(bench / "gatf-seed0").read_summary().accuracy_seen, abs=1e-4
    )
    assert other.about["processor"] == "a chip"


def test_refining_is_measured_on_the_same_networks(load: Load, tiny_config: Tiny, tmp_path: Path) -> None:
    unrefined, results = load("unrefined"), load("results")
    assert results.refining_told("digits", tmp_path) == ""
    folder, out = tmp_path / "refined-seed0", tmp_path / "digits" / results.UNREFINED
    out.parent.mkdir()
    start(tiny_config("gatf", **{"method.refine": True}, keep_networks=True), folder)
    for _ in range(2):  # the second time replaces the first
        unrefined.main([folder], out)
    (row,) = json.loads(out.read_text(encoding="utf-8"))
    before = start(tiny_config("gatf"), tmp_path / "gatf")
    assert row["before"] == {"a_last": round(before.a_last, 4), "a_inc": round(before.a_inc, 4)}
    refined = RunFolder(folder).read_summary().a_last
    assert f"seed 0: {refined - before.a_last:+.2f} (" in results.refining_told("digits", tmp_path)
    with pytest.raises(UserError, match="has not refined"):
        unrefined.unrefined(tmp_path / "gatf")


def test_tables_name_what_is_missing(bench: Path, load: Load, tmp_path: Path) -> None:
    collect, results = load("collect"), load("results")
    assert results.accuracy_table("digits", tmp_path).count(results.NOT_YET) == 19
    assert results.NOT_YET in results.losses_table("digits", tmp_path)
    assert results.NOT_YET in results.transports_table("digits", tmp_path)
    assert results.NOT_YET in results.order_table("digits", tmp_path)
    assert results.draw("digits", tmp_path, tmp_path / "img") == []
    collect.collect(bench, tmp_path, threads=1, processor="a chip")
    table = results.accuracy_table("digits", tmp_path)
    assert table.count(results.NOT_YET) == 17
    summary = RunFolder(bench / "gatf-seed0").read_summary()
    assert f"| gatf | 1 | {summary.a_last:.1f} | {summary.a_inc:.1f} |" in table
    assert "| gatf | " in results.losses_table("digits", tmp_path)
    other = RunFolder(bench / "finetune-seed0").read_summary().a_last
    lost = results.losses("digits", tmp_path)["gatf"]["transport"]
    assert summary.a_last > other
    assert results.ranked("digits", tmp_path) == f"gatf {summary.a_last:.1f} ({lost:.1f}); finetune {other:.1f}"
    (picture,) = results.draw("digits", tmp_path, tmp_path / "img")
    assert picture.name == "digits.png"


def test_pairs_out_of_the_papers_order_have_their_reason(load: Load) -> None:
    explained = {"gatf": {"own": 26.0, "probe": 27.5}, "dpcr": {"own": 28.4, "probe": 38.8}}
    reasons = load("results").reasons
    told = reasons([(2.4, "gatf", "dpcr"), (1.0, "efc", "dpcr")], explained)
    assert told.splitlines()[-2:] == ["| dpcr | 38.8 | 10.4 |", "| gatf | 27.5 | 1.5 |"]
    assert reasons([(1.0, "efc", "dpcr")], explained) == ""


def test_two_rows_are_compared_by_seeds_that_both_have(
    bench: Path, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains of 1, 2 and 3 points: t = 2/(1/√3) = 3.46 with two degrees of freedom, of which p is 0.074."""
    results = load("results")
    summary = json.loads((bench / "gatf-seed0" / "summary.json").read_text(encoding="utf-8"))
    assert results.paired("digits", "gatf", "lwf", tmp_path) == f"gatf against lwf: {results.NOT_YET}.\n"
    for row, accuracies in {"gatf": (51.0, 52.0, 53.0, 99.0), "lwf": (50.0, 50.0, 50.0)}.items():
        for seed, a_last in enumerate(accuracies):
            folder = tmp_path / "digits" / f"{row}-seed{seed}"
            folder.mkdir(parents=True)
            (folder / "about.json").write_text(json.dumps({"setting": "digits", "row": row}), encoding="utf-8")
            told = json.dumps(summary | {"seed": seed, "a_last": a_last})
            (folder / "summary.json").write_text(told, encoding="utf-8")
    monkeypatch.setattr(
        results, "ABLATION", {"topology-aware + MLP, refined": "lwf", "topology-aware + anchor": "gatf"}
    )
    first, second = results.ablation_table("digits", tmp_path).splitlines()[2:]
    assert first == "| topology-aware + MLP, refined | lwf | 3 | 50.0 ± 0.0 | – | – | – |"
    assert second == "| topology-aware + anchor | gatf | 4 | 63.8 ± 23.5 | – | +2.0 (3) | +1.7 |"  # 52.0 - 50.3 there
    told = results.paired("digits", "gatf", "lwf", tmp_path)
    assert "+1.0, +2.0, +3.0 points, +2.0 in the mean" in told
    assert "p = 0.074" in told


def test_one_run_counts_for_all_settings_that_have_its_config(bench: Path, load: Load, tmp_path: Path) -> None:
    """On CUB-200, `joint` learns one task in either setting; fine-tuning does not."""
    results = load("results")
    summary = json.dumps(json.loads((bench / "gatf-seed0" / "summary.json").read_text(encoding="utf-8")))
    for row in ("joint", "finetune"):
        folder = tmp_path / results.PHOTOS / results.PHOTOS / f"{row}-seed0"
        folder.mkdir(parents=True)
        about = {"bench": results.PHOTOS, "setting": results.PHOTOS, "row": row, "seed": 0}
        (folder / results.ABOUT).write_text(json.dumps(about), encoding="utf-8")
        (folder / results.SUMMARY).write_text(summary, encoding="utf-8")
    lines = {line.split(" | ")[0]: line for line in results.settings_table(results.PHOTOS, tmp_path).splitlines()}
    assert results.NOT_YET not in lines["| joint"]
    assert lines["| finetune"].count(results.NOT_YET) == 2


def test_the_order_is_compared_pair_by_pair(load: Load, tmp_path: Path, bench: Path) -> None:
    """In the paper gatf is above adagauss and that above ewc; here adagauss leads."""
    collect, results = load("collect"), load("results")
    collect.collect(bench, tmp_path, threads=1, processor="a chip")
    source = tmp_path / "digits" / "gatf-seed0"
    for row, a_last in (("gatf", 50.0), ("adagauss", 60.0), ("ewc", 10.0)):
        target = tmp_path / "digits" / f"{row}-seed0"
        target.mkdir(exist_ok=True)
        about = json.loads((source / "about.json").read_text(encoding="utf-8")) | {"row": row}
        summary = json.loads((source / "summary.json").read_text(encoding="utf-8")) | {"a_last": a_last}
        (target / "about.json").write_text(json.dumps(about), encoding="utf-8")
        (target / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    text = results.order_table("digits", tmp_path)
    assert "| gatf | 1 | 2 |\n| adagauss | 2 | 1 |\n| ewc | 3 | 3 |" in text
    assert "Of 3 pairs of methods, 2 are in the order of the paper's Table 1." in text
    assert "adagauss 10.0 points above gatf" in text


@pytest.fixture
def quick(load: Load, monkeypatch: pytest.MonkeyPatch) -> Any:
    transports = load("transports")
    monkeypatch.setattr(transports, "PASSES", 1)
    monkeypatch.setattr(transports, "VIEWS", 1)
    return transports


def test_where_nothing_moved_doing_nothing_is_exact(bench: Path, quick: Any) -> None:
    """One network for all tasks: no map, a translation and the anchor towards the identity change nothing; the paper's
    anchor shrinks by 1/(1 + ρ), which shows; and what is carried answers as what is measured anew."""
    networks = quick.Networks(bench / "gatf-seed0")
    networks.nets = [networks.nets[-1]] * 3
    rows = {row["map"]: row for row in quick.study(networks)}
    assert set(rows) == {*quick.MAPS, "the run's own", "measured anew"}
    for name in ("none", "translation", "towards identity"):
        assert rows[name]["step_error"] < 1e-5
        assert rows[name]["chain_error"] < 1e-5
        assert max(rows[name]["tail"]) < 1e-9
        assert rows[name]["a_last"] == rows["measured anew"]["a_last"]
        assert rows[name]["old_to_new"] == rows["measured anew"]["old_to_new"]
    assert 1e-4 < rows["Sylvester"]["chain_error"] < 0.2
    assert rows["MLP alone"]["chain_error"] > rows["Sylvester"]["chain_error"]


def test_ideas_tried_where_nothing_moved_answer_as_what_is_measured_anew(bench: Path, quick: Any, load: Load) -> None:
    tried = load("tried")
    networks = quick.Networks(bench / "gatf-seed0")
    networks.nets = [networks.nets[-1]] * 3
    rows = {row["what"]: row for row in tried.study(networks)}
    anchor, anew = rows["anchor towards identity"], rows[tried.ANEW]
    assert anchor["step_error"] < 1e-5
    assert (anchor["bayes"], anchor["components"]) == (anew["bayes"], 1.0)
    assert rows["2 Gaussians per class"]["components"] == 2.0
    assert 1 <= rows["1 to 4 Gaussians per class, by BIC"]["components"] <= 4
    records = [{"data": "digits", "seed": 0, **row} for row in rows.values()]
    assert tried.table(records).count("\n") == 2 + len(rows)


def test_errors_by_hand(quick: Any) -> None:
    """Two classes of variance 4 along one axis, carried 2 too far: one standard deviation."""
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 2
    new = torch.randn(400, 2, generator=draws, dtype=torch.float64)
    for number in (0, 1):  # exact moments within each class
        own = new[labels == number]
        own = own - own.mean(0)
        lower = torch.linalg.cholesky(torch.cov(own.T))
        new[labels == number] = torch.linalg.solve_triangular(lower, own.T, upper=False).T
    new = new * torch.tensor([2.0, 1.0]) + 10 * labels[:, None]
    transported = new + torch.tensor([2.0, 0.0])
    assert quick.class_errors(transported, new, labels) == pytest.approx(1, rel=0.01)
    sizes = quick.image_errors(transported, new, labels)
    assert list(sizes.values()) == pytest.approx([2**-0.5] * len(sizes), rel=0.01)


def test_the_record_and_what_it_needs(bench: Path, quick: Any, load: Load, tmp_path: Path) -> None:
    quick.main(bench / "gatf-seed0", tmp_path / "digits" / "transports.json")
    record = json.loads((tmp_path / "digits" / "transports.json").read_text(encoding="utf-8"))
    own = {row["map"]: row for row in record["rows"]}["the run's own"]
    assert own["a_last"] == pytest.approx(RunFolder(bench / "gatf-seed0").read_summary().a_last, rel=1e-4)
    results = load("results")
    assert results.transports_table("digits", tmp_path).count("\n") == 2 + len(record["rows"])
    (picture,) = results.draw("digits", tmp_path, tmp_path / "img")
    assert picture.name == "digits-transports.png"
    with pytest.raises(UserError, match="keep_networks=true"):
        quick.Networks(bench / "finetune-seed0")


def test_smaller_errors_certify_more(bench: Path, load: Load, tmp_path: Path) -> None:
    certified, results = load("certified"), load("results")
    certified.main(bench / "gatf-seed0", tmp_path / "digits" / "certified.json")
    rows = json.loads((tmp_path / "digits" / "certified.json").read_text(encoding="utf-8"))["rows"]
    for name in ("certified", "whitened", "range", "range_shrunk"):
        assert [row[name] for row in rows] == sorted(row[name] for row in rows)
    assert all(row["certified"] <= row["whitened"] <= row["range"] for row in rows)
    assert rows[-1]["range"] > rows[0]["range"]
    assert rows[0]["eta_mean_whitened"] == pytest.approx(100 * rows[-2]["eta_mean_whitened"], rel=1e-3)
    assert "| ÷ 100 |" in results.certified_table("digits", tmp_path)
    with pytest.raises(UserError, match="stores no Gaussians"):
        certified.shares(bench / "finetune-seed0")


def test_what_turned_copies_say_together(load: Load) -> None:
    """Two images, two classes: of the copy turned k times, the two logits of turn k, averaged over k."""
    turned = torch.zeros(8, 8)
    for turn in range(4):
        turned[2 * turn, 2 * turn : 2 * turn + 2] = torch.tensor([4.0, turn])
        turned[2 * turn + 1, 2 * turn : 2 * turn + 2] = torch.tensor([-1.0, 8.0])
    turned[0, 5] = turned[7, 0] = 100.0  # another turn's columns say nothing
    assert load("rotations").agreed(turned, 2).tolist() == [[4.0, 1.5], [-1.0, 8.0]]


def test_minutes_of_a_run_that_trained_nothing_are_with_those_of_its_networks(
    tmp_path: Path, tiny_config: Tiny, load: Load
) -> None:
    collect, results, bench = load("collect"), load("results"), tmp_path / "bench-digits"
    start(tiny_config("sdc", keep_networks=True), bench / "sdc-seed0")
    start(tiny_config("adc"), bench / "adc-seed0", networks_from=bench / "sdc-seed0")
    start(tiny_config("ldc"), bench / "ldc-seed0", networks_from=bench / "sdc-seed0")
    spent = {"sdc-seed0": [3600.0, 1200.0, 600.0], "adc-seed0": [600.0, 0.0, 0.0], "ldc-seed0": [0.0, 60.0, 60.0]}
    for name, seconds in spent.items():
        summary = json.loads((bench / name / "summary.json").read_text()) | {"processor_seconds": seconds}
        summary |= {"networks_of": [0]} if name == "ldc-seed0" else {}
        (bench / name / "summary.json").write_text(json.dumps(summary))
    collect.collect(bench, tmp_path / "out", threads=1, processor="a chip")
    minutes = {each.run.row: each.about["minutes"] for each in results.read("digits", tmp_path / "out")}
    assert minutes == {"sdc": 90.0, "adc": 100.0, "ldc": 62.0}
    told = results.borrowed("digits", tmp_path / "out")
    assert "ldc-seed0 took the first task's network of sdc-seed0; adc-seed0 took the networks of sdc-seed0." in told
