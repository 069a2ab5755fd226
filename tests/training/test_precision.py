"""precision=auto: bfloat16 where the processor computes it in hardware; recipes and models stay in float32."""

import pytest

from gatf.config import load_config
from gatf.incremental.defaults import describe, first_config
from gatf.training import precision
from gatf.training.precision import chosen


def test_a_named_precision_is_used() -> None:
    assert chosen("32-true", "cpu") == ("32-true", None)
    assert chosen("bf16-mixed", "cpu") == ("bf16-mixed", None)


@pytest.mark.parametrize(
    ("flags", "choice"),
    [
        ({"avx2", "avx512_bf16"}, "bf16-mixed"),
        ({"amx_bf16"}, "bf16-mixed"),
        ({"avx512f"}, "32-true"),
        (set(), "32-true"),
    ],
)
def test_auto_depends_on_the_processors_instructions(
    flags: set[str], choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "flags", lambda: flags)
    ability = "computes" if choice == "bf16-mixed" else "does not compute"
    assert chosen("auto", "cpu") == (
        choice,
        f"precision: {choice}, because the processor {ability} bfloat16 in hardware",
    )


def test_recipes_and_models_stay_in_float32_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "flags", lambda: {"avx512_bf16"})
    for recipe in ("digits", "cifar100-16px", "cifar100-t10"):
        assert load_config(recipe, method="gatf").precision == "32-true"
    for overrides, words in (({}, ""), ({"precision": "auto"}, "precision: bf16-mixed, because the processor")):
        config = first_config(method="gatf", shape=(3, 32, 32), images=1000, device="cpu", seed=0, overrides=overrides)
        shown = describe(config, shape=(3, 32, 32), images=1000, first=True, seconds=1)
        assert words in shown
        assert ("precision" in shown) == bool(words)
