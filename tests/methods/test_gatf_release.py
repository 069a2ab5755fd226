"""GATF as its release runs it: settings of the scripts, and what only the release has. tests/parity/test_gatf.py
compares its numbers with the released code's."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from gatf.config import RunConfig, load_config
from gatf.experiment import Experiment, start
from gatf.methods.gatf_release import perturbation_terms
from gatf.methods.parts.anchor import AnchorConfig, RunningAnchorConfig
from gatf.methods.parts.losses import task_batch
from gatf.methods.parts.mapped import TrainedMapConfig
from gatf.nets.mlp import dead_residual

Tiny = Callable[..., RunConfig]


def test_the_residual_is_a_constant() -> None:
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


def test_the_method_starts_with_a_dead_residual(tiny_config: Tiny) -> None:
    experiment = Experiment(tiny_config("gatf-release"))
    experiment.method.begin_task(experiment.task_info(1))
    assert all(parameter.abs().max() == 0 for parameter in experiment.method.residual.parameters())


@pytest.mark.parametrize("settings", [{}, {"method.perturb": 0.5, "method.map.lr": 0.05}, {"method.refine": True}])
def test_every_variant_learns(tiny_config: Tiny, tmp_path: Path, settings: dict[str, object]) -> None:
    more = {f"optimisation.{stage}.epochs": 12 for stage in ("first", "next")} | {"checkpoint_every": None}
    summary = start(tiny_config("gatf-release", **{**more, **settings}), tmp_path / "run")
    assert summary.a_last > 40  # six classes: chance is 17


EVERY_SCRIPT = {
    "matched_noise": False, "samples": None, "anchor": RunningAnchorConfig(ridge=0.01, refresh=10, ema=0.9),
    "rotation": True, "adapter_lr": 0.01,
}  # fmt: skip
USUAL = {
    "topology": 5.0, "cycle": 2.0, "pairwise": 0.05, "refine": False, "perturb": 0.0, "map": TrainedMapConfig(),
}  # fmt: skip
CUB = {
    "topology": 0.5, "cycle": 0.5, "pairwise": 0.0, "refine": False, "perturb": 0.5,
    "map": TrainedMapConfig(lr=0.05, weight_decay=1e-4),
}  # fmt: skip
SCRIPTS = {
    "cifar100-t10": USUAL, "cifar100-t20": USUAL, "imagenet100-t10": USUAL, "imagenet100-t20": USUAL,
    "tinyimagenet-t10": USUAL, "tinyimagenet-t20": {**USUAL, "cycle": 0.0, "refine": True},
    "cub200-t10": CUB, "cub200-t20": CUB,
}  # fmt: skip


def usual_order(recipe: str) -> str:
    """TinyImageNet and CUB-200 have another order for each seed."""
    return "seed" if recipe.startswith(("tinyimagenet", "cub200")) else "published"


class TestSettings:
    """What the scripts of the release say; CIFAR-100, ImageNet-100 and CUB-200 have one for ten tasks only."""

    @pytest.mark.parametrize("recipe", SCRIPTS)
    def test_has_the_settings_of_the_scripts(self, recipe: str) -> None:
        config = load_config(recipe, method="gatf-release")
        expected = EVERY_SCRIPT | SCRIPTS[recipe]
        assert {name: getattr(config.method, name) for name in expected} == expected
        assert config.data.val_fraction == 0.1
        assert config.backbone.bottleneck == (32 if recipe.startswith("cub200") else 64)
        assert config.scenario.order == ("natural" if recipe.startswith("cub200") else usual_order(recipe))
        for stage in (config.optimisation.first, config.optimisation.next):
            assert (stage.epochs, stage.batch_size, stage.weight_decay, stage.clip) == (200, 256, 5e-4, 1.0)

    @pytest.mark.parametrize("recipe", SCRIPTS)
    def test_of_gatf_are_the_papers(self, recipe: str) -> None:
        """The paper's equations, with the rates of the scripts where the paper gives none."""
        config = load_config(recipe, method="gatf")
        expected = {
            "preset": "paper", "anchor": AnchorConfig(), "refine": False,
        }  # fmt: skip
        expected |= {name: SCRIPTS[recipe][name] for name in ("topology", "map")}
        assert {name: getattr(config.method, name) for name in expected} == expected
        assert (config.data.val_fraction, config.scenario.order) == (0.0, usual_order(recipe))


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
        config = tiny_config("gatf-release", **{"method.perturb": 0.5})
        experiment = Experiment(config)
        method, task = experiment.method, experiment.task_info(0)
        method.begin_task(task)
        batch = next(iter(experiment.task_data(0).batches("train", batch_size=12)))
        images, labels = task_batch(batch, task, rotate=True)
        expected = perturbation_terms(method.head, method.backbone(images), labels, step=0.5, rows=48)
        terms = method.loss(batch, task)
        for name, value in expected.items():
            torch.testing.assert_close(terms[name], value)
        task, data = experiment.task_info(1), experiment.task_data(1)
        method.begin_task(task)
        (phase,) = method.phases(task)
        phase.on_epoch_start(0, data)
        batch = next(iter(data.batches("train", batch_size=48)))
        assert not expected.keys() & method.loss(batch, task).keys()
