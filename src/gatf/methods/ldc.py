"""LDC (Gomez-Villa et al., "Exemplar-free Continual Representation Learning via Learnable Drift Compensation", ECCV
2024)."""

from collections.abc import Callable
from functools import cache
from math import ceil

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from gatf.methods.base import Batch, ForTask, Phase, TaskData, TaskInfo
from gatf.methods.parts.compensation import DriftCompensated, DriftConfig, Report
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.prototypes import finite
from gatf.nets.folding import folded
from gatf.settings import Positive, StageConfig

BATCH = 128
"""Images per step of the projector, as in the release."""


class LDCConfig(DriftConfig):
    name: str = "ldc"
    projector_lr: Positive = 1e-3
    """Adam's learning rate."""
    projector_epochs: PositiveInt = 20
    """Epochs of the projector, a matrix from old to new features."""
    projector_updates: PositiveInt | None = None
    """Updates of the projector, rounded to whole epochs; replaces `projector_epochs`."""


def projector_stage(config: LDCConfig, images: int) -> StageConfig:
    """Adam at a constant rate without weight decay."""
    steps = ceil(images / BATCH)
    epochs = config.projector_epochs
    if config.projector_updates is not None:
        epochs = max(1, round(config.projector_updates / steps))
    return StageConfig(
        optimiser="adam", epochs=epochs, batch_size=BATCH, lr=config.projector_lr, weight_decay=0.0,
        schedule="constant", clip=None, warmup=0.0, drop_last=False,
    )  # fmt: skip


def projector_phase(
    projector: nn.Module, old: nn.Module, new: nn.Module, stage: StageConfig,
    frozen_copy: Callable[[nn.Module], nn.Module] = folded,
) -> Phase:  # fmt: skip
    """Fit W·f_{t−1}(x) ≈ f_t(x) on current images, both networks frozen, no label read."""
    frozen = cache(lambda: frozen_copy(new))  # made in the first step, when its training is over

    def loss(batch: Batch) -> dict[str, Tensor]:
        before, after = frozen_features(old, batch.images), frozen_features(frozen(), batch.images)
        return {"projector": mse_loss(projector(before), after)}

    def set_mode() -> None:
        new.eval()
        projector.train()

    return Phase("projector", {"projector": projector}, loss, stage, rate="method.projector_lr", set_mode=set_mode)


class LDC(DriftCompensated[LDCConfig]):
    """Nearest class mean; old prototypes go through a linear map from the old to the new feature space."""

    name = "ldc"
    Config = LDCConfig
    projector = ForTask[nn.Module]()

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        if self.compensates(task):
            dim = self.base.feature_dim
            self.projector = self.make(lambda: nn.Linear(dim, dim, bias=False), "ldc", task.index)

    def phases(self, task: TaskInfo) -> list[Phase]:
        phases = super().phases(task)
        if self.compensates(task):
            stage = projector_stage(self.config, task.images)
            networks = self.base.teacher, self.base.network(self)
            phases.append(projector_phase(self.projector, *networks, stage, self.frozen_copy))
        return phases

    @torch.no_grad()
    def moved(self, prototypes: Tensor, old: nn.Module, new: nn.Module, data: TaskData) -> tuple[Tensor, Report]:
        """P_c ← W·P_c for every old class, raw prototypes, no clipping."""
        alive = torch.stack([(old(batch.images) != 0).any(dim=0) for batch in data.batches("test")]).any(dim=0)
        moved = finite(self.projector(prototypes))
        return moved, {
            "dead_columns": 1 - float(alive.double().mean()),
            "norm_ratio": float((moved.norm(dim=1) / prototypes.norm(dim=1).clamp_min(1e-12)).mean()),
        }
