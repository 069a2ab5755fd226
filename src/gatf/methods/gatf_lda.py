"""GATF for pretrained backbones: class means and one covariance in the full feature width, transported by the anchor.

A bottleneck that is fitted to the first task loses what pretrained features know about later classes. Here nothing is
projected. The anchor is shrunk towards the identity, so it needs fewer pairs than the features have dimensions. In
this width a residual would have billions of weights, and the distiller is the identity: GATF's backward term compares
old and new features directly. The classifier is `slda`'s, and without training the method equals `slda`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gatf.geometry.anchor import fit_anchor
from gatf.geometry.gaussians import Gaussians
from gatf.methods.base import Batch, ForTask, Phase, TaskData, TaskInfo
from gatf.methods.parts.anchor import drift_moments
from gatf.methods.parts.closed_form import Discriminant, DiscriminantConfig, LinearRule, MomentMemory
from gatf.methods.parts.extraction import frozen_features
from gatf.settings import AffectsLaterTasksOnly, MethodConfig, NotNegative, Positive


class GATFLDAConfig(DiscriminantConfig):
    name: str = "gatf-lda"
    train_first: bool | None = None
    """False: freeze the backbone in all tasks. Otherwise every task trains it."""
    topology: AffectsLaterTasksOnly[NotNegative] = 10.0
    """Weight of the squared distance between old and new features."""
    ridge: AffectsLaterTasksOnly[Positive] = 1.0
    """Regularisation ρ of the anchor."""

    def training(self) -> dict[str, Any]:
        """Other than those of methods whose network is frozen after the first task."""
        return MethodConfig.training(self)

    def first_training(self) -> dict[str, Any]:
        return MethodConfig.first_training(self)


class GATFLDA(Discriminant[GATFLDAConfig]):
    """Class means and one covariance, transported by the anchor of each task's images."""

    name = "gatf-lda"
    Config = GATFLDAConfig
    revisits = False
    gaussians_only = True
    teacher = ForTask[nn.Module]()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.memory = MomentMemory(self.feature_dim)
        self.rule = LinearRule(self.feature_dim)

    @property
    def network_is_fixed(self) -> bool:
        return self.config.train_first is False

    def trains(self, task: TaskInfo) -> bool:
        return not self.network_is_fixed

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        if self.trains(task) and task.index > 0:
            self.teacher = self.frozen_copy(self.backbone)

    def phases(self, task: TaskInfo) -> list[Phase]:
        if not self.trains(task):
            return []
        stage = self.optimisation.stage(task.index)
        modules = {"backbone": self.backbone, "head": self.head}
        groups = self.train_groups(stage, self.head)
        return [Phase("train", modules, lambda batch: self.loss(batch, task), stage, groups=groups)]

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Cross-entropy of the task's classes; later also λ_top·‖z_new − z_old‖²."""
        new = self.features(batch)  # [B, S]
        terms = {"ce": cross_entropy(self.head(new), batch.labels - task.old)}
        if task.index > 0:
            terms["backward"] = self.config.topology * mse_loss(new, frozen_features(self.teacher, batch.images))
        return terms

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        """Transport means and covariance of older classes, then add those of the new ones."""
        if self.trains(data.info) and data.info.index > 0:
            pairs = drift_moments(
                self.teacher, self.backbone, data, dim=self.feature_dim, purpose="anchor",
                batch_size=self.optimisation.stage(data.info.index).batch_size,
            )  # fmt: skip
            anchor = fit_anchor(pairs, self.config.ridge, kind="identity")
            self.memory.set(self.memory.get().mapped(anchor.weight, anchor.bias))
        self.learn_task(data)
        self.teacher = None

    def stored(self) -> Gaussians:
        return Gaussians.sharing(self.memory.means, self.memory.get().covariance())
