"""AdaGauss (Rypeść, Cygert, Trzciński, Twardowski: "Task-recency bias strikes back", NeurIPS 2024)."""

from typing import Any, Literal

from torch import Tensor, nn

from gatf.methods.base import Batch, ForTask, Phase, TaskInfo
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.losses import task_batch
from gatf.methods.parts.mapped import MapConfig, MappedGaussians
from gatf.nets.mlp import zero_residual
from gatf.settings import AffectsLaterTasksOnly, AffectsReadoutOnly, NotNegative


class AdaGaussConfig(MapConfig):
    name: str = "adagauss"
    distill: AffectsLaterTasksOnly[NotNegative] = 10.0
    """Weight λ of the distillation through a learned projector new → old."""
    adapter: AffectsReadoutOnly[Literal["mlp", "residual"]] = "mlp"
    """The adapter: an MLP with random weights, as published, or the identity plus an MLP that starts at zero. An MLP
    needs hundreds of steps to become the identity, which pretrained backbones hardly leave."""
    readout_shrink: AffectsReadoutOnly[NotNegative | None] = None
    """Shrinkage of the covariances in bayes and mahalanobis distances. Default: 3 as released, or 0.001."""


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
            if self.config.adapter == "residual":
                self.adapter = self.make(
                    lambda: zero_residual(self.feature_dim, self.config.map.expansion), "residual", task.index
                )

    def map(self, old: Tensor) -> Tensor:
        mapped: Tensor = self.adapter(old)
        return old + mapped if self.config.adapter == "residual" else mapped

    def trained_maps(self) -> dict[str, nn.Module]:
        return {"projector": self.projector}

    def refinement(self, task: TaskInfo) -> list[Phase]:
        return [self.fitting(self.adapter, task)]

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """L = L_CE + λ·L_PKD + α·L_AC."""
        images, labels = task_batch(batch, task, self.rotates(task))
        features = self.features(batch, images)
        terms = {"ce": nn.functional.cross_entropy(self.head(features), labels)}
        if task.index > 0:
            old = frozen_features(self.teacher, images)
            terms["distill"] = self.config.distill * nn.functional.mse_loss(self.projector(features), old)
        return terms | self.collapse_term(features, batch)

    def transported(self, old: Tensor, phase: str) -> Tensor | None:
        return self.map(old) if phase == "adapter" else None
