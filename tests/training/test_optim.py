import pytest
import torch
from torch import nn

from gatf.settings import StageConfig
from gatf.training.optim import build_optimiser, clip_gradients, rate_factor, set_rates
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


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e4, float("inf"), float("nan")])
def test_clipping_is_torchs_to_the_bit(scale: float) -> None:
    layers = [nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)) for _ in range(2)]
    draws = torch.Generator().manual_seed(0)
    for ours, theirs in zip(*(layer.parameters() for layer in layers), strict=True):
        ours.grad = scale * torch.randn(ours.shape, generator=draws)
        theirs.grad = ours.grad.clone()
    layers[0][0].bias.grad = layers[1][0].bias.grad = None
    clip_gradients(layers[0].parameters(), 2.0)
    nn.utils.clip_grad_norm_(layers[1].parameters(), 2.0)
    for ours, theirs in zip(*(layer.parameters() for layer in layers), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0, equal_nan=True)
    clip_gradients([nn.Parameter(torch.zeros(1))], 1.0)  # without gradients there is nothing to do


def test_momentum_by_hand() -> None:
    """Constant gradient 1, rate 0.1, momentum 0.9: steps of 0.1, 0.19 and 0.271."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    stage = StageConfig(lr=0.1, momentum=0.9, weight_decay=0.0)
    optimiser = build_optimiser(Phase("x", {"layer": layer}, lambda batch: {}, stage))
    for _ in range(3):
        layer.weight.grad = torch.ones(1, 1)
        optimiser.step()
    assert layer.weight.item() == pytest.approx(1 - 0.1 - 0.19 - 0.271, abs=1e-6)
