"""AdaGauss, by the checks of its specification."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from gatf.config import RunConfig
from gatf.data.augment import Pipeline
from gatf.data.loader import Batch
from gatf.experiment import Experiment, start
from gatf.geometry.gaussians import Gaussians
from gatf.io.events import Epoch, Event
from gatf.methods.parts.losses import anti_collapse
from gatf.methods.parts.mapped import adapter_stage
from gatf.methods.parts.memory import GaussianMemory
from gatf.settings import StageConfig
from gatf.training.loop import Interrupted, Position, train_phase
from gatf.training.optim import rate_factor

Tiny = Callable[..., RunConfig]


def batch_with_covariance(covariance: list[list[float]], rows: int = 6) -> torch.Tensor:
    """Features whose unbiased covariance is exactly this."""
    dim = len(covariance)
    noise = torch.randn(rows, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    orthonormal, _ = torch.linalg.qr(noise - noise.mean(0))
    lower = torch.linalg.cholesky(torch.tensor(covariance, dtype=torch.float64))
    return (orthonormal * math.sqrt(rows - 1) @ lower.T).float()


class TestAntiCollapse:
    def test_four_rows_by_hand(self) -> None:
        """Covariance diag(0.25, 4), factor (0.5, 2), loss −(0.5 + 1)/2."""
        a, b = math.sqrt(3 / 16), math.sqrt(3)
        batch = torch.tensor([[a, b], [a, -b], [-a, b], [-a, -b]])
        assert anti_collapse(batch).item() == pytest.approx(-0.75, abs=1e-5)

    @pytest.mark.parametrize(("clamp", "loss"), [(1.0, -1.0), (10.0, -2.0)])
    def test_clamp_by_hand(self, clamp: float, loss: float) -> None:
        batch = batch_with_covariance([[4, 2], [2, 5]])
        assert anti_collapse(batch, clamp).item() == pytest.approx(loss, abs=1e-5)

    def test_saturated_coordinates_give_no_gradient(self) -> None:
        batch = batch_with_covariance([[4, 2], [2, 5]]).requires_grad_()
        anti_collapse(batch).backward()
        assert torch.equal(batch.grad, torch.zeros_like(batch))
        anti_collapse(batch, 10.0).backward()
        assert batch.grad.abs().max() > 0.01

    def test_the_order_of_coordinates_matters(self) -> None:
        batch = batch_with_covariance([[4, 2], [2, 5]])
        swapped = anti_collapse(batch.flip(1), 10.0).item()
        assert swapped == pytest.approx(-(2.23607 + 1.78885) / 2, abs=1e-5)

    def test_a_collapsed_batch_stays_finite(self) -> None:
        batch = torch.ones(20, 4).requires_grad_()
        loss = anti_collapse(batch)
        loss.backward()
        assert loss.item() == pytest.approx(-1e-3, abs=1e-4)  # √1e-6, the jitter alone
        assert batch.grad.isfinite().all()


def test_rotation_makes_four_times_the_outputs_at_task_0_only(tiny_config: Tiny) -> None:
    experiment = Experiment(tiny_config("adagauss"))
    method = experiment.method
    method.begin_task(experiment.task_info(0))
    assert method.head.out_features == 4 * 2
    (phase,) = method.phases(experiment.task_info(0))
    assert phase.loaded == 48 // 4  # the network sees 48 images per step
    method.begin_task(experiment.task_info(1))
    assert method.head.out_features == 2
    assert method.phases(experiment.task_info(1))[0].loaded == 48


def test_rotated_batch_is_four_blocks_with_their_own_labels(tiny_config: Tiny) -> None:
    experiment = Experiment(tiny_config("adagauss"))
    task = experiment.task_info(0)
    experiment.method.begin_task(task)
    seen = {}
    experiment.method.head.register_forward_hook(lambda module, inputs, output: seen.update(rows=len(output)))
    (phase,) = experiment.method.phases(task)
    batch = next(iter(experiment.task_data(0).batches("train", batch_size=12)))
    phase.loss(batch)
    assert seen["rows"] == 48


class TestWarmUp:
    def train(self, config: RunConfig, epochs: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        experiment = Experiment(config)
        task, data = experiment.task_info(0), experiment.task_data(0)
        experiment.method.begin_task(task)
        before = {name: value.clone() for name, value in experiment.method.backbone.state_dict().items()}
        (phase,) = experiment.method.phases(task)
        stops = iter([False] * (epochs * data.steps(phase.loaded, True) - 1) + [True])
        with pytest.raises(Interrupted):
            train_phase(
                phase, data, experiment.session.fabric, listener=lambda event: None, position=Position(),
                save=lambda position, optimiser: None, restore=None, stop=lambda: next(stops), save_every=None,
            )  # fmt: skip
        return before, experiment.method.backbone.state_dict()

    def test_backbone_is_frozen_and_batch_norm_is_not(self, tiny_config: Tiny) -> None:
        config = tiny_config("adagauss", **{"optimisation.first.warmup": 0.4, "optimisation.first.epochs": 5})
        assert config.optimisation.first.warmup_epochs == 2
        before, after = self.train(config, epochs=2)
        weights = [name for name in before if "running" not in name and "num_batches" not in name]
        assert all(torch.equal(before[name], after[name]) for name in weights)
        assert not torch.equal(before["blocks.0.1.running_mean"], after["blocks.0.1.running_mean"])

    def test_backbone_learns_afterwards(self, tiny_config: Tiny) -> None:
        config = tiny_config("adagauss", **{"optimisation.first.warmup": 0.4, "optimisation.first.epochs": 5})
        before, after = self.train(config, epochs=3)
        assert not torch.equal(before["blocks.0.0.weight"], after["blocks.0.0.weight"])

    def test_published_lengths(self) -> None:
        assert StageConfig().warmup_epochs == 2  # of 200
        assert StageConfig(epochs=99).warmup_epochs == 0


def test_rates_of_later_tasks_and_of_the_adapter(tiny_config: Tiny) -> None:
    stage = tiny_config("adagauss").optimisation.next
    assert stage.lr == 0.01
    adapter = adapter_stage(StageConfig(lr=0.01), 0.01)
    assert (adapter.epochs, adapter.lr, adapter.drop_last, adapter.clip) == (100, 0.01, True, 1.0)


def test_a_residual_adapter_starts_at_the_identity(tiny_config: Tiny) -> None:
    experiment = Experiment(tiny_config("adagauss", **{"method.adapter": "residual"}))
    experiment.method.begin_task(experiment.task_info(1))
    features = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(experiment.method.transported(features, "adapter"), features)


class TestMilestonesOfTheAdapter:
    """Its rate is divided by ten at epochs 30, 60 and 90 of its own, however many it has."""

    def cuts(self, config: RunConfig) -> tuple[int, list[int]]:
        """The adapter's epochs, and those at whose start its rate falls."""
        experiment = Experiment(config)
        task = experiment.task_info(1)
        experiment.method.begin_task(task)
        stage = experiment.method.phases(task)[1].stage
        rates = [rate_factor(stage, epoch) for epoch in range(stage.epochs)]
        assert rates[0] == 1.0
        falls = [epoch for epoch in range(1, stage.epochs) if rates[epoch] < rates[epoch - 1]]
        for epoch in falls:
            assert rates[epoch] == pytest.approx(rates[epoch - 1] / 10)
        return stage.epochs, falls

    @pytest.mark.parametrize("method", ["adagauss", "gatf"])
    @pytest.mark.parametrize(
        ("epochs", "expected"),
        [(200, (100, [30, 60, 90])), (80, (40, [30])), (61, (30, [])), (30, (15, [])), (62, (31, [30]))],
    )
    def test_are_epochs(self, method: str, epochs: int, expected: tuple[int, list[int]], tiny_config: Tiny) -> None:
        refine = {"method.refine": True} if method == "gatf" else {}
        assert self.cuts(tiny_config(method, **{"optimisation.next.epochs": epochs, **refine})) == expected

    def test_land_on_the_epoch_at_every_length(self) -> None:
        for epochs in range(31, 300):
            stage = adapter_stage(StageConfig(epochs=2 * epochs), 0.01)
            assert (rate_factor(stage, 29), rate_factor(stage, 30)) == (1.0, 0.1)


