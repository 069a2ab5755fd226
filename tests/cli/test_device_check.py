"""`gatf doctor --device`: rounding of another device is no difference, a device that computes something else is one."""

from typing import Any

import pytest
import torch
from torch import nn

from gatf.cli import device_check
from gatf.config import RunConfig
from gatf.experiment import Experiment


def other_device(error: float, made: list[Experiment]) -> Any:
    """`Experiment`, the first of which has relative errors in the results of its layers."""
    draws = torch.Generator().manual_seed(0)

    def disturb(module: nn.Module, arguments: Any, result: torch.Tensor) -> torch.Tensor:
        return result * (1 + error * torch.randn(result.shape, generator=draws))

    def make(config: RunConfig) -> Experiment:
        made.append(Experiment(config))
        for module in made[0].method.modules() if len(made) == 1 else ():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.register_forward_hook(disturb)
        return made[-1]

    return make


@pytest.mark.parametrize(("error", "sound"), [(1e-6, True), (1e-2, False)])
def test_verdict(error: float, sound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(device_check, "Experiment", other_device(error, []))
    monkeypatch.setattr(device_check, "speeds", lambda device, compiled: {"float32": 1.0})
    assert device_check.check("cpu", lines.append) == sound
    assert len(lines) == 5
    assert ("computes what the CPU does" in lines[-1]) == sound


def test_a_missing_device_is_one_sentence(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, errors = call("doctor", "--device", "cuda")
    assert (code, out) == (2, "")
    assert errors == "gatf: device=cuda, but torch finds no such device here; use device=cpu or auto\n"
