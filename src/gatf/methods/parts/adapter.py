"""AdaGauss's adapter stage: a map from old to new features, fitted while both networks are frozen."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from torch import Tensor, nn

from gatf.methods.base import Batch, Phase, TaskData
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.losses import anti_collapse, has_covariance
from gatf.nets.folding import folded
from gatf.settings import StageConfig


def adapter_phase(
    adapter: nn.Module, mapping: Callable[[Tensor], Tensor], teacher: nn.Module, student: nn.Module, *,
    stage: StageConfig, anti_collapse_weight: float, clamp: float,
    on_epoch_start: Callable[[int, TaskData], None] | None = None,
) -> Phase:  # fmt: skip
    """AdaGauss's adapter stage: with both networks frozen, fit old → new features and keep the images full rank."""
    at_rest = cache(lambda: folded(student))  # made in the first step, when the student's training is over

    def loss(batch: Batch) -> dict[str, Tensor]:
        old, new = frozen_features(teacher, batch.images), frozen_features(at_rest(), batch.images)
        moved = mapping(old)
        terms = {"adapter": nn.functional.mse_loss(moved, new)}
        if anti_collapse_weight and has_covariance(moved, batch):
            terms["adapter_anti_collapse"] = anti_collapse_weight * anti_collapse(moved, clamp)
        return terms

    def set_mode() -> None:
        student.eval()
        adapter.train()

    return Phase(
        "adapter", {"adapter": adapter}, loss, stage, on_epoch_start=on_epoch_start, rate="method.adapter_lr",
        set_mode=set_mode,
    )  # fmt: skip


def map_group(modules: Iterable[nn.Module], lr: float | None, weight_decay: float | None) -> dict[str, Any]:
    """A parameter group of the maps between feature spaces; None: the stage's rate or decay."""
    group: dict[str, Any] = {"params": [p for module in modules for p in module.parameters()]}
    own = {"lr": lr, "weight_decay": weight_decay}
    return group | {name: value for name, value in own.items() if value is not None}


def adapter_stage(stage: StageConfig, lr: float, milestones: tuple[int, ...] = (30, 60, 90)) -> StageConfig:
    """How AdaGauss fits its adapter: half the epochs, SGD at its own rate, the last batch dropped.

    `milestones` are epochs of the adapter, not fractions of its length: one past its end has no effect, so that a short
    stage keeps its full rate to the end.
    """
    epochs = max(1, stage.epochs // 2)
    reached = tuple(milestone / epochs for milestone in milestones if milestone < epochs)
    changes = {"optimiser": "sgd", "epochs": epochs, "lr": lr, "milestones": reached}
    return stage.model_copy(update={**changes, "schedule": "steps", "decay": 0.1, "drop_last": True})
