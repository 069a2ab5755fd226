"""AdaGauss (Rypeść, Cygert, Trzciński, Twardowski: "Task-recency bias strikes back", NeurIPS 2024)."""

from dataclasses import replace
from typing import Any, Literal

from pydantic import PositiveInt
from torch import Tensor, nn

from gatf.methods.base import Batch, ForTask, Phase, TaskInfo
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.losses import task_batch
from gatf.methods.parts.mapped import MapConfig, MappedGaussians
from gatf.settings import AffectsLaterTasksOnly, AffectsReadoutOnly, NotNegative


class AdaGaussConfig(MapConfig):
    name: str = "adagauss"
    distill: AffectsLaterTasksOnly[NotNegative] = 10.0
    """Weight λ of the distillation through a learned projector new → old."""
    reduction: AffectsLaterTasksOnly[Literal["mean", "sum"]] = "mean"
    """Squared distances of distillation and adapter: means over batch and coordinates (release), or sums (paper)."""
    adapter_milestones: AffectsReadoutOnly[tuple[PositiveInt, ...]] = (30, 60, 90)
    """Epochs of the adapter stage at which its rate is divided by ten (paper: 45 and 90). The stage has half as many
    epochs as the task."""
    readout_shrink: AffectsReadoutOnly[NotNegative | None] = None
    """Shrinkage of the covariances in bayes and mahalanobis distances. Default: 3 as released, or 0.001. The paper:
    `readout=mahalanobis` with 0."""


def summed(phase: Phase, term: str, dim: int) -> Phase:
    """The phase with one of its terms, a mean over batch and coordinates, as a sum over both."""

    def loss(batch: Batch) -> dict[str, Tensor]:
        terms = phase.loss(batch)
        return {**terms, term: batch.whole * dim * terms[term]}

    return replace(phase, loss=loss)


class AdaGauss(MappedGaussians[AdaGaussConfig]):
    """One Gaussian per class; after each task a second MLP, the adapter, maps the old ones to the new space."""

    name = "adagauss"
    Config = AdaGaussConfig
    projector = ForTask[nn.Module]()
    adapter = ForTask[nn.Module]()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.memory.readout_shrink = self.config.readout_shrink

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        if task.index > 0:
            self.projector = self.make_mlp("new to old", task)
            self.adapter = self.make_mlp("old to new", task)

    def map(self, old: Tensor) -> Tensor:
        return self.adapter(old)

    def trained_maps(self) -> dict[str, nn.Module]:
        return {"projector": self.projector}

    def refinement(self, task: TaskInfo) -> list[Phase]:
        adapter = self.fitting(self.adapter, task, self.config.adapter_milestones)
        return [adapter if self.config.reduction == "mean" else summed(adapter, "adapter", self.feature_dim)]

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """L = L_CE + λ·L_PKD + α·L_AC."""
        config = self.config
        images, labels = task_batch(batch, task, self.rotates(task))
        features = self.features(batch, images)
        terms = {"ce": nn.functional.cross_entropy(self.head(features), labels)}
        if task.index > 0:
            old = frozen_features(self.teacher, images)
            scale = batch.whole * self.feature_dim if config.reduction == "sum" else 1
            terms["distill"] = config.distill * (scale * nn.functional.mse_loss(self.projector(features), old))
        return terms | self.collapse_term(features, batch)

    def transported(self, old: Tensor, phase: str) -> Tensor | None:
        return self.adapter(old) if phase == "adapter" else None
