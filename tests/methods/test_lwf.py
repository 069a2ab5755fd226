"""LwF, by the checks of its specification."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gatf.config import RunConfig, load_config
from gatf.experiment import Experiment
from gatf.methods.lwf import LwF, LwFConfig, local_cross_entropy, softened_cross_entropy, softened_divergence
from gatf.training.optim import rate_factor

Tiny = Callable[..., RunConfig]
Learn = Callable[..., Experiment]


def same_state(one: nn.Module, other: nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def logits(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


class TestDistillation:
    def test_by_hand(self) -> None:
        student = logits((0.0, 0.0)).requires_grad_()
        loss = softened_cross_entropy(student, logits((2.0, 0.0)), 2.0)
        assert loss.item() == pytest.approx(math.log(2))
        (gradient,) = torch.autograd.grad(loss, student)
        assert gradient[0].tolist() == pytest.approx([-0.1155, 0.1155], abs=1e-4)

    def test_at_the_teacher_only_its_entropy_is_left(self) -> None:
        student = logits((2.0, 0.0)).requires_grad_()
        loss = softened_cross_entropy(student, logits((2.0, 0.0)), 2.0)
        assert loss.item() == pytest.approx(0.5822, abs=1e-4)
        assert torch.autograd.grad(loss, student)[0].abs().max() < 1e-16
        assert softened_divergence(logits((2.0, 0.0)), logits((2.0, 0.0)), 2.0).item() == 0.0

    def test_agrees_with_facils_powers_of_probabilities(self) -> None:
        draws = torch.Generator().manual_seed(0)
        student, teacher = (10 * torch.rand(50, 2, generator=draws, dtype=torch.float64) - 5 for _ in range(2))

        def power(of: Tensor) -> Tensor:
            raised = of.softmax(1) ** 0.5
            return raised / raised.sum(1, keepdim=True)

        ours = softened_cross_entropy(student, teacher, 2.0).item()
        assert -(power(teacher) * power(student).log()).sum(1).mean().item() == pytest.approx(ours, abs=1e-6)
        mixed = power(student) + 1e-5 / 2
        mixed = mixed / mixed.sum(1, keepdim=True)
        assert -(power(teacher) * mixed.log()).sum(1).mean().item() == pytest.approx(ours, abs=1e-3)

    def test_ignores_a_constant_per_sample(self) -> None:
        draws = torch.Generator().manual_seed(0)
        student, teacher, shift = (torch.randn(6, n, generator=draws, dtype=torch.float64) for n in (4, 4, 1))
        shifted = softened_cross_entropy(student + shift, teacher, 2.0).item()
        assert shifted == pytest.approx(softened_cross_entropy(student, teacher, 2.0).item())

    def test_groups_add_one_cross_entropy_a_task(self) -> None:
        student, teacher = logits((1.0, 2.0, 0.5, -1.0, 3.0)), logits((0.0, 1.0, 2.0, 0.0, 1.0))
        apart = softened_cross_entropy(student[:, :2], teacher[:, :2], 2.0) + softened_cross_entropy(
            student[:, 2:], teacher[:, 2:], 2.0
        )
        together = softened_cross_entropy(student, teacher, 2.0, groups=[2, 3])
        assert together.item() == pytest.approx(apart.item())

    def test_is_a_sum_over_classes_and_a_mean_over_samples(self) -> None:
        one = softened_cross_entropy(logits((0.0,) * 8), logits((1.0,) * 8), 2.0)
        many = softened_cross_entropy(logits(*[(0.0,) * 8] * 5), logits(*[(1.0,) * 8] * 5), 2.0)
        assert one.item() == pytest.approx(math.log(8))
        assert many.item() == pytest.approx(math.log(8))


def test_the_cross_entropy_is_local_to_the_task() -> None:
    outputs, label = logits((3.0, 3.0, 1.0, 0.0)), torch.tensor([2])
    assert local_cross_entropy(outputs, label, 2).item() == pytest.approx(0.3133, abs=1e-4)
    assert nn.functional.cross_entropy(outputs, label).item() == pytest.approx(2.7817, abs=1e-4)
    outputs[:, :2] += 7
    assert local_cross_entropy(outputs, label, 2).item() == pytest.approx(0.3133, abs=1e-4)


def test_without_distillation_it_is_finetuning_bit_for_bit(tiny_config: Tiny, learn: Learn) -> None:
    config = tiny_config("lwf", **{"method.distill": 0.0})
    finetune = tiny_config("finetune").model_copy(
        update={"optimisation": config.optimisation, "backbone": config.backbone}
    )
    ours, theirs = learn(config, tasks=3).method, learn(finetune, tasks=3).method
    assert same_state(ours.backbone, theirs.backbone)
    assert same_state(ours.heads, theirs.heads)


def at_task_1(learn: Learn, config: RunConfig) -> tuple[Experiment, LwF, Any, Any]:
    experiment = learn(config, tasks=1)
    method = experiment.method
    assert isinstance(method, LwF)
    data = experiment.task_data(1)
    method.begin_task(data.info)
    return experiment, method, data, method.phases(data.info)[-1]


def test_with_fixed_batch_norm_the_first_step_has_no_distillation_gradient(tiny_config: Tiny, learn: Learn) -> None:
    _, method, data, phase = at_task_1(learn, tiny_config("lwf", **{"method.fix_bn": True}))
    phase.set_mode()
    batch = next(data.batches("train", batch_size=48))
    term = phase.loss(batch)["distill"]
    with torch.no_grad():
        old = method.teacher_heads(method.teacher(batch.images))
    floor = softened_cross_entropy(old, old, 2.0)
    assert term.item() == pytest.approx(10 * floor.item(), rel=1e-6)
    gradients = torch.autograd.grad(term, list(method.backbone.parameters()))
    assert max(gradient.abs().max() for gradient in gradients) < 1e-6


def test_a_large_weight_keeps_the_old_probabilities(tiny_config: Tiny, learn: Learn, train: Any) -> None:
    """Within 0.01 for every image after an epoch of ten steps, of a teacher that has something to say; they go further
    without it. Small steps: a large weight makes the loss steep."""

    def moved(weight: float) -> float:
        overrides = {"method.distill": weight, "method.fix_bn": True, "optimisation.first.epochs": 20}
        overrides |= {"optimisation.next.epochs": 1, "optimisation.next.lr": 0.002, "optimisation.next.batch_size": 8}
        experiment, method, data, phase = at_task_1(learn, tiny_config("lwf", **overrides))
        train(experiment, phase, data)
        method.eval()
        images = torch.cat([batch.images for batch in data.batches("test")])
        with torch.no_grad():
            student = method.heads(method.backbone(images))[:, : data.info.old].softmax(1)
            teacher = method.teacher_heads(method.teacher(images)).softmax(1)
        assert teacher.max() > 0.9
        return (student - teacher).abs().max().item()

    kept = moved(300.0)
    assert kept < 1e-2
    assert kept < 0.7 * moved(0.0)


def test_old_heads_and_the_teacher_stay_as_they_are(tiny_config: Tiny, learn: Learn, train: Any) -> None:
    experiment, method, data, phase = at_task_1(learn, tiny_config("lwf"))
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    train(experiment, phase, data)
    after = method.state_dict()
    fixed = [name for name in before if "teacher" in name or name.startswith("heads.layers.0")]
    assert len(fixed) == 10
    assert all(torch.equal(before[name], after[name]) for name in fixed)
    assert not torch.equal(before["heads.layers.1.weight"], after["heads.layers.1.weight"])
    assert method.heads.layers[0].weight.grad is None


def test_all_heads_train_when_asked(tiny_config: Tiny, learn: Learn, train: Any) -> None:
    experiment, method, data, phase = at_task_1(learn, tiny_config("lwf", **{"method.preset": "pycil"}))
    before = method.heads.layers[0].weight.detach().clone()
    train(experiment, phase, data)
    assert not torch.equal(before, method.heads.layers[0].weight)


def test_pycil_brings_its_optimiser_schedule_and_epochs() -> None:
    config = load_config("cifar100-t10", method="lwf", overrides={"method.preset": "pycil"})
    assert isinstance(config.method, LwFConfig)
    assert (config.method.distill, config.method.temperature, config.method.head_init) == (3.0, 2.0, "kaiming")
    first, later = config.optimisation.first, config.optimisation.next
    for stage, epochs, decay, steps in ((first, 200, 5e-4, [60, 120, 160]), (later, 250, 2e-4, [60, 120, 180, 220])):
        assert (stage.epochs, stage.batch_size, stage.lr, stage.momentum) == (epochs, 128, 0.1, 0.9)
        assert (stage.weight_decay, stage.clip, stage.warmup, stage.drop_last) == (decay, None, 0.0, False)
        rates = [rate_factor(stage, epoch) for epoch in range(epochs)]
        assert [epoch for epoch in range(1, epochs) if rates[epoch] < rates[epoch - 1]] == steps
        assert rates[-1] == pytest.approx(0.1 ** len(steps))
    short = load_config("cifar100-cpu", method="lwf", overrides={"method.preset": "pycil"}).optimisation
    assert (short.first.epochs, short.next.epochs) == (200, 250)


def test_pycils_heads_start_without_bias(tiny_config: Tiny) -> None:
    experiment = Experiment(tiny_config("lwf", **{"method.preset": "pycil"}))
    experiment.method.begin_task(experiment.task_data(0).info)
    assert not experiment.method.heads.layers[0].bias.any()


def test_the_head_warms_up_alone(tiny_config: Tiny, learn: Learn, train: Any) -> None:
    experiment = learn(tiny_config("lwf", **{"method.warmup_epochs": 2}), tasks=1)
    method, data = experiment.method, experiment.task_data(1)
    method.begin_task(data.info)
    warm, _ = method.phases(data.info)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    train(experiment, warm, data)
    changed = {name for name, tensor in method.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"heads.layers.1.weight", "heads.layers.1.bias"}


def test_a_softmax_a_task_runs_and_the_teacher_goes_with_the_task(tiny_config: Tiny, learn: Learn) -> None:
    method = learn(tiny_config("lwf", **{"method.kd_groups": "per_task"}), tasks=3).method
    assert not any("teacher" in name for name in method.state_dict())
    assert method.scores(torch.zeros(2, 1, 8, 8)).shape == (2, 6)


def test_what_is_kept_per_class(tiny_config: Tiny, learn: Learn) -> None:
    dim = 32  # width 8, three stages
    assert learn(tiny_config("lwf"), tasks=1).method.bytes_per_class() == 4 * (dim + 1)
    nearest_mean = learn(tiny_config("lwf", **{"method.preset": "ncm"}), tasks=2).method
    assert nearest_mean.bytes_per_class() == 4 * (dim + dim)
    assert nearest_mean.prototypes.means.shape == (4, dim)


def test_a_cosine_head_is_refused_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="train_old_heads=true"):
        LwFConfig(head="cosine")
    assert LwFConfig(preset="ncm").readout == "ncm"
