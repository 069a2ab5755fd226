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


def test_dips_last_an_epoch() -> None:
    """FeTrIL's release: a tenth of the rate in epochs 80 and 120 of 290, and in no other."""
    stage = StageConfig(schedule="dips", epochs=290, milestones=(80 / 290, 120 / 290))
    assert [epoch for epoch in range(290) if rate_factor(stage, epoch) != 1] == [80, 120]
    assert rate_factor(stage, 80) == 0.1


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


class TestLookahead:
    """A weight that starts at 1 and always has gradient 1."""

    def steps(self, count: int, **settings: object) -> tuple[nn.Parameter, torch.optim.Optimizer]:
        layer = nn.Linear(1, 1, bias=False)
        nn.init.ones_(layer.weight)
        stage = StageConfig.model_validate({"momentum": 0.0, "weight_decay": 0.0, **settings})
        optimiser = build_optimiser(Phase("x", {"layer": layer}, lambda batch: {}, stage))
        for _ in range(count):
            layer.weight.grad = torch.ones(1, 1)
            optimiser.step()
        return layer.weight, optimiser

    @pytest.mark.parametrize(("count", "weight"), [(4, 0.6), (5, 0.6), (6, 0.5), (9, 0.2), (10, 0.2)])
    def test_by_hand(self, count: int, weight: float) -> None:
        """Rate 0.1: 1 → 0.5 in five steps, of which 0.8 are kept: 0.6. Five more: 0.1, then 0.6 − 0.8·0.5 = 0.2."""
        assert self.steps(count, lookahead=5)[0].item() == pytest.approx(weight, abs=1e-6)

    def test_keeping_all_of_the_way_is_the_optimiser_alone_and_none_of_it_goes_nowhere(self) -> None:
        settings = {"momentum": 0.9, "weight_decay": 0.01}
        for optimiser in ("sgd", "adam"):
            alone, _ = self.steps(7, optimiser=optimiser, **settings)
            all_kept, _ = self.steps(7, optimiser=optimiser, lookahead=3, lookahead_rate=1.0, **settings)
            none_kept, _ = self.steps(6, optimiser=optimiser, lookahead=3, lookahead_rate=0.0, **settings)
            assert torch.equal(alone, all_kept)
            assert none_kept.item() == 1.0

    def test_momentum_is_left_alone(self) -> None:
        """The buffer of a constant gradient does not depend on the weights: 1 + 0.9 + 0.81 + 0.729 after four steps."""
        weight, optimiser = self.steps(4, momentum=0.9, lookahead=2)
        assert optimiser.state[weight]["momentum_buffer"].item() == pytest.approx(3.439)
