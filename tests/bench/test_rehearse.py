"""`gatf bench --rehearse`: every row, short, in a process of its own; hours, memory, and what fails."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gatf.bench import probe
from gatf.bench.plan import load_plan
from gatf.config import validated
from gatf.experiment import Experiment
from gatf.io.events import Epoch
from gatf.io.parsing import parse_yaml
from gatf.io.run_folder import RunFolder
from gatf.nets.small import SmallNet

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
    large = "assert part > 4 or exec('raise MemoryError()')\n    return 60.0, 8192.0, 30.0"
    code, out = rehearsed_with(large, tmp_path, monkeypatch, call)
    assert code == 1
    assert "60 s per run, peak memory 8.0 GB, does not fit here: estimated with 1/16 of the batch" in out
    assert "1 rows rehearsed" in out
    assert "0 failed, 1 do not fit into memory" in out


def config_of(method: str, **stage: Any) -> str:
    """A config of digits as the process of a row receives it."""
    stages = {f"optimisation.{name}.{key}": value for name in ("first", "next") for key, value in stage.items()}
    small = {"backbone.name": "small", "backbone.width": 8, "backbone.bottleneck": 32, "device": "cpu"}
    return load_plan("digits", methods=method, overrides=stages | small).runs[0].config.to_yaml()


def test_memory_is_extrapolated_to_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 GB, and 16 MB for each image of a batch. The bottleneck shrinks with it: gatf needs it to be smaller."""
    run = Experiment.run

    def measured(self: Experiment, *rest: Any) -> Any:
        summary = run(self, *rest)
        memory = 1024.0 + 16 * self.config.optimisation.first.batch_size
        return replace(summary, peak_memory_mb=[memory] * summary.tasks)

    monkeypatch.setattr(Experiment, "run", measured)
    assert probe.measured(config_of("gatf", batch_size=128), steps=1, part=4)[1] == pytest.approx(1024 + 16 * 128)


def test_a_rehearsal_trains_one_whole_batch_and_sees_few_images_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two images per class fill the batch again and again; statistics and evaluation see each of them once."""
    trained, others = [], []
    forward = SmallNet.forward

    def watched(self: SmallNet, images: Tensor) -> Tensor:
        (trained if torch.is_grad_enabled() else others).append(len(images))
        return forward(self, images)

    monkeypatch.setattr(SmallNet, "forward", watched)
    probe.measured(config_of("finetune", batch_size=64, warmup=0.5, epochs=10), steps=1, few=2)
    assert trained == [64, 64]  # one step in each of two tasks
    assert sum(others) < 64


def test_an_estimate_counts_the_epochs_of_every_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each epoch of the short run takes one second for 64 images. gatf refines its map in half of a task's epochs."""
    read = RunFolder.read_events

    def one_second(self: RunFolder) -> list[Any]:
        return [replace(event, seconds=1.0) if isinstance(event, Epoch) else event for event in read(self)]

    monkeypatch.setattr(RunFolder, "read_events", one_second)
    config = config_of("gatf", batch_size=64, epochs=20).replace("refine: false", "refine: true")
    images = [Experiment(validated(parse_yaml(config))).task_info(task).images for task in range(5)]
    loaded = [16, 64, 64, 64, 64]  # four rotations of each image of task 0
    seconds = sum(20 * count / batch for count, batch in zip(images, loaded, strict=True))
    seconds += sum(10 * count / 64 for count in images[1:])
    assert probe.measured(config, steps=1, few=2)[0] == pytest.approx(seconds, rel=0.01)


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
