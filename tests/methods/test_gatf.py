"""GATF, by the checks of its specification."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from gatf.config import RunConfig, load_config
from gatf.data.loader import Batch, TaskData, TaskInfo, shuffled
from gatf.errors import UserError
from gatf.experiment import Experiment, start
from gatf.geometry import PairedMoments, fit_anchor, nearest_mean_distances
from gatf.geometry.anchor import Affine
from gatf.io.events import Epoch, Event
from gatf.methods.gatf import GATF, RunningAnchor
from gatf.methods.parts.extraction import feature_pairs
from gatf.methods.parts.losses import perturbation_terms, task_batch
from gatf.nets.mlp import dead_residual, zero_residual

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
        term = method._loss(batch, task)["forward"]
        assert all(gradient is None for gradient in gradients(term, method.backbone))
        assert all(gradient is None for gradient in gradients(term, method.distiller))
        assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients(term, method.residual))

    def test_the_backward_term_trains_distiller_and_backbone(self, tiny_config: Tiny) -> None:
        method, task, batch = at_task_1(tiny_config("gatf"))
        term = method._loss(batch, task)["backward"]
        for module in (method.backbone, method.distiller):
            assert all(gradient is not None and gradient.abs().max() > 0 for gradient in gradients(term, module))
        assert all(gradient is None for gradient in gradients(term, method.residual))

    def test_the_anchor_has_no_parameters_and_the_teacher_takes_no_gradient(self, tiny_config: Tiny) -> None:
        method, task, batch = at_task_1(tiny_config("gatf"))
        sum(method._loss(batch, task).values()).backward()
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

    def test_of_the_release_is_a_constant(self) -> None:
        """Why only the last layer is zero: with every layer zero nothing but the output bias ever moves."""
        residual = dead_residual(4)
        optimiser = torch.optim.SGD(residual.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        z = torch.randn(64, 4)
        for _ in range(10):
            optimiser.zero_grad()
            (residual(z) - z.square()).square().mean().backward()
            optimiser.step()
        moved = [name for name, parameter in residual.named_parameters() if parameter.abs().max() > 0]
        assert moved == ["2.bias"]
        assert torch.equal(residual(z), residual[2].bias.expand(64, 4))

    def test_is_dead_where_the_release_is_followed(self, tiny_config: Tiny) -> None:
        for preset, dead in (("paper", False), ("release", True)):
            method, _, _ = at_task_1(tiny_config("gatf", **{"method.preset": preset}))
            assert all(parameter.abs().max() == 0 for parameter in method.residual.parameters()) == dead

    def test_is_alive_where_there_is_no_anchor_to_add_to(self, tiny_config: Tiny) -> None:
        alone = {"method.preset": "release", "method.aga": False, "method.refine": True}
        experiment = Experiment(tiny_config("gatf", **alone))
        experiment.method.begin_task(experiment.task_info(1))
        assert all(parameter.abs().max() > 0 for parameter in experiment.method.residual.parameters())


class TestTargetOfTheResidual:
    def forward_term(self, config: RunConfig) -> tuple[GATF, Batch, torch.Tensor]:
        method, task, batch = at_task_1(config)
        method.backbone.train()
        for norm in method.backbone.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.running_mean += 0.3  # statistics that are not the batch's
        return method, batch, method._loss(batch, task)["forward"]

    def test_in_eval_mode_is_what_the_anchor_and_the_class_statistics_see(self, tiny_config: Tiny) -> None:
        method, batch, term = self.forward_term(tiny_config("gatf", **{"method.residual_target": "eval"}))
        assert all(module.training for module in method.backbone.modules())
        with torch.no_grad():
            error = method.map(method.teacher(batch.images)) - method.backbone.eval()(batch.images)
        assert term.item() == pytest.approx(5 * error.square().mean().item(), rel=1e-5)
        assert all(gradient is None for gradient in gradients(term, method.backbone))

    def test_by_default_is_what_the_loss_sees(self, tiny_config: Tiny) -> None:
        method, batch, term = self.forward_term(tiny_config("gatf"))
        with torch.no_grad():
            error = method.map(method.teacher(batch.images)) - method.backbone(batch.images)
        assert term.item() == pytest.approx(5 * error.square().mean().item(), rel=1e-5)

    def test_the_statistics_move_once_per_step(self, tiny_config: Tiny) -> None:
        """The pass in eval mode leaves batch-norm alone."""
        counted = []
        for mode in ("train", "eval"):
            method, _, _ = self.forward_term(tiny_config("gatf", **{"method.residual_target": mode}))
            norms = [module for module in method.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
            counted.append([(int(norm.num_batches_tracked), norm.running_mean.tolist()) for norm in norms])
        assert counted[0] == counted[1]


EVERY_SCRIPT = {
    "anchor": "ridge", "dead_residual": True, "bias_correct": False, "matched_noise": False, "samples": None,
    "ridge": 0.01, "refresh": 10, "ema": 0.9, "rotation": True, "expansion": 32, "adapter_lr": 0.01,
}  # fmt: skip
USUAL = {
    "topology": 5.0, "cycle": 2.0, "pairwise": 0.05, "refine": False, "perturb": 0.0, "map_lr": None,
    "map_weight_decay": None,
}  # fmt: skip
CUB = {
    "topology": 0.5, "cycle": 0.5, "pairwise": 0.0, "refine": False, "perturb": 0.5, "map_lr": 0.05,
    "map_weight_decay": 1e-4,
}  # fmt: skip
SCRIPTS = {
    "cifar100-t10": USUAL, "cifar100-t20": USUAL, "imagenet100-t10": USUAL, "imagenet100-t20": USUAL,
    "tinyimagenet-t10": USUAL, "tinyimagenet-t20": {**USUAL, "cycle": 0.0, "refine": True},
    "cub200-t10": CUB, "cub200-t20": CUB,
}  # fmt: skip


def usual_order(recipe: str) -> str:
    """TinyImageNet and CUB-200 have another order for each seed."""
    return "seed" if recipe.startswith(("tinyimagenet", "cub200")) else "published"


class TestReleasePreset:
    """What the scripts of the release say; CIFAR-100, ImageNet-100 and CUB-200 have one for ten tasks only."""

    @pytest.mark.parametrize("recipe", SCRIPTS)
    def test_has_the_settings_of_the_scripts(self, recipe: str) -> None:
        config = load_config(recipe, method="gatf", overrides={"method.preset": "release"})
        expected = EVERY_SCRIPT | SCRIPTS[recipe]
        assert {name: getattr(config.method, name) for name in expected} == expected
        assert config.data.val_fraction == 0.1
        assert config.backbone.bottleneck == (32 if recipe.startswith("cub200") else 64)
        assert config.scenario.order == ("natural" if recipe.startswith("cub200") else usual_order(recipe))
        for stage in (config.optimisation.first, config.optimisation.next):
            assert (stage.epochs, stage.batch_size, stage.weight_decay, stage.clip) == (200, 256, 5e-4, 1.0)

    @pytest.mark.parametrize("recipe", SCRIPTS)
    def test_is_not_the_default(self, recipe: str) -> None:
        """The paper's equations, with the rates of the scripts where the paper gives none."""
        config = load_config(recipe, method="gatf")
        expected = {
            "preset": "paper", "anchor": "sylvester", "dead_residual": False, "bias_correct": True, "cycle": 0.0,
            "pairwise": 0.0, "perturb": 0.0, "refine": False,
        }  # fmt: skip
        expected |= {name: SCRIPTS[recipe][name] for name in ("topology", "map_lr", "map_weight_decay")}
        assert {name: getattr(config.method, name) for name in expected} == expected
        assert (config.data.val_fraction, config.scenario.order) == (0.0, usual_order(recipe))


