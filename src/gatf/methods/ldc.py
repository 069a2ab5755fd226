"""LDC (Gomez-Villa et al., "Exemplar-free Continual Representation Learning via Learnable Drift Compensation", ECCV
2024)."""

from functools import cache
from math import ceil
from typing import Literal

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from gatf.geometry.anchor import Affine, solve_ridge
from gatf.geometry.moments import PairedMoments
from gatf.methods.base import Batch, Method, Phase, TaskData, TaskInfo
from gatf.methods.card import MethodCard
from gatf.methods.parts.compensation import Compensator, DriftCompensated, DriftConfig, Report
from gatf.methods.parts.extraction import feature_pairs
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
    solver: Literal["adam", "ridge"] = "adam"
    """Train the projector as published, far from convergence, or solve for it (another method: DPCR's projection)."""
    projector_lr: Positive = 1e-3
    """Adam's learning rate."""
    projector_epochs: PositiveInt = 20
    """Epochs of the projector; with another batch than 128, as many updates as these epochs would have had at 128."""
    projector_batch: PositiveInt = 128
    """Images per step of the projector."""
    projector_updates: PositiveInt | None = None
    """Updates of the projector, rounded to whole epochs; replaces `projector_epochs`."""
    ridge: Positive = 1e-6
    """ε of the ridge solver, as a fraction of the old features' mean square."""

    @model_validator(mode="after")
    def _ridge_is_linear(self) -> "LDCConfig":
        if self.solver == "ridge" and self.projector not in ("linear", "affine"):
            raise ValueError("solver ridge fits a linear or affine projector; use solver adam for the others")
        return self


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


def ridge_projector(pairs: PairedMoments, ridge: float, *, bias: bool) -> Affine:
    """The minimiser of E‖W f − g‖² + ε·‖W‖² over pairs (f, g), ε = ridge·E‖f‖²/D; with `bias` of centred pairs.

    W = E[g fᵀ] (E[f fᵀ] + εI)⁻¹, float64, finite however few the samples.
    """
    old, new = pairs.mean_old, pairs.mean_new
    second = pairs.joint.scatter / pairs.count
    second_old = second[: pairs.dim_old, : pairs.dim_old]
    cross = second[pairs.dim_old :, : pairs.dim_old]
    if not bias:
        second_old, cross = second_old + torch.outer(old, old), cross + torch.outer(new, old)
    weight = solve_ridge(second_old, cross, ridge=ridge * float(second_old.diagonal().mean()))
    return Affine(weight, new - weight @ old if bias else torch.zeros_like(new))


class LearnedDrift(nn.Module, Compensator):
    """LDC: one map of feature space, fitted on current images, carries every old prototype."""

    def __init__(self, config: LDCConfig, dim: int) -> None:
        super().__init__()
        self.config, self.dim = config, dim
        self.projector: nn.Module | None = None

    def begin(self, method: Method, task: TaskInfo) -> None:
        if self.config.solver == "adam":
            self.projector = method.make(lambda: build_projector(self.config.projector, self.dim), "ldc", task.index)

    def phases(self, old: nn.Module, new: nn.Module, task: TaskInfo) -> list[Phase]:
        if self.projector is None:
            return []
        return [projector_phase(self.projector, old, new, projector_stage(self.config, task.images))]

    @torch.no_grad()
    def transport(self, prototypes: Tensor, old: nn.Module, new: nn.Module, data: TaskData) -> tuple[Tensor, Report]:
        """P_c ← W·P_c for every old class, raw prototypes, no clipping."""
        old.eval()
        new.eval()
        alive = torch.stack([(old(batch.images) != 0).any(dim=0) for batch in data.batches("test")]).any(dim=0)
        projector = self._solve(old, new, data) if self.projector is None else self.projector
        moved = finite(projector(prototypes))
        return moved, {
            "dead_columns": 1 - float(alive.double().mean()),
            "norm_ratio": float((moved.norm(dim=1) / prototypes.norm(dim=1).clamp_min(1e-12)).mean()),
        }

    def _solve(self, old: nn.Module, new: nn.Module, data: TaskData) -> Affine:
        total = PairedMoments.zeros(self.dim, self.dim, device=next(new.parameters()).device)
        size = self.config.projector_batch
        for before, after in feature_pairs(old, new, data, batch_size=size, purpose="projector"):
            total = total.merge(PairedMoments.of(before, after))
        return ridge_projector(total, self.config.ridge, bias=self.config.projector == "affine")

    def end(self) -> None:
        self.projector = None


class LDC(DriftCompensated[LDCConfig]):
    """Nearest class mean; old prototypes go through a linear map from the old to the new feature space."""

    name = "ldc"
    Config = LDCConfig
    card = MethodCard(
        summary="prototypes transported by a linear map fitted on current images (ECCV 2024)",
        when="when the network must keep learning and only a mean per class can be stored",
        keeps="a prototype of each class",
        trains="backbone and cosine head (LwF), then a linear projector old → new",
        authors=(
            "Alex Gomez-Villa", "Dipam Goswami", "Kai Wang", "Andrew D. Bagdanov", "Bartłomiej Twardowski",
            "Joost van de Weijer",
        ),
        title="Exemplar-free Continual Representation Learning via Learnable Drift Compensation",
        venue="ECCV",
        year=2024,
        url="https://arxiv.org/abs/2407.08536",
    )  # fmt: skip

    def build_compensator(self, dim: int) -> Compensator:
        return LearnedDrift(self.config, dim)
