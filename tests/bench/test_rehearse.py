"""`gatf bench --rehearse`: every row, short, in a process of its own; hours, memory, and what fails."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

RECIPE = (
    "data: {{name: {data}, max_per_class: 30}}\nscenario: {{tasks: 5, stop_after: 2}}\n"
    "backbone: {{name: small, width: 8, bottleneck: 8}}\n"
    "optimisation: {{first: {{epochs: 2, batch_size: 32}}, next: {{epochs: 2, batch_size: 32}}}}\n"
)


@pytest.mark.parametrize(("data", "code", "said"), [("digits", 0, "peak memory"), ("cifar100", 1, "failed after")])
def test_rehearsal(data: str, code: int, said: str, tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATF_DATA", str(tmp_path / "nothing"))
    (tmp_path / "short.yaml").write_text(RECIPE.format(data=data), encoding="utf-8")
    bench = f"recipe: {tmp_path / 'short.yaml'}\nmethods: [finetune]\nseeds: [0, 1]\n"
    (tmp_path / "bench.yaml").write_text(bench, encoding="utf-8")
    ended, out, _ = call("bench", tmp_path / "bench.yaml", "--rehearse")
    assert ended == code
    assert said in out
    assert f", {code} failed" in out
    assert ("2 runs would take about" in out) == (code == 0)
    assert not (tmp_path / "runs").exists()
