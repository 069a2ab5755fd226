import pytest
import torch
from torch import nn

from gatf.settings import StageConfig
from gatf.training.optim import build_optimiser, rate_factor, set_rates
from gatf.training.phase import Phase


def test_published_steps() -> None:
    """200 epochs, ×0.1 at 60, 120 and 180 (AdaGauss)."""
    stage = StageConfig()
    factors = [rate_factor(stage, epoch) for epoch in (0, 59, 60, 119, 120, 179, 180, 199)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_cosine_and_constant() -> None:
    cosine = StageConfig(schedule="cosine", epochs=10)
    assert [rate_factor(cosine, epoch) for epoch in (0, 5)] == pytest.approx([1, 0.5])
    assert rate_factor(StageConfig(schedule="constant"), 150) == 1


def test_groups_keep_their_own_rate_and_decay() -> None:
    layer = nn.Linear(2, 2)
    groups = [{"params": [layer.weight], "lr": 0.5, "weight_decay": 0.0}, {"params": [layer.bias]}]
    stage = StageConfig(lr=0.1, epochs=10, milestones=(0.5,))
    optimiser = build_optimiser(Phase("x", {"layer": layer}, lambda batch: {}, stage, groups=groups))
    set_rates(optimiser, stage, 5)
    assert [group["lr"] for group in optimiser.param_groups] == pytest.approx([0.05, 0.01])
    assert [group["weight_decay"] for group in optimiser.param_groups] == [0.0, 5e-4]


def test_adam_adds_decay_to_the_gradient() -> None:
    layer = nn.Linear(1, 1, bias=False)
    phase = Phase("x", {"layer": layer}, lambda batch: {}, StageConfig(optimiser="adam", weight_decay=2e-4))
    optimiser = build_optimiser(phase)
    assert type(optimiser) is torch.optim.Adam
    assert optimiser.param_groups[0]["weight_decay"] == 2e-4
