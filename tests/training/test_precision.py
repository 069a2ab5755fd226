"""precision=auto: tried once in a process that may die, remembered, and told."""

import json
from pathlib import Path

import pytest

from gatf.config import load_config
from gatf.incremental.defaults import describe, first_config
from gatf.settings import BackboneConfig
from gatf.training import precision
from gatf.training.precision import Trial, chosen, tried

SMALL = BackboneConfig(name="small", width=4, bottleneck=4)
SHAPE = (1, 8, 8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATF_CACHE", str(tmp_path))
    monkeypatch.setattr(precision.torch.cuda, "is_available", lambda: False)
    return tmp_path


def ask(wanted: str = "auto") -> tuple[str, str | None]:
    return chosen(wanted, "cpu", backbone=SMALL, shape=SHAPE, batch=4)


def test_what_is_asked_for_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_try_in_another_process", lambda question: pytest.fail("nothing was to be tried"))
    assert ask("32-true") == ("32-true", None)
    assert ask("bf16-mixed") == ("bf16-mixed", None)


@pytest.mark.parametrize(("half", "choice"), [(0.5, "bf16-mixed"), (0.95, "32-true"), (2.0, "32-true")])
def test_bfloat16_must_be_clearly_faster(half: float, choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def attempt(question: str) -> Trial:
        tries.append(json.loads(question))
        return Trial(1.0, half)

    monkeypatch.setattr(precision, "_try_in_another_process", attempt)
    assert (
        ask()
        == ask()
        == (choice, f"precision: {choice}, because a step takes {half:.2f} of float32's time in bfloat16")
    )
    assert len(tries) == 1  # remembered
    tried(SMALL, SHAPE, 8)
    assert [each["batch"] for each in tries] == [4, 8]


def test_a_trial_that_dies_leaves_float32(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\nkill -ILL $$\n")
    dying.chmod(0o755)
    monkeypatch.setattr(precision.sys, "executable", str(dying))
    assert ask() == ("32-true", "precision: 32-true, because the trial of bfloat16 was killed by SIGILL")
    assert len(list(own_cache.glob("precision-*.json"))) == 1


def test_a_real_trial_has_two_times_and_a_damaged_memory_is_made_again(own_cache: Path) -> None:
    first = tried(SMALL, SHAPE, 4)
    assert first.failed is None
    assert first.float32 is not None
    assert first.bfloat16 is not None
    assert min(first.float32, first.bfloat16) > 0
    (path,) = own_cache.glob("precision-*.json")
    assert Trial(**json.loads(path.read_text())) == first
    path.write_text("{")
    assert tried(SMALL, SHAPE, 4).failed is None


def test_recipes_and_models_stay_in_float32_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_try_in_another_process", lambda question: Trial(1.0, 0.5))
    for recipe in ("digits", "cifar100-16px", "cifar100-t10"):
        assert load_config(recipe, method="gatf").precision == "32-true"
    for overrides, words in (({}, ""), ({"precision": "auto"}, "precision: bf16-mixed, because a step takes 0.50")):
        config = first_config(method="gatf", shape=(3, 32, 32), images=1000, device="cpu", seed=0, overrides=overrides)
        told = describe(config, shape=(3, 32, 32), images=1000, first=True)
        assert words in told
        assert ("precision" in told) == bool(words)
