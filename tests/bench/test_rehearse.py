"""`gatf bench --rehearse`: every row, short, in a process of its own; hours, memory, and what fails."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gatf.bench import probe
from gatf.bench.plan import load_plan
from gatf.config import RunConfig

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


def test_plan_of_a_scenario_of_domains(tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its test images belong to tasks of their own, also the few that the estimate scores."""
    monkeypatch.chdir(tmp_path)
    recipe = "data: {name: glyphs, glyphs: {classes: 4, size: 8}}\nscenario: {domains: [original, night]}\n"
    stages = "optimisation: {first: {batch_size: 8}, next: {batch_size: 8}}\n"
    (tmp_path / "short.yaml").write_text(recipe + stages + "backbone: {name: small, width: 8}\n", encoding="utf-8")
    bench = f"recipe: {tmp_path / 'short.yaml'}\nmethods: [ncm]\nseeds: [0]\n"
    (tmp_path / "bench.yaml").write_text(bench, encoding="utf-8")
    code, out, err = call("bench", tmp_path / "bench.yaml", "--dry-run")
    assert (code, err) == (0, "")
    assert "1 run into" in out


def rehearsed_with(isolated: str, folder: Path, monkeypatch: pytest.MonkeyPatch, call: Any) -> tuple[int, str]:
    """Exit code and output where this code replaces a row's process, which must be able to import it."""
    (folder / "rehearsed_here.py").write_text(f"def isolated(config, part):\n    {isolated}\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "rehearsed_here", raising=False)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(probe, "_isolated", importlib.import_module("rehearsed_here").isolated)
    code, out, _ = call("bench", "digits", "--methods", "finetune", "--seeds", "0", "--rehearse")
    return code, " ".join(out.split())


def test_a_killed_process_is_reported_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    code, out = rehearsed_with(killed, tmp_path, monkeypatch, call)
    assert code == 1
    assert "the system killed its process, as it does when memory runs out" in out


def test_what_does_not_fit_is_estimated_with_a_part_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    large = "assert part > 4 or exec('raise MemoryError()')\n    return 60.0, 8192.0"
    code, out = rehearsed_with(large, tmp_path, monkeypatch, call)
    assert code == 1
    assert "60 s per run, peak memory 8.0 GB, does not fit here: estimated with 1/16 of the batch" in out
    assert "1 rows rehearsed" in out
    assert "0 failed, 1 do not fit into memory" in out


def test_memory_is_extrapolated_to_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 GB, and 16 MB for each image of a batch. The bottleneck shrinks with it: gatf needs it to be smaller."""
    run = probe._short_run

    def measured(config: RunConfig) -> Any:
        experiment, short, events = run(config)
        memory = 1024.0 + 16 * config.optimisation.first.batch_size
        return experiment, replace(short, peak_memory_mb=[memory] * short.tasks), events

    monkeypatch.setattr(probe, "_short_run", measured)
    sizes = {f"optimisation.{stage}.batch_size": 128 for stage in ("first", "next")}
    small = {"backbone.name": "small", "backbone.width": 8, "backbone.bottleneck": 32}
    config = load_plan("digits", methods="gatf", overrides={**sizes, **small, "device": "cpu"}).runs[0].config.to_yaml()
    assert probe.measured(config, steps=1, part=4)[1] == pytest.approx(1024 + 16 * 128)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports available memory")
def test_a_row_cannot_use_more_memory_than_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    limits: list[Any] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: limits.append((kind, limit)))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2**62, -1))
    probe.limit_memory()
    ((kind, (soft, hard)),) = limits
    assert (kind, hard) == (resource.RLIMIT_DATA, -1)
    assert 2**20 < soft < 2**62
