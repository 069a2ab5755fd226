"""Which device is meant, and how tensors get there."""

import pytest
import torch

from gatf.devices import available_device, upload
from gatf.errors import UserError
from gatf.settings import BackboneConfig
from gatf.training.precision import chosen


def test_auto_is_cuda_or_else_the_cpu_and_never_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert available_device("auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert available_device("auto") == "cuda"


def test_mps_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(UserError, match="^device=mps cannot be used: .*float64.*use device=cpu$"):
        available_device("mps")


def test_emulated_bfloat16_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A V100 or T4 computes bfloat16 in software."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    precision, _ = chosen("auto", "cuda", backbone=BackboneConfig(), shape=(3, 32, 32), batch=8)
    assert precision == "32-true"


def test_upload_within_the_cpu_copies_nothing() -> None:
    tensor = torch.arange(3)
    assert upload(tensor, torch.device("cpu")) is tensor
