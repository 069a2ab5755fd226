"""A watched run gives the same bits, its tables are complete, and a resumed one writes the same tables."""

import csv
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gatf.config import RunConfig
from gatf.experiment import Experiment, resume, start
from gatf.io import container
from gatf.io.events import Epoch, Event
from gatf.training.loop import Interrupted

Tiny = Callable[..., RunConfig]
TABLES = {
    "drift", "tail", "plane", "confusion", "margins", "errors", "spectra", "certified", "accuracy", "class_accuracy",
}  # fmt: skip


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "diagnostics" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module", params=["gatf", "adagauss"])
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_config: Tiny) -> Path:
    folder = tmp_path_factory.mktemp("watched") / request.param
    start(tiny_config(request.param, diagnostics=True), folder)
    return folder


def test_a_watched_run_gives_the_same_bits(watched: Path, tmp_path: Path, tiny_config: Tiny) -> None:
    state = torch.random.get_rng_state()
    start(tiny_config(watched.name), tmp_path / "alone")
    assert torch.equal(torch.random.get_rng_state(), state)
    seen, _ = container.read(watched / "model.safetensors")
    alone, _ = container.read(tmp_path / "alone" / "model.safetensors")
    assert seen.keys() == alone.keys()
    assert all(torch.equal(seen[name], alone[name]) for name in seen)
    for name in ("accuracy_matrix", "accuracy_by_class", "old_to_new"):
        assert json.loads((watched / "summary.json").read_text())[name] == json.loads(
            (tmp_path / "alone" / "summary.json").read_text()
        )[name]  # fmt: skip
    assert not (tmp_path / "alone" / "diagnostics").exists()


def test_every_table_is_there(watched: Path) -> None:
    assert {path.stem for path in (watched / "diagnostics").glob("*.csv")} == TABLES
    drift = table(watched, "drift")
    assert {(row["task"], row["past_task"]) for row in drift} == {("1", "0"), ("2", "0"), ("2", "1")}
    phases = 1 if watched.name == "gatf" else 1 + 1 / 3  # AdaGauss has an adapter phase of one epoch
    assert [row["epoch"] for row in drift if row["task"] == "1"] == [str(e) for e in range(4, 4 + round(3 * phases))]
    assert len(table(watched, "errors")) == 2 + 4 + 6
    assert {row["map"] for row in table(watched, "tail")} == {"none", "transported"}
    assert {row["form"] for row in table(watched, "margins")} == {"score", "mahalanobis", "likelihood"}
    assert [row["after_task"] for row in table(watched, "certified")] == ["0", "1", "2"]


def test_tables_agree_with_the_summary_and_with_what_is_known(watched: Path) -> None:
    summary = json.loads((watched / "summary.json").read_text(encoding="utf-8"))
    for row in table(watched, "confusion"):
        right = summary["accuracy_matrix"][int(row["after_task"])][int(row["past_task"])]
        assert 100 * float(row["right"]) == pytest.approx(right)
    for name, column, key in (
        ("accuracy", "past_task", "accuracy_matrix"),
        ("class_accuracy", "class", "accuracy_by_class"),
    ):
        rows = table(watched, name)
        assert len(rows) == sum(map(len, summary[key]))
        for row in rows:
            reported = summary[key][int(row["after_task"])][int(row[column])]
            assert 100 * float(row["accuracy"]) == pytest.approx(reported)
    for row in table(watched, "errors"):
        if row["after_task"] == row["past_task"]:  # just learnt, nothing was transported: float32 storage alone
            assert float(row["mean_l2"]) < 1e-5
            assert float(row["cov_relative"]) < 1e-5
        else:
            assert float(row["mean_l2"]) > 1e-3


def test_a_resumed_run_writes_the_same_tables(watched: Path, tmp_path: Path, tiny_config: Tiny) -> None:
    taken = 0

    def stop_later(event: Event) -> None:
        nonlocal taken
        taken += isinstance(event, Epoch)
        if isinstance(event, Epoch) and taken == 5:  # in the middle of task 1
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        start(tiny_config(watched.name, diagnostics=True), tmp_path / "run", (stop_later,))
    resume(tmp_path / "run")
    for name in TABLES:
        assert table(tmp_path / "run", name) == table(watched, name), name


@pytest.mark.parametrize("method", ["pass", "sdc", "dpcr"])
def test_what_was_just_learnt_has_no_error(method: str, tmp_path: Path, tiny_config: Tiny) -> None:
    """These keep the means of plain images, which are not compared with means that count mirror images."""
    one_task = {"scenario.stop_after": 2, "optimisation.first.epochs": 1, "optimisation.next.epochs": 1}
    start(tiny_config(method, diagnostics=True, **one_task), tmp_path / "run")
    for row in table(tmp_path / "run", "errors"):
        if row["after_task"] == row["past_task"]:
            assert float(row["drift"]) < 1e-4


def test_methods_that_keep_means_alone(tmp_path: Path, tiny_config: Tiny) -> None:
    start(tiny_config("sdc", diagnostics=True), tmp_path / "run")
    assert {path.stem for path in (tmp_path / "run" / "diagnostics").glob("*.csv")} == {
        "tail", "plane", "confusion", "margins", "drift", "errors", "accuracy", "class_accuracy",
    }  # fmt: skip
    assert "symmetric_kl" not in table(tmp_path / "run", "errors")[0]
    assert max(float(row["mean_l2"]) for row in table(tmp_path / "run", "errors")) > 0


def test_methods_without_prototypes_are_watched_too(tmp_path: Path, tiny_config: Tiny) -> None:
    start(tiny_config("finetune", diagnostics=True), tmp_path / "run")
    assert {path.stem for path in (tmp_path / "run" / "diagnostics").glob("*.csv")} == {
        "tail", "plane", "confusion", "margins", "accuracy", "class_accuracy",
    }  # fmt: skip
    assert {row["map"] for row in table(tmp_path / "run", "tail")} == {"none"}


def test_the_observer_is_the_only_one_who_sees_old_images(tiny_config: Tiny) -> None:
    """Nothing that a method holds leads to the data of diagnostics."""
    method = Experiment(tiny_config("gatf", diagnostics=True)).method
    held = [type(value).__name__ for value in vars(method).values()]
    assert "DiagnosticsData" not in held
    assert "Scenario" not in held
