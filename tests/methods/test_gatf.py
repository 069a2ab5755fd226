"""GATF, by the checks of its specification."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from gatf.config import RunConfig, load_config
from gatf.data.loader import Batch, TaskInfo, shuffled
from gatf.experiment import Experiment, start
from gatf.geometry.anchor import Affine
from gatf.io.events import Epoch, Event
from gatf.methods.gatf import GATF
from gatf.methods.parts.anchor import AnchorConfig, RunningAnchor
from gatf.nets.mlp import zero_residual

Tiny = Callable[..., RunConfig]


def at_task_1(config: RunConfig) -> tuple[GATF, TaskInfo, Batch]:
    """A GATF about to take its first step of task 1, its anchor estimated once."""
    experiment = Experiment(config)
    method = experiment.method
    assert isinstance(method, GATF)
    task, data = experiment.task_info(1), experiment.task_data(1)
    method.begin_task(task)
    (phase,) = method.phases(task)
    assert phase.on_epoch_start is not None
    phase.on_epoch_start(0, data)
    method.train()
    method.teacher.eval()
    return method, task, next(iter(data.batches("train", batch_size=48)))


def gradients(loss: torch.Tensor, module: nn.Module) -> list[torch.Tensor | None]:
    return list(torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, retain_graph=True))


class TestGradients:
    def test_the_forward_term_trains_the_residual_alone(self, tiny_config: Tiny) -> None:
        method, task, batch = at_task_1(tiny_config("gatf"))
        term = method.loss(batch, task)["forward"]
        assert all(gradient is None for gradient in gradients(term, method.backbone))
        assert all(gradient is None for gradient in gradients(term, method.distiller))
        assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients(term, method.residual))

    def test_the_backward_term_trains_distiller_and_backbone(self, tiny_config: Tiny) -> None:
        method, task, batch = at_task_1(tiny_config("gatf"))
        term = method.loss(batch, task)["backward"]
        for module in (method.backbone, method.distiller):
            assert all(gradient is not None and gradient.abs().max() > 0 for gradient in gradients(term, module))
        assert all(gradient is None for gradient in gradients(term, method.residual))

    def test_the_anchor_has_no_parameters_and_the_teacher_takes_no_gradient(self, tiny_config: Tiny) -> None:
        method, task, batch = at_task_1(tiny_config("gatf"))
        sum(method.loss(batch, task).values()).backward()
        assert list(method.anchor.parameters()) == []
        assert not any(buffer.requires_grad for buffer in method.anchor.buffers())
        assert all(parameter.grad is None for parameter in method.teacher.parameters())


class TestResidual:
    def test_starts_as_the_zero_function(self) -> None:
        assert torch.equal(zero_residual(4)(torch.randn(5, 4)), torch.zeros(5, 4))

    def test_is_alive_after_ten_steps(self) -> None:
        torch.manual_seed(0)
        residual = zero_residual(4)
        first = residual[0].weight.detach().clone()
        optimiser = torch.optim.SGD(residual.parameters(), lr=0.1, momentum=0.9)
        z = torch.randn(64, 4)
        for _ in range(10):
            optimiser.zero_grad()
            (residual(z) - z.square()).square().mean().backward()
            optimiser.step()
        assert not torch.equal(first, residual[0].weight)
        assert residual(z).std(dim=0).min() > 0.05  # varies with z, not a learned constant


class TestTargetOfTheResidual:
    def forward_term(self, config: RunConfig) -> tuple[GATF, Batch, torch.Tensor]:
        method, task, batch = at_task_1(config)
        method.backbone.train()
        for norm in method.backbone.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.running_mean += 0.3  # statistics that are not the batch's
        return method, batch, method.loss(batch, task)["forward"]

    def test_by_default_is_what_the_loss_sees(self, tiny_config: Tiny) -> None:
        method, batch, term = self.forward_term(tiny_config("gatf"))
        with torch.no_grad():
            error = method.map(method.teacher(batch.images)) - method.backbone(batch.images)
        assert term.item() == pytest.approx(5 * error.square().mean().item(), rel=1e-5)


@pytest.mark.parametrize("recipe", ["digits", "glyphs", "cifar100-16px", "cifar100-t10"])
def test_plus_is_a_matter_of_the_method_alone_and_keeps_no_more(recipe: str) -> None:
    """Every other section is the recipe's, so that gains from training are not called the method's."""
    paper, plus = (load_config(recipe, method="gatf", overrides={"method.preset": name}) for name in ("paper", "plus"))
    own = paper.method.anchor.model_dump(include={"ridge", "refresh", "ema"})
    changed = {name: value for name, value in plus.method if value != getattr(paper.method, name)}
    assert changed == {
        "preset": "plus",
        "topology": 1.0,
        "anchor": AnchorConfig(kind="identity", final_refresh=True, **own),
        "readout": "rda",
    }
    assert plus.model_copy(update={"method": paper.method}) == paper


def test_first_anchor_is_nearly_the_identity(tiny_config: Tiny) -> None:
    """Before the first step both networks are equal: P Σ + ρ Σ P = Σ, so P = I/(1 + ρ) and the mean maps to itself."""
    method, _, _ = at_task_1(tiny_config("gatf"))
    anchor = method.anchor
    weight = anchor.value().weight
    torch.testing.assert_close(weight, torch.eye(8, dtype=torch.float64) / 1.01, atol=1e-6, rtol=0)
    assert int(anchor.steps) == 1


def test_first_anchor_towards_the_identity_is_the_identity(tiny_config: Tiny) -> None:
    method, _, _ = at_task_1(tiny_config("gatf", **{"method.anchor.kind": "identity"}))
    weight = method.anchor.value().weight
    torch.testing.assert_close(weight, torch.eye(8, dtype=torch.float64), atol=1e-6, rtol=0)


def test_anchor_is_refreshed_every_k_epochs(tiny_config: Tiny) -> None:
    experiment = Experiment(tiny_config("gatf", **{"method.anchor.refresh": 3}))
    method, task, data = experiment.method, experiment.task_info(1), experiment.task_data(1)
    method.begin_task(task)
    refresh = method.phases(task)[0].on_epoch_start
    counts = []
    for epoch in range(7):
        refresh(epoch, data)
        counts.append(int(method.anchor.steps))
    assert counts == [1, 1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("bias_correct", "expected"), [(True, (0.09 * 1 + 0.1 * 3) / 0.19), (False, 0.9 * 1 + 0.1 * 3)]
)
def test_running_anchor_by_hand(bias_correct: bool, expected: float) -> None:
    """Two estimates, 1 then 3, with m = 0.9."""
    anchor = RunningAnchor(1, 0.9, bias_correct)
    for value in (1.0, 3.0):
        anchor.update(Affine(torch.full((1, 1), value, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)))
    assert anchor(torch.ones(1, 1)).item() == pytest.approx(expected)


def test_affine_drift_is_transported_exactly(tiny_config: Tiny, tmp_path: Path) -> None:
    """If z_new = Q z_old + q for all images, a small ridge gives P = Q, b = q, and Gaussians Qμ + q, QΣQᵀ."""
    experiment = Experiment(tiny_config("gatf", **{"method.anchor.ridge": 1e-9, "data.max_per_class": None}))
    method = experiment.method
    assert isinstance(method, GATF)
    for task in (0, 1):
        data = experiment.task_data(task)
        method.begin_task(data.info)
        if task == 0:
            method.end_task(data)
            before = method.memory.get()
            continue
        torch.manual_seed(3)
        drift = nn.Linear(8, 8)
        nn.init.normal_(drift.weight)
        method.backbone = nn.Sequential(method.teacher, drift).requires_grad_(False)
        method.backbone.feature_dim = 8
        method._refresh(0, data)
        method.transport(data)
    weight, bias = drift.weight.detach().double(), drift.bias.detach().double()
    estimated = method.anchor.value()
    scale = weight.abs().max()
    assert (estimated.weight - weight).abs().max() < 1e-3 * scale
    moved = method.memory.get()
    torch.testing.assert_close(moved.means, before.means @ weight.T + bias, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(moved.covs, weight @ before.covs @ weight.T, atol=1e-3, rtol=1e-3)


def test_ablation_row_one_is_adagauss_tensor_for_tensor(tiny_config: Tiny, tmp_path: Path) -> None:
    """top_aware off, aga off, refine on: the same losses, parameters and Gaussians as AdaGauss, to the bit."""
    switches = {"method.top_aware": False, "method.anchor.kind": "none", "method.refine": True}
    states, losses = {}, {}
    for name, extra in (("adagauss", {}), ("gatf", switches)):
        experiment = Experiment(tiny_config(name, **extra))
        reported: list[dict[str, float]] = []
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True)

        def listen(event: Event, reported: list[dict[str, float]] = reported) -> None:
            if isinstance(event, Epoch):
                reported.append(event.losses)

        experiment.run(folder, (listen,))
        states[name], losses[name] = experiment.method.state_dict(), reported
    assert losses["gatf"] == losses["adagauss"]
    assert states["gatf"].keys() == states["adagauss"].keys()
    for name, tensor in states["adagauss"].items():
        assert torch.equal(states["gatf"][name], tensor), name


ROWS = {
    "topology alone": {"method.anchor.kind": "none", "method.refine": True},
    "topology and anchor, refined": {"method.refine": True},
    "final refresh, nearest mean": {"method.anchor.final_refresh": True, "method.readout": "nmc"},
    "plus": {"method.preset": "plus"},
    "anchor alone": {"method.top_aware": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_every_variant_learns(tiny_config: Tiny, tmp_path: Path, row: str) -> None:
    more = {f"optimisation.{stage}.epochs": 12 for stage in ("first", "next")}
    more |= {"method.adapter_lr": 0.1, "checkpoint_every": None}
    summary = start(tiny_config("gatf", **{**more, **ROWS[row]}), tmp_path / "run")
    assert summary.a_last > 40  # six classes: chance is 17
    assert len(summary.accuracy_matrix) == 3


def test_final_refresh_leaves_nothing_linear_behind(tiny_config: Tiny) -> None:
    """After it, A_t(z_old) − z_new has mean zero: the anchor is refitted to what the residual leaves."""
    experiment = Experiment(tiny_config("gatf", **{"method.anchor.ridge": 1e-9}))
    method, task, data = experiment.method, experiment.task_info(1), experiment.task_data(1)
    assert isinstance(method, GATF)
    method.begin_task(task)
    method._refresh(0, data)
    nn.init.normal_(method.residual[-1].bias)  # a residual that is off by a constant
    method.anchor.update(method.estimate_anchor(data, 0, "check", method.residual), restart=True)
    batch = next(iter(data.batches("train", batch_size=10_000, purpose="check", order=shuffled)))
    with torch.no_grad():
        error = method.map(method.teacher(batch.images)) - method.backbone.eval()(batch.images)
    assert error.mean(0).abs().max() < 1e-4


def test_nothing_of_a_task_is_kept(tiny_config: Tiny, tmp_path: Path) -> None:
    """Between tasks only the backbone, the means and the triangles remain."""
    experiment = Experiment(tiny_config("gatf"))
    (tmp_path / "checkpoints").mkdir()
    experiment.run(tmp_path, ())
    kept = {name.split(".")[0] for name in experiment.method.state_dict()}
    assert kept == {"backbone", "memory"}
