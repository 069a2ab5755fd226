"""EWC, by the checks of its specification."""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gatf.config import RunConfig, load_config
from gatf.data.loader import Batch, shuffled
from gatf.experiment import Experiment
from gatf.methods.ewc import EWC, EWCConfig, LabelMode, Springs, batch_squares, buffers_restored, merge_importance
from gatf.training.optim import rate_factor

Tiny = Callable[..., RunConfig]
Learn = Callable[..., Experiment]


class Toy(nn.Module):
    """Logits (w·x, 0)."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.unused = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.weight * x[:, 0], torch.zeros_like(x[:, 0])], dim=1)


def toy_batch(labels: list[int]) -> Batch:
    return Batch(torch.ones(len(labels), 1), torch.tensor(labels), 0, 0, torch.Generator().manual_seed(0))


class TestFisherByHand:
    """x = 1, w = ln 3, so p = 0.75; two samples with labels 0 and 1."""

    @pytest.mark.parametrize(("mode", "labels", "expected"), [
        ("max_pred", [1, 1], 0.0625), ("ground_truth", [0, 1], 0.0625), ("ground_truth", [1, 1], 0.5625),
    ])  # fmt: skip
    def test_two_samples(self, mode: LabelMode, labels: list[int], expected: float) -> None:
        fisher = batch_squares(Toy(math.log(3)), toy_batch(labels), mode, ["weight", "unused"])
        assert fisher["weight"].item() == pytest.approx(expected, rel=1e-5)
        assert fisher["unused"].item() == 0.0


def test_merging() -> None:
    first, second = torch.tensor(0.2), torch.tensor(0.4)

    def merged(alpha: float | str) -> list[float]:
        after_first = merge_importance(torch.tensor(0.0), first, alpha, seen_before=0, seen=10)
        after_second = merge_importance(after_first, second, alpha, seen_before=10, seen=20)
        return [round(value.item(), 6) for value in (after_first, after_second)]

    assert merged(0.5) == [0.1, 0.25]
    assert merged("class_share") == [0.2, 0.3]


class TestSprings:
    def test_the_minimum_is_between_new_and_old(self) -> None:
        """(a/2)(θ−b)² + (λF/2)(θ−θ*)² with a = b = 1, θ* = 0, λF = 3: θ = 0.25."""
        springs, theta = Springs(), nn.Parameter(torch.tensor([0.9]))
        springs.set("net.theta", torch.tensor([[3.0]]), torch.tensor([[0.0]]))
        optimiser = torch.optim.SGD([theta], lr=0.1)
        for _ in range(200):
            optimiser.zero_grad()
            (0.5 * (theta - 1).square().sum() + springs.penalty({"net.theta": theta})).backward()
            optimiser.step()
        assert theta.item() == pytest.approx(0.25, abs=1e-6)

    def test_at_the_anchor_there_is_no_pull(self) -> None:
        springs, theta = Springs(), nn.Parameter(torch.randn(3, 2, generator=torch.Generator().manual_seed(0)))
        springs.set("theta", torch.rand(1, 3, 2), theta.detach().clone()[None])
        penalty = springs.penalty({"theta": theta})
        penalty.backward()
        assert penalty.item() == 0.0
        assert theta.grad is not None
        assert not theta.grad.any()

    def test_several_penalties_add(self) -> None:
        springs, theta = Springs(), nn.Parameter(torch.tensor([1.0]))
        springs.set("theta", torch.tensor([[2.0], [4.0]]), torch.tensor([[0.0], [3.0]]))
        assert springs.penalty({"theta": theta}).item() == pytest.approx(0.5 * (2 * 1 + 4 * 4))

    def test_takes_what_a_state_holds(self) -> None:
        full, empty = Springs(), Springs()
        full.set("a.weight", torch.rand(2, 3), torch.rand(2, 3))
        empty.load_state_dict(full.state_dict())
        assert [name for name, _, _ in empty.items()] == ["a.weight"]
        assert torch.equal(empty.state_dict()["importance/a/weight"], full.state_dict()["importance/a/weight"])
        full.load_state_dict(Springs().state_dict())
        assert full.items() == []


def finetune_like(config: RunConfig, tiny_config: Tiny) -> RunConfig:
    same = {"optimisation": config.optimisation, "backbone": config.backbone}
    return tiny_config("finetune").model_copy(update=same)


def same_network(ours: nn.Module, theirs: nn.Module) -> bool:
    left, right = ours.state_dict(), theirs.state_dict()
    return all(torch.equal(left[name], right[name]) for name in right)


def test_without_penalty_it_is_finetuning_bit_for_bit(tiny_config: Tiny, learn: Learn) -> None:
    config = tiny_config("ewc", **{"method.penalty": 0.0, "method.fix_bn": False})
    theirs = learn(finetune_like(config, tiny_config), tasks=3).method
    assert same_network(learn(config, tasks=3).method, theirs)


def test_without_importance_it_is_finetuning_bit_for_bit(
    tiny_config: Tiny, learn: Learn, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("ewc", **{"method.fix_bn": False})
    theirs = learn(finetune_like(config, tiny_config), tasks=2).method
    monkeypatch.setattr("gatf.methods.ewc.merge_importance", lambda old, new, *rest, **named: torch.zeros_like(new))
    assert same_network(learn(config, tasks=2).method, theirs)


def test_stiff_springs_hold_the_backbone_while_the_head_learns(tiny_config: Tiny, learn: Learn, train: Any) -> None:
    overrides = {"method.penalty": 1000.0, "optimisation.next.lr": 1e-3}
    overrides |= {"optimisation.next.epochs": 20, "optimisation.next.clip": None}
    experiment = learn(tiny_config("ewc", **overrides), tasks=1)
    method, data = experiment.method, experiment.task_data(1)
    assert isinstance(method, EWC)
    for name, importance, anchor in method.springs.items():
        method.springs.set(name, torch.ones_like(importance), anchor)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    method.begin_task(data.info)
    (phase,) = method.phases(data.info)
    start = method.heads.layers[1].weight.detach().clone()
    train(experiment, phase, data)
    moved = max(
        (weight - before[f"backbone.{name}"]).abs().max() for name, weight in method.backbone.named_parameters()
    )
    assert moved < 1e-4
    assert (method.heads.layers[1].weight - start).abs().max() > 1e-3
    assert torch.equal(method.heads.layers[0].weight, before["heads.layers.0.weight"])
    assert torch.equal(method.heads.layers[0].bias, before["heads.layers.0.bias"])


def test_the_fisher_pass_leaves_no_trace_in_batch_norm(tiny_config: Tiny, learn: Learn) -> None:
    experiment = learn(tiny_config("ewc"), tasks=1)
    method, data = experiment.method, experiment.task_data(0)
    before = {name: buffer.clone() for name, buffer in method.backbone.named_buffers()}
    method.end_task(data)
    assert all(torch.equal(buffer, before[name]) for name, buffer in method.backbone.named_buffers())
    assert not method.backbone.training
    net = nn.BatchNorm1d(2)
    with buffers_restored(net):
        net(torch.randn(8, 2))
        assert net.num_batches_tracked == 1
    assert net.num_batches_tracked == 0


@pytest.mark.parametrize(("drop_last", "used"), [(True, [30, 30]), (False, [30, 30, 20])])
def test_importance_is_a_mean_over_batches(drop_last: bool, used: list[int], tiny_config: Tiny, learn: Learn) -> None:
    """FACIL leaves the incomplete batch out; in PyCIL it counts as much as a full one."""
    overrides = {"optimisation.first.batch_size": 30, "method.fisher_drop_last": drop_last}
    experiment = learn(tiny_config("ewc", **overrides), tasks=1)
    method, data = experiment.method, experiment.task_data(0)
    assert isinstance(method, EWC)
    network = nn.Sequential(OrderedDict(backbone=method.backbone, heads=method.heads)).train()
    batches = list(data.batches("train", batch_size=30, purpose="fisher", order=shuffled))[: len(used)]
    assert [len(batch.labels) for batch in batches] == used
    name = "backbone.blocks.1.0.weight"
    with buffers_restored(network):
        squares = [batch_squares(network, batch, "max_pred", [name])[name] for batch in batches]
    found = method._fisher(network, [name], data)[name]
    assert torch.allclose(found, torch.stack(squares).mean(dim=0), rtol=1e-4)


@pytest.mark.parametrize(
    ("overrides", "by_batch"), [({}, False), ({"method.fisher_bn": "batch"}, True), ({"method.fix_bn": False}, True)]
)
def test_batch_norm_in_the_fisher_pass(
    overrides: dict[str, Any], by_batch: bool, tiny_config: Tiny, learn: Learn
) -> None:
    experiment = learn(tiny_config("ewc", **overrides), tasks=1)
    method, data = experiment.method, experiment.task_data(1)
    method.begin_task(data.info)
    modes: list[bool] = []
    layer = next(module for module in method.backbone.modules() if isinstance(module, nn.BatchNorm2d))
    layer.register_forward_hook(lambda module, *_: modes.append(module.training))
    method.end_task(data)
    assert set(modes) == {by_batch}


def test_batch_norm_is_fixed_after_the_first_task(tiny_config: Tiny, learn: Learn) -> None:
    one, two = (learn(tiny_config("ewc"), tasks=tasks).method.backbone for tasks in (1, 2))
    buffers = dict(two.named_buffers())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in one.named_buffers())


def test_old_heads_move_and_are_tied_in_pycils_form(tiny_config: Tiny, learn: Learn) -> None:
    one, two = (learn(tiny_config("ewc", **{"method.preset": "pycil"}), tasks=tasks).method for tasks in (1, 2))
    assert not torch.equal(one.heads.layers[0].weight, two.heads.layers[0].weight)
    names = [name for name, _, _ in two.springs.items()]
    assert "heads.layers.0.weight" in names
    assert "heads.layers.1.bias" in names
    assert max(importance.max() for _, importance, _ in two.springs.items()) <= 1e-4


def test_it_reports_importance_and_stability(tiny_config: Tiny, learn: Learn) -> None:
    method = learn(tiny_config("ewc"), tasks=1).method
    (notice,) = method.notices
    assert notice.values["bound"] == pytest.approx(3.8)
    assert 0 < notice.values["mean"] < notice.values["max"]
    # half of F_new is kept; lr 0.01, λ 5000
    assert notice.values["step"] == pytest.approx(0.01 * 5000 * notice.values["max"] / 2, rel=1e-5)


def test_multi_softmax_compares_probabilities_within_heads(tiny_config: Tiny, learn: Learn) -> None:
    """Each head's scores are log-probabilities; a constant added to a head's logits changes nothing."""
    experiment = learn(tiny_config("ewc", **{"method.multi_softmax": True}), tasks=2)
    method = experiment.method.eval()
    images = next(iter(experiment.task_data(1).batches("test"))).images
    with torch.no_grad():
        before = method.scores(images)
        torch.testing.assert_close(before.exp()[:, :2].sum(1), torch.ones(len(images)))
        torch.testing.assert_close(before.exp()[:, 2:].sum(1), torch.ones(len(images)))
        method.heads.layers[1].bias += 5
        torch.testing.assert_close(method.scores(images), before)


def test_what_is_kept_per_class(tiny_config: Tiny) -> None:
    assert Experiment(tiny_config("ewc")).method.bytes_per_class() == 4 * 33


def test_presets() -> None:
    assert EWCConfig(preset="pycil").fisher_cap == 1e-4
    assert EWCConfig(preset="facil").fix_bn is False
    assert EWCConfig(preset="pycil", penalty=7).penalty == 7
    assert EWCConfig().fix_bn is True


def test_pycil_brings_its_optimiser_schedule_and_epochs() -> None:
    config = load_config("cub200-t20", method="ewc", overrides={"method.preset": "pycil"})
    assert isinstance(config.method, EWCConfig)
    assert (config.method.penalty, config.method.fisher_drop_last, config.method.head_init) == (1000, False, "kaiming")
    first, later = config.optimisation.first, config.optimisation.next
    for stage, epochs, decay, steps in ((first, 200, 5e-4, [60, 120, 170]), (later, 180, 2e-4, [70, 120, 150])):
        assert (stage.epochs, stage.batch_size, stage.lr, stage.momentum) == (epochs, 128, 0.1, 0.9)
        assert (stage.weight_decay, stage.clip, stage.warmup, stage.drop_last) == (decay, None, 0.0, False)
        rates = [rate_factor(stage, epoch) for epoch in range(epochs)]
        assert [epoch for epoch in range(1, epochs) if rates[epoch] < rates[epoch - 1]] == steps


def test_facil_keeps_its_rate() -> None:
    def rates(**overrides: str) -> tuple[float, float]:
        stages = load_config("cifar100-t10", method="ewc", overrides=overrides).optimisation
        return stages.first.lr, stages.next.lr

    assert rates() == (0.1, 0.01)
    assert rates(**{"method.preset": "facil"}) == (0.1, 0.1)


def test_pycils_heads_start_without_bias(tiny_config: Tiny) -> None:
    experiment = Experiment(tiny_config("ewc", **{"method.preset": "pycil"}))
    experiment.method.begin_task(experiment.task_data(0).info)
    assert not experiment.method.heads.layers[0].bias.any()