def test_the_distillation_is_a_mean_over_batch_and_coordinates(tiny_config: Tiny) -> None:
    """With an identity projector and a student that is the teacher plus 1, the mean square is 1, so the term is λ."""
    experiment = Experiment(tiny_config("adagauss", **{"method.distill": 7.0}))
    method, task = experiment.method, experiment.task_info(1)
    method.begin_task(task)
    method.projector = nn.Identity()
    method.backbone = Shifted(method.teacher, 1.0)
    batch = next(iter(experiment.task_data(1).batches("test")))
    assert method.loss(batch, task)["distill"].item() == pytest.approx(7.0, rel=1e-5)


class Shifted(nn.Module):
    def __init__(self, net: nn.Module, amount: float) -> None:
        super().__init__()
        self.net, self.amount = net, amount

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) + self.amount


def test_gaussians_of_new_classes_count_mirrored_images(tiny_config: Tiny) -> None:
    """With pixels as features, mean and unbiased covariance over the images and their mirror images."""
    experiment = Experiment(tiny_config("adagauss"))
    memory = GaussianMemory(64, rule="bayes", seed=0)
    memory.learn(nn.Flatten(), experiment.task_data(0))
    batch = next(iter(experiment.task_data(0).batches("test", batch_size=10_000)))
    images = batch.images[batch.labels == 0]
    both = torch.cat([images, images.flip(-1)]).flatten(1).double()
    torch.testing.assert_close(memory.get().means[0], both.mean(0), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(memory.get().covs[0], both.T.cov(), atol=1e-5, rtol=1e-5)


class TestMemory:
    def filled(self, classes: int = 3, dim: int = 64) -> GaussianMemory:
        memory = GaussianMemory(dim, rule="bayes", seed=0)
        memory.set(Gaussians(torch.randn(classes, dim), torch.eye(dim).repeat(classes, 1, 1)))
        return memory

    def test_bytes_of_a_class(self) -> None:
        """S + S(S+1)/2 float32 numbers: 8 576 bytes for S = 64, and that is what the state holds."""
        memory = self.filled()
        assert memory.bytes_per_class() == 4 * 2144
        assert sum(t.numel() * t.element_size() for t in memory.state_dict().values()) == 3 * 4 * 2144

    def test_loading_takes_any_number_of_classes(self) -> None:
        stored, empty = self.filled(), GaussianMemory(64, rule="bayes", seed=0)
        empty.load_state_dict(stored.state_dict())
        assert len(empty) == 3
        features = torch.randn(5, 64)
        assert torch.equal(empty.scores(features), stored.scores(features))

    def test_matched_noise_transports_an_affine_map_exactly(self) -> None:
        memory, layer = self.filled(dim=8), nn.Linear(8, 8).requires_grad_(False)
        before = memory.get()
        repairs = memory.transport(layer, samples=40, matched=True, task=1)
        weight = layer.weight.double()
        torch.testing.assert_close(memory.get().means, before.means @ weight.T + layer.bias, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(memory.get().covs, weight @ before.covs @ weight.T, atol=1e-5, rtol=1e-5)
        assert repairs == {"jittered": 0.0, "clipped": 0.0}

    def test_plain_noise_has_the_expected_error(self) -> None:
        """Identity map, Σ = I, S = 64, N = 10⁴: Frobenius error ≈ 0.645, mean error ≈ 0.08; not zero, not thrice it."""
        memory = self.filled(classes=1)
        before = memory.get()
        memory.transport(nn.Identity(), samples=10_000, matched=False, task=1)
        assert 0.645 / 3 < (memory.get().covs - before.covs).norm().item() < 3 * 0.645
        assert 0.08 / 3 < (memory.get().means - before.means).norm().item() < 3 * 0.08

    def test_the_readout_may_shrink_otherwise(self) -> None:
        """Variances 1 and 3 at the distance (2, 3): 4 + 3 as they are; shrunk by half their mean of 2, 2 + 9/4."""
        stored = Gaussians(torch.zeros(1, 2), torch.diag(torch.tensor([1.0, 3.0]))[None])
        for shrink, distance in ((0.0, 7.0), (0.5, 4.25)):
            memory = GaussianMemory(2, rule="mahalanobis", seed=0, readout_shrink=shrink)
            memory.set(stored)
            assert memory.scores(torch.tensor([[2.0, 3.0]])).item() == pytest.approx(-distance)

    @pytest.mark.parametrize("rule", ["bayes", "mahalanobis", "nmc"])
    def test_every_rule_distinguishes_far_classes(self, rule: str) -> None:
        memory = GaussianMemory(4, rule=rule, seed=0)  # type: ignore[arg-type]
        means = 10 * torch.eye(4)[:3]
        memory.set(Gaussians(means, torch.eye(4).repeat(3, 1, 1)))
        scores = memory.scores(means + 0.1 * torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
        assert scores.shape == (3, 3)
        assert scores.argmax(1).tolist() == [0, 1, 2]


def start_folder(path: Path) -> Path:
    (path / "checkpoints").mkdir(parents=True)
    return path


def test_covariances_keep_full_rank(tiny_config: Tiny, tmp_path: Path) -> None:
    """With the anti-collapse loss the stored covariances have full rank at tolerance 0.01 and a far better condition
    number than without it; the loss nears −1."""
    losses: list[float] = []
    spectra = {}

    def listen(event: Event) -> None:
        if isinstance(event, Epoch) and "anti_collapse" in event.losses:
            losses.append(event.losses["anti_collapse"])

    for weight in (1.0, 0.0):
        more = {"optimisation.first.epochs": 30, "scenario.stop_after": 1, "method.anti_collapse": weight}
        experiment = Experiment(tiny_config("adagauss", **more))
        experiment.run(start_folder(tmp_path / str(weight)), (listen,))
        spectra[weight] = torch.linalg.eigvalsh(experiment.method.memory.get().covs)
    assert (spectra[1.0].min(dim=1).values > 0.01).all()
    condition = {weight: (values[:, -1] / values[:, 0]).median() for weight, values in spectra.items()}
    assert condition[0.0] > 3 * condition[1.0]
    assert losses[-1] < -0.9 < losses[0]


def test_a_task_smaller_than_the_feature_space_leaves_the_anti_collapse_loss_out(tiny_config: Tiny) -> None:
    experiment = Experiment(tiny_config("adagauss"))
    task = experiment.task_info(1)
    experiment.method.begin_task(task)
    pixels = torch.randn(4, 1, 8, 8)
    batch = Batch(pixels, torch.full((4,), task.old), 0, 0, torch.Generator())
    assert "anti_collapse" not in experiment.method.loss(batch, task)
    assert isinstance(experiment.session.pipeline, Pipeline)


def test_runs_end_to_end_above_chance(tiny_config: Tiny, tmp_path: Path) -> None:
    more = {"optimisation.first.epochs": 30, "optimisation.next.epochs": 30, "method.adapter_lr": 0.1}
    summary = start(tiny_config("adagauss", **more), tmp_path / "run")
    assert summary.a_last > 40  # six classes: chance is 17
