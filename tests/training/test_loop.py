"""What the loop does between a loss and a trained module, on losses whose gradients are known."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gatf.config import RunConfig
from gatf.data.loader import Batch
from gatf.experiment import Experiment
from gatf.settings import StageConfig
from gatf.training.checkpoint import flatten_optimiser, restore_optimiser
from gatf.training.loop import Interrupted, Position, train_phase
from gatf.training.phase import Phase

Tiny = Callable[..., RunConfig]
PLAIN = {"momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "warmup": 0.0, "clip": None, "batch_size": 8}


def scalar(value: float) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, value)
    return layer


def stage(**settings: Any) -> StageConfig:
    return StageConfig.model_validate({**PLAIN, "epochs": 1, "lr": 1.0, **settings})


@pytest.fixture(scope="module")
def experiment(tiny_config: Tiny) -> Experiment:
    return Experiment(tiny_config("finetune", **{"data.max_per_class": 12}))  # 24 images: 3 steps of 8


def train(experiment: Experiment, phase: Phase, position: Position | None = None, **told: Any) -> None:
    nothing: dict[str, Any] = {"save": lambda *where: None, "restore": None, "stop": lambda: False, "save_every": None}
    train_phase(
        phase, experiment.task_data(0), experiment.session.fabric, listener=lambda event: None,
        position=position or Position(), **nothing | told,
    )  # fmt: skip


class TestClipping:
    """Two modules with gradients 4 and 3, norm 5, in three steps at rate 1."""

    def weights(self, experiment: Experiment, **settings: Any) -> list[float]:
        modules = {"backbone": scalar(0.0), "map": scalar(0.0)}

        def loss(batch: Batch) -> dict[str, Tensor]:
            return {"loss": 4 * modules["backbone"].weight.sum() + 3 * modules["map"].weight.sum()}

        train(experiment, Phase("x", modules, loss, stage(**settings)))
        return [module.weight.item() for module in modules.values()]

    def test_by_default_one_norm_over_all_modules(self, experiment: Experiment) -> None:
        assert self.weights(experiment, clip=1.0) == pytest.approx([-3 * 0.8, -3 * 0.6], rel=1e-5)

    def test_by_module_each_has_its_own_norm(self, experiment: Experiment) -> None:
        assert self.weights(experiment, clip=1.0, clip_by="module") == pytest.approx([-3, -3], rel=1e-5)
        assert self.weights(experiment, clip=3.5, clip_by="module") == pytest.approx([-10.5, -9], rel=1e-5)


class TestAveraging:
    """A weight that starts at 1 and always has gradient 1: after k steps at rate 0.1 it is 1 − 0.1·k."""

    def phase(self, **settings: Any) -> tuple[nn.Linear, Phase]:
        layer = scalar(1.0)
        settings = {"lr": 0.1, "epochs": 4, **settings}
        return layer, Phase("x", {"layer": layer}, lambda batch: {"loss": layer.weight.sum()}, stage(**settings))

    @pytest.mark.parametrize("optimiser", ["sgd", "adam"])
    @pytest.mark.parametrize(
        ("share", "expected"),
        # four epochs of three steps; the mean over the steps 7 … 12, 10 … 12 (a quarter, and what is less), all
        [(0.0, -0.2), (0.5, 1 - 0.95), (0.25, 1 - 1.1), (0.1, 1 - 1.1), (1.0, 1 - 0.65)],
    )
    def test_by_hand(self, experiment: Experiment, optimiser: str, share: float, expected: float) -> None:
        layer, phase = self.phase(average=share, optimiser=optimiser)
        train(experiment, phase)
        assert layer.weight.item() == pytest.approx(expected, abs=1e-5)  # Adam steps by its rate, too

    def test_weights_that_do_not_learn_yet_are_not_averaged(self, experiment: Experiment) -> None:
        layer, phase = self.phase(average=1.0, warmup=0.5)
        train(experiment, phase)
        assert layer.weight.item() == pytest.approx(1 - 0.95, abs=1e-6)
        layer, phase = self.phase(average=1.0, warmup=1.0)
        train(experiment, phase)
        assert layer.weight.item() == pytest.approx(-0.2, abs=1e-6)

    @pytest.mark.parametrize("steps", [8, 12])
    def test_a_stopped_phase_goes_on_averaging(self, experiment: Experiment, steps: int) -> None:
        """Stopped within the steps that are averaged, and right after the last one."""
        layer, phase = self.phase(average=0.5)
        taken = 0
        saved: dict[str, Any] = {}

        def stop() -> bool:
            nonlocal taken
            taken += 1
            return taken == steps

        def save(position: Position, optimiser: Any) -> None:
            saved.update(position=position, tensors={k: v.clone() for k, v in flatten_optimiser(optimiser).items()})

        with pytest.raises(Interrupted):
            train(experiment, phase, stop=stop, save=save)
        again, phase = self.phase(average=0.5)
        again.load_state_dict(layer.state_dict())
        train(
            experiment, phase, saved["position"],
            restore=lambda optimiser: restore_optimiser(optimiser, saved["tensors"]),
        )  # fmt: skip
        assert again.weight.item() == pytest.approx(1 - 0.95, abs=1e-6)

    @pytest.mark.parametrize("frozen", [False, True])
    def test_batch_norm_is_measured_for_the_averaged_weights(self, experiment: Experiment, frozen: bool) -> None:
        """The statistics of w·x with the weight at its mean; where the phase leaves batch-norm at rest, none."""
        layer, norm = scalar(1.0), nn.BatchNorm1d(1, affine=False)
        seen: list[Tensor] = []

        def loss(batch: Batch) -> dict[str, Tensor]:
            pixels = batch.images.mean((1, 2, 3))[:, None]
            seen.append(pixels)
            norm(layer(pixels))
            return {"loss": layer.weight.sum()}

        def mode() -> None:
            norm.train(not frozen)

        settings = stage(lr=0.1, epochs=2, average=0.5)
        train(experiment, Phase("x", {"layer": layer, "norm": norm}, loss, settings, set_mode=mode))
        assert layer.weight.item() == pytest.approx(0.5, abs=1e-6)  # the mean of 0.6, 0.5 and 0.4
        assert norm.momentum == 0.1
        if frozen:
            assert len(seen) == 6
            assert (norm.running_mean.item(), norm.running_var.item()) == (0, 1)
        else:
            means = torch.stack([pixels.mean() for pixels in seen[6:]])
            assert len(means) == 3
            assert norm.running_mean.item() == pytest.approx(0.5 * means.mean().item(), abs=1e-6)
