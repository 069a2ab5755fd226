"""How the runs of a bench share GPUs, with processes and a cluster that only record what they are asked for."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from gatf.bench import executors
from gatf.bench.plan import load_plan
from gatf.errors import UserError


def test_parallel_runs_take_gpus_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def begin(command: list[str], env: dict[str, str], **options: Any) -> Mock:
        shown.append(env["CUDA_VISIBLE_DEVICES"])
        return Mock(returncode=0, communicate=lambda: ("", ""))

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(executors.subprocess, "Popen", begin)
    watcher = Mock()
    executors.Processes(3).execute(load_plan("digits", methods="finetune", seeds="0-2").runs, tmp_path, watcher)
    assert shown == ["0", "1", "0"]
    assert watcher.finished.call_count == 3


@pytest.mark.parametrize(
    ("asked", "there", "device", "expected"),
    [(None, 2, "auto", 1.0), (None, 0, "auto", 0.0), (None, 2, "cpu", 0.0), (0.25, 2, "auto", 0.25)],
)
def test_a_cluster_is_asked_for_gpus(
    asked: float | None, there: int, device: str, expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {}

    def remote(**wanted: Any) -> Any:
        options.update(wanted)
        return lambda function: SimpleNamespace(remote=lambda *arguments: object())

    ray = Mock(remote=remote, wait=lambda running, timeout: (running, []), exceptions=Mock(RayError=RuntimeError))
    ray.cluster_resources.return_value = {"GPU": float(there)}
    monkeypatch.setitem(sys.modules, "ray", ray)
    plan = load_plan("digits", methods="finetune", seeds="0", overrides={"device": device})
    executors.RayCluster(gpus=asked).execute(plan.runs, tmp_path, Mock())
    assert options["num_gpus"] == expected


def test_a_cluster_that_does_not_answer_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Mock(init=Mock(side_effect=Exception("The node timed out.\nMore.")))
    ray.is_initialized.return_value = False
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(UserError, match=r"^no Ray cluster answers at 10.0.0.1: The node timed out\.$"):
        executors.RayCluster("10.0.0.1").execute([], tmp_path, Mock())
    with pytest.raises(UserError, match=r"^Ray did not start: The node timed out\.$"):
        executors.RayCluster().execute([], tmp_path, Mock())
