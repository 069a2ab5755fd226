"""A search looks only where it may, goes on where it stopped, and gives the same trials again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatf.bench import tune
from gatf.bench.tune import Choice, Range, Search, Tried, accuracy_after_learning, command, parse_space, search
from gatf.config import RunConfig, load_config, parse_overrides
from gatf.errors import Diverged, UserError
from gatf.experiment import Experiment

SPACE = ["method.ridge=0.001..1:log", "method.anchor=[sylvester, identity]", "backbone.width=4..40"]


def by_ridge(config: RunConfig, stop: Callable[[], bool]) -> float:
    """Best at 0.1; stands for training."""
    return 100 - abs(config.method.anchor.ridge - 0.1) * 50  # type: ignore[attr-defined]


def digits(*space: str, **changes: Any) -> Search:
    return Search(load_config("digits", method="gatf"), parse_space(space or SPACE), **changes)


def test_ranges_and_lists() -> None:
    assert parse_space(SPACE) == {
        "method.ridge": Range(0.001, 1, log=True),
        "method.anchor": Choice(("sylvester", "identity")),
        "backbone.width": Range(4, 40, log=False),
    }
    assert parse_space(["optimisation.next.clip=[1, null, true]"])["optimisation.next.clip"] == Choice((1, None, True))
    assert parse_space(["a=5..40"])["a"].whole  # type: ignore[union-attr]
    assert not parse_space(["a=5..40.0"])["a"].whole  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("method.ridge", "--search takes a range or a list"),
        ("method.ridge=1", "a range is LOW..HIGH"),
        ("method.ridge=a..b", "a range is LOW..HIGH"),
        ("method.ridge=0.1..1:lin", "a range is LOW..HIGH"),
        ("method.ridge=1..0.1", "the range is empty"),
        ("method.ridge=0..1:log", "the range is empty, or its logarithm"),
        ("method.ridge=0..inf", "a range is LOW..HIGH"),
        ("method.ridge=[]", "a list may contain numbers"),
        ("method.ridge=[[1]]", "a list may contain numbers"),
        ("method.ridge=[1", "a list may contain numbers"),
        ("data.val_fraction=0.1..0.5", "changes the problem"),
        ("scenario.tasks=2..5", "changes the problem"),
        ("seed=0..9", "changes the problem"),
        ("optimisation.next.lr=0.1..1", "does not depend on optimisation.next.lr: add --learn 2"),
        ("method.rigde=0.1..1", "unknown setting 'method.rigde'; did you mean 'method.anchor.ridge'"),
        ("method.anchor=[sylvester, sylvestre]", "setting 'method.anchor.kind'"),
    ],
)
def test_settings_that_cannot_be_searched_are_reported(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as reported:
        digits(text)
    assert sentence in str(reported.value)


def test_a_trial_is_scored_on_validation_images_of_the_newest_task_only(
    tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images that are looked at, counted: none of a test set, none of an older task."""
    what = Search(tiny_config("ncm"), parse_space(["optimisation.first.lr=0.01..0.1:log"]), tasks=2, val_fraction=0.25)
    config = what.config({"optimisation.first.lr": 0.05})
    plain = Experiment(tiny_config("ncm"))
    looked: list[list[int]] = []
    scored = Experiment._scored

    def spy(self: Experiment, members: Any) -> Any:
        pixels = self.scenario.source.test.take(members).images
        everything = plain.scenario.source.train.images
        assert all(bool((everything == each).flatten(1).all(1).any()) for each in pixels)
        looked.append(sorted(set(self.scenario.labels(self.scenario.source.test)[members].tolist())))
        return scored(self, members)

    monkeypatch.setattr(Experiment, "_scored", spy)
    assert 0 <= accuracy_after_learning(config) <= 100
    assert looked == [[0, 1], [2, 3]]
    assert config.scenario.stop_after == 2
    assert "each of the first 2 tasks, after learning it; test images and those of older" in what.objective


def test_settings_that_are_tried_reach_the_run() -> None:
    config = digits().config({"method.ridge": 0.5, "method.anchor": "identity"})
    assert (config.method.anchor.ridge, config.method.anchor.kind) == (0.5, "identity")  # type: ignore[attr-defined]
    assert (config.data.evaluate_on, config.data.val_fraction) == ("validation", 0.2)