@pytest.mark.parametrize("recipe", ["digits", "glyphs", "cifar100-16px", "cifar100-t10"])
def test_plus_is_a_matter_of_the_method_alone_and_keeps_no_more(recipe: str) -> None:
    """Every other section is the recipe's, so that gains from training are not called the method's."""
    paper, plus = (load_config(recipe, method="gatf", overrides={"method.preset": name}) for name in ("paper", "plus"))
    changed = {name: value for name, value in plus.method if value != getattr(paper.method, name)}
    assert changed == {
        "preset": "plus", "topology": 1.0, "anchor": "identity", "final_refresh": True, "readout": "rda",
    }  # fmt: skip
    assert plus.model_copy(update={"method": paper.method}) == paper


def test_first_anchor_is_nearly_the_identity(tiny_config: Tiny) -> None:
    """Before the first step both networks are equal: P Σ + ρ Σ P = Σ, so P = I/(1 + ρ) and the mean maps to itself."""
    method, _, _ = at_task_1(tiny_config("gatf"))
    anchor = method.anchor
    weight = anchor._ema().value().weight
    torch.testing.assert_close(weight, torch.eye(8, dtype=torch.float64) / 1.01, atol=1e-6, rtol=0)
    assert int(anchor.steps) == 1


def test_first_anchor_towards_the_identity_is_the_identity(tiny_config: Tiny) -> None:
    method, _, _ = at_task_1(tiny_config("gatf", **{"method.anchor": "identity"}))
    weight = method.anchor._ema().value().weight
    torch.testing.assert_close(weight, torch.eye(8, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["ridge", "procrustes"])
def test_a_ridge_that_cannot_be_chosen_is_refused(tiny_config: Tiny, kind: str) -> None:
    with pytest.raises(UserError, match=f"ridge=auto is for anchor sylvester, identity and lowrank, not {kind}"):
        tiny_config("gatf", **{"method.anchor": kind, "method.ridge": "auto"})


def test_anchor_is_refreshed_every_k_epochs(tiny_config: Tiny) -> None:
    experiment = Experiment(tiny_config("gatf", **{"method.refresh": 3}))
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
    experiment = Experiment(tiny_config("gatf", **{"method.ridge": 1e-9, "data.max_per_class": None}))
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
        method._transport(data)
    weight, bias = drift.weight.detach().double(), drift.bias.detach().double()
    estimated = method.anchor._ema().value()
    scale = weight.abs().max()
    assert (estimated.weight - weight).abs().max() < 1e-3 * scale
    moved = method.memory.get()
    torch.testing.assert_close(moved.means, before.means @ weight.T + bias, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(moved.covs, weight @ before.covs @ weight.T, atol=1e-3, rtol=1e-3)


def test_ablation_row_one_is_adagauss_tensor_for_tensor(tiny_config: Tiny, tmp_path: Path) -> None:
    """top_aware off, aga off, refine on: the same losses, parameters and Gaussians as AdaGauss, to the bit."""
    switches = {"method.top_aware": False, "method.aga": False, "method.refine": True}
    states, losses = {}, {}
    for name, extra in (("adagauss", {}), ("gatf", switches)):
        experiment = Experiment(tiny_config(name, **extra))
        told: list[dict[str, float]] = []
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True)

        def listen(event: Event, told: list[dict[str, float]] = told) -> None:
            if isinstance(event, Epoch):
                told.append(event.losses)

        experiment.run(folder, (listen,))
        states[name], losses[name] = experiment.method.state_dict(), told
    assert losses["gatf"] == losses["adagauss"]
    assert states["gatf"].keys() == states["adagauss"].keys()
    for name, tensor in states["adagauss"].items():
        assert torch.equal(states["gatf"][name], tensor), name


ROWS = {
    "topology alone": {"method.aga": False, "method.refine": True},
    "topology and anchor, refined": {"method.refine": True},
    "paper": {},
    "final refresh": {"method.final_refresh": True},
    "final refresh, linear": {"method.final_refresh": True, "method.readout": "linear"},
    "regularised discriminant analysis": {"method.readout": "rda"},
    "anchor of low rank, ridge chosen": {"method.anchor": "lowrank", "method.anchor_rank": 2, "method.ridge": "auto"},
    "images near old classes": {"method.final_refresh": True, "method.resurrected": 20},
    "anchor that keeps the spread": {"method.anchor": "procrustes"},
    "release": {"method.preset": "release"},
    "plus": {"method.preset": "plus"},
    "release for CUB": {"method.preset": "release", "method.perturb": 0.5, "method.map_lr": 0.05},
    "anchor alone": {"method.top_aware": False},
}


@pytest.mark.parametrize("row", ROWS)
def test_every_variant_learns(tiny_config: Tiny, tmp_path: Path, row: str) -> None:
    more = {f"optimisation.{stage}.epochs": 12 for stage in ("first", "next")}
    more |= {"method.adapter_lr": 0.1, "checkpoint_every": None}
    summary = start(tiny_config("gatf", **{**more, **ROWS[row]}), tmp_path / "run")
    assert summary.a_last > 40  # six classes: chance is 17
    assert len(summary.accuracy_matrix) == 3


def test_final_refresh_leaves_nothing_linear_behind(tiny_config: Tiny) -> None:
    """After it, A_t(z_old) − z_new has mean zero: the anchor is refitted to what the residual leaves."""
    experiment = Experiment(tiny_config("gatf", **{"method.ridge": 1e-9}))
    method, task, data = experiment.method, experiment.task_info(1), experiment.task_data(1)
    assert isinstance(method, GATF)
    method.begin_task(task)
    method._refresh(0, data)
    nn.init.normal_(method.residual[-1].bias)  # a residual that is off by a constant
    method.anchor.update(method._estimate(data, 0, "check", method.residual), restart=True)
    batch = next(iter(data.batches("train", batch_size=10_000, purpose="check", order=shuffled)))
    with torch.no_grad():
        error = method.map(method.teacher(batch.images)) - method.backbone.eval()(batch.images)
    assert error.mean(0).abs().max() < 1e-4


NEAR_OLD = {"method.final_refresh": True, "method.resurrected": 15}


class TestResurrected:
    def after_drift(self, config: RunConfig, learn: Callable[..., Experiment]) -> tuple[GATF, TaskData]:
        """Task 1 is about to end; the backbone has moved as a random linear layer says."""
        experiment = learn(config, tasks=1)
        method, data = experiment.method, experiment.task_data(1)
        assert isinstance(method, GATF)
        method.begin_task(data.info)
        torch.manual_seed(3)
        method.backbone = nn.Sequential(method.teacher, nn.Linear(8, 8)).requires_grad_(False)
        method.backbone.feature_dim = 8
        return method, data

    def test_images_are_where_the_old_network_sees_old_classes(
        self, tiny_config: Tiny, learn: Callable[..., Experiment]
    ) -> None:
        config = tiny_config("gatf", **NEAR_OLD, **{"optimisation.first.epochs": 20})
        method, data = self.after_drift(config, learn)
        near = method._near_old(data)
        assert near is not None
        old, new = near
        assert 0 < len(old) <= 30  # two old classes
        torch.testing.assert_close(new, method.backbone[1](old), atol=1e-5, rtol=1e-4)
        plain = torch.cat([method.teacher(batch.images) for batch in data.batches("test")])
        nearest = [nearest_mean_distances(rows, method.memory.means).amin(1).mean() for rows in (old, plain)]
        assert nearest[0] < nearest[1]

    def test_join_the_pairs_of_the_last_estimate(self, tiny_config: Tiny, learn: Callable[..., Experiment]) -> None:
        method, data = self.after_drift(tiny_config("gatf", **NEAR_OLD), learn)
        more = (torch.randn(50, 8), torch.randn(50, 8))
        with torch.no_grad():
            got = method._estimate(data, 0, "final anchor", None, more)
            pairs = feature_pairs(method.teacher, method.backbone, data, batch_size=48, purpose="final anchor")
            together = [torch.cat([*rows, extra]) for rows, extra in zip(zip(*pairs, strict=True), more, strict=True)]
        expected = fit_anchor(PairedMoments.of(*together), 0.01)
        torch.testing.assert_close(got.weight, expected.weight, atol=1e-6, rtol=1e-6)

    def test_need_a_final_refresh(self, tiny_config: Tiny) -> None:
        with pytest.raises(UserError, match="set final_refresh=true"):
            tiny_config("gatf", **{"method.resurrected": 15})


class TestPerturbation:
    """Two images of class 0 with logits (0, 0) and (ln 3, 0), a step of √2: both move by (−1, 1).

    There class 1 has the probabilities q = e²/(1 + e²) = 0.880797 and (e²/3)/(1 + e²/3) = 0.711235, the losses are
    ln(1 + e²) and ln(1 + e²/3), and an image's gradient has the norm √2·q, half of that in the mean over two images.
    """

    def terms(self, features: torch.Tensor, rows: int = 2) -> tuple[nn.Linear, dict[str, torch.Tensor]]:
        head = nn.Linear(2, 2, bias=False)
        nn.init.eye_(head.weight)
        return head, perturbation_terms(head, features, torch.zeros(2, dtype=torch.long), step=math.sqrt(2), rows=rows)

    def features(self) -> torch.Tensor:
        return torch.tensor([[0.0, 0.0], [math.log(3), 0.0]], requires_grad=True)

    def test_by_hand(self) -> None:
        _, terms = self.terms(self.features())
        assert terms["adversarial"].item() == pytest.approx(1.684534, abs=1e-6)
        assert terms["gradient_norm"].item() == pytest.approx(math.sqrt(2) / 2 * (0.880797 + 0.711235) / 2, abs=1e-6)

    def test_the_gradient_is_that_of_a_mean_over_the_images_of_all_processes(self) -> None:
        _, terms = self.terms(self.features(), rows=4)
        assert terms["gradient_norm"].item() == pytest.approx(math.sqrt(2) / 4 * (0.880797 + 0.711235) / 2, abs=1e-6)

    def test_only_the_head_learns(self) -> None:
        features = self.features()
        head, terms = self.terms(features)
        terms["adversarial"].backward(retain_graph=True)
        # Σ (p − y)·zᵀ / 2 at the moved points (−1, 1) and (ln 3 − 1, 1)
        expected = torch.tensor([[0.405330, -0.796016], [-0.405330, 0.796016]])
        torch.testing.assert_close(head.weight.grad, expected, atol=1e-6, rtol=0)
        terms["gradient_norm"].backward()
        assert not torch.equal(head.weight.grad, expected)
        assert features.grad is None

    def test_is_a_part_of_task_0_alone(self, tiny_config: Tiny) -> None:
        """There over all four rotations of the images."""
        config = tiny_config("gatf", **{"method.perturb": 0.5})
        experiment = Experiment(config)
        method, task = experiment.method, experiment.task_info(0)
        method.begin_task(task)
        batch = next(iter(experiment.task_data(0).batches("train", batch_size=12)))
        images, labels = task_batch(batch, task, rotate=True)
        expected = perturbation_terms(method.head, method.backbone(images), labels, step=0.5, rows=48)
        terms = method._loss(batch, task)
        for name, value in expected.items():
            torch.testing.assert_close(terms[name], value)
        method, task, batch = at_task_1(config)
        assert not expected.keys() & method._loss(batch, task).keys()


def test_nothing_of_a_task_is_kept(tiny_config: Tiny, tmp_path: Path) -> None:
    """Between tasks only the backbone, the means and the triangles remain."""
    experiment = Experiment(tiny_config("gatf"))
    (tmp_path / "checkpoints").mkdir()
    experiment.run(tmp_path, ())
    kept = {name.split(".")[0] for name in experiment.method.state_dict()}
    assert kept == {"backbone", "memory"}
