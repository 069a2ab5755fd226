"""What the loop does between a loss and a trained module, on losses whose gradients are known."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn

from gatf.config import RunConfig
from gatf.data.loader import Batch
from gatf.experiment import Experiment
from gatf.settings import StageConfig
from gatf.training.loop import Position, train_phase
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


def train(experiment: Experiment, phase: Phase, position: Position | None = None, **reported: Any) -> None:
    nothing: dict[str, Any] = {"save": lambda *where: None, "restore": None, "stop": lambda: False, "save_every": None}
    train_phase(
        phase, experiment.task_data(0), experiment.session.fabric, listener=lambda event: None,
        position=position or Position(), **nothing | reported,
    )  # fmt: skip


class TestClipping:
    """Two modules with gradients 4 and 3, norm 5, in three steps at rate 1."""

    def weights(self, experiment: Experiment, **settings: Any) -> list[float]:
        modules = {"backbone": scalar(0.0), "map": scalar(0.0)}

        def loss(batch: Batch) -> dict[str, Tensor]:
            return {"loss": 4 * modules["backbone"].weight.sum() + 3 * modules["map"].weight.sum()}

        train(experiment, Phase("x", modules, loss, stage(**settings)))
        return [module.weight.item() for module in modules.values()]

    def test_one_norm_over_all_modules(self, experiment: Experiment) -> None:
        assert self.weights(experiment, clip=1.0) == pytest.approx([-3 * 0.8, -3 * 0.6], rel=1e-5)