def test_the_command_gives_the_very_settings() -> None:
    words = ["--dataset", "digits", "--set", "method.samples=10"]
    text = command(words, {"method.ridge": 0.0123, "optimisation.next.clip": None, "a.b": True})
    assert text == (
        "gatf run --dataset digits --set method.samples=10 --set method.ridge=0.0123 --set optimisation.next.clip=null "
        "--set a.b=true"
    )
    assert parse_overrides(["a=null", "b=true", "c=0.0123"]) == {"a": None, "b": True, "c": 0.0123}


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(UserError, match=r"gatf-cil\[tune\]"):
        search(digits(), tmp_path / "study", 1)
    assert not (tmp_path / "study").exists()


def test_a_search_finds_what_is_best_and_begins_with_the_defaults(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    reported: list[Tried] = []
    found = search(digits(), tmp_path, 25, score=by_ridge, report=reported.append)
    assert [tried.number for tried in reported] == list(range(1, 26))
    assert reported[0].settings == digits().defaults
    assert found[0].accuracy == max(tried.accuracy for tried in reported)
    assert 0.05 < found[0].settings["method.ridge"] < 0.2
    assert {tried.settings["method.anchor"] for tried in reported} == {"sylvester", "identity"}
    for tried in reported:
        assert float(f"{tried.settings['method.ridge']:.3g}") == tried.settings["method.ridge"]


def test_killed_and_repeated_it_gives_the_same_trials(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    whole = search(digits(), tmp_path / "whole", 14, score=by_ridge)
    calls = 0

    def dies(config: RunConfig, stop: Callable[[], bool]) -> float:
        nonlocal calls
        calls += 1
        if calls in (1, 4, 11):
            raise KeyboardInterrupt
        return by_ridge(config, stop)

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            search(digits(), tmp_path / "parts", 14, score=dies)
    assert search(digits(), tmp_path / "parts", 14, score=dies) == whole
    assert search(digits(), tmp_path / "parts", 14, score=lambda *_: pytest.fail("all is done")) == whole
    more = search(digits(), tmp_path / "parts", 15, score=by_ridge)
    assert {tried.number for tried in more} == set(range(1, 16))


def test_another_search_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    search(digits(), tmp_path, 1, score=by_ridge)
    with pytest.raises(UserError, match=r"contains another search \(tasks\); choose another --out"):
        search(digits(tasks=2), tmp_path, 1, score=by_ridge)


def test_divergence_counts_as_nothing_learnt_and_settings_are_tried_once(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    judged: list[str] = []

    def by_anchor(config: RunConfig, stop: Callable[[], bool]) -> float:
        judged.append(config.method.anchor.kind)  # type: ignore[attr-defined]
        if config.method.anchor.kind == "identity":  # type: ignore[attr-defined]
            raise Diverged("left the finite numbers")
        return 50.0

    found = search(digits("method.anchor=[sylvester, identity]"), tmp_path, 9, score=by_anchor)
    assert sorted(judged) == ["identity", "sylvester"]
    assert len(found) == 9
    assert {(tried.settings["method.anchor"], tried.accuracy, tried.diverged) for tried in found} == {
        ("sylvester", 50.0, False), ("identity", 0.0, True),
    }  # fmt: skip


def test_the_command_line_shows_the_search_and_ends_with_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    from gatf import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune.search, "__kwdefaults__", {**(tune.search.__kwdefaults__ or {}), "score": by_ridge})
    line = [
        "gatf",
        "tune",
        "--trials",
        "3",
        "--method",
        "gatf",
        "--seed",
        "1",
        "--search",
        SPACE[0],
        "--set",
        "method.samples=10",
    ]
    monkeypatch.setattr("sys.argv", line)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (0, None)
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0].startswith(
        "objective: accuracy on validation images (20 % of the training images, held out) of the first"
    )
    assert lines[1].startswith("trial 1/3: ")
    assert "(defaults)" in "".join(lines)
    assert lines[-1].startswith("gatf run --method gatf --seed 1 --set method.samples=10 --set method.ridge=0.")
    assert (tmp_path / "runs" / "tune-digits-gatf" / "study.log").is_file()
