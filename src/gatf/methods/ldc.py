"""LDC (Gomez-Villa et al., "Exemplar-free Continual Representation Learning via Learnable Drift Compensation", ECCV
2024)."""

from functools import cache
from math import ceil
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from gatf.methods.base import Batch, ForTask, Method, Phase, TaskData, TaskInfo
from gatf.methods.parts.compensation import Compensator, DriftCompensated, DriftConfig, Report
from gatf.methods.parts.prototypes import finite
from gatf.nets.folding import folded
from gatf.settings import Positive, StageConfig

RELEASE_BATCH = 128
"""Batch of the release's projector: a budget of epochs means as many updates as epochs of this batch."""
Shape = Literal["linear", "affine", "linear_relu", "mlp"]


class LDCConfig(DriftConfig):
    name: str = "ldc"
    projector: Shape = "linear"
    """Map old → new features: a matrix, with bias, followed by ReLU, or two layers."""
    projector_lr: Positive = 1e-3
    """Adam's learning rate."""
    projector_epochs: PositiveInt = 20
    """Epochs of the projector, counted at batch size 128."""
    projector_batch: PositiveInt = 128
    """Images per step of the projector."""
    projector_updates: PositiveInt | None = None
    """Updates of the projector, rounded to whole epochs; replaces `projector_epochs`."""


def build_projector(shape: Shape, dim: int) -> nn.Module:
    """Framework-default init; the default is one matrix without bias, the best of the paper's ablation."""
    if shape == "linear_relu":
        return nn.Sequential(nn.Linear(dim, dim, bias=False), nn.ReLU())
    if shape == "mlp":
        return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
    return nn.Linear(dim, dim, bias=shape == "affine")


def projector_stage(config: LDCConfig, images: int) -> StageConfig:
    """Adam at a constant rate without weight decay; the budget in updates decides the epochs."""
    updates = config.projector_updates or config.projector_epochs * ceil(images / RELEASE_BATCH)
    return StageConfig(
        optimiser="adam",
        epochs=max(1, round(updates / ceil(images / config.projector_batch))),
        batch_size=config.projector_batch,
        lr=config.projector_lr,
        weight_decay=0.0,
        schedule="constant",
        clip=None,
        warmup=0.0,
        drop_last=False,
    )


def projector_phase(projector: nn.Module, old: nn.Module, new: nn.Module, stage: StageConfig) -> Phase:
    """Fit W·f_{t−1}(x) ≈ f_t(x) on current images, both networks frozen, no label read."""
    at_rest = cache(lambda: folded(new))  # made in the first step, when its training is over

    def loss(batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            before, after = old(batch.images), at_rest()(batch.images)
        return {"projector": mse_loss(projector(before), after)}

    def set_mode() -> None:
        new.eval()
        projector.train()

    return Phase("projector", {"projector": projector}, loss, stage, rate="method.projector_lr", set_mode=set_mode)


class LearnedDrift(nn.Module, Compensator):
    """LDC: one map of feature space, fitted on current images, carries every old prototype."""

    projector = ForTask[nn.Module]()

    def __init__(self, config: LDCConfig, dim: int) -> None:
        super().__init__()
        self.config, self.dim = config, dim

    def begin(self, method: Method, task: TaskInfo) -> None:
        self.projector = method.make(lambda: build_projector(self.config.projector, self.dim), "ldc", task.index)

    def phases(self, old: nn.Module, new: nn.Module, task: TaskInfo) -> list[Phase]:
        return [projector_phase(self.projector, old, new, projector_stage(self.config, task.images))]

    @torch.no_grad()
    def transport(self, prototypes: Tensor, old: nn.Module, new: nn.Module, data: TaskData) -> tuple[Tensor, Report]:
        """P_c ← W·P_c for every old class, raw prototypes, no clipping."""
        old.eval()
        new.eval()
        alive = torch.stack([(old(batch.images) != 0).any(dim=0) for batch in data.batches("test")]).any(dim=0)
        moved = finite(self.projector(prototypes))
        return moved, {
            "dead_columns": 1 - float(alive.double().mean()),
            "norm_ratio": float((moved.norm(dim=1) / prototypes.norm(dim=1).clamp_min(1e-12)).mean()),
        }

    def end(self) -> None:
        self.projector = None


class LDC(DriftCompensated[LDCConfig]):
    """Nearest class mean; old prototypes go through a linear map from the old to the new feature space."""

    name = "ldc"
    Config = LDCConfig

    def build_compensator(self, dim: int) -> Compensator:
        return LearnedDrift(self.config, dim)
