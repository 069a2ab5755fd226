"""AdaGauss (Rypeść, Cygert, Trzciński, Twardowski: "Task-recency bias strikes back", NeurIPS 2024)."""

from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from gatf.geometry import gaussians
from gatf.methods.base import Batch, Method, Phase, TaskData, TaskInfo
from gatf.methods.components import (
    GaussianMemory,
    Rule,
    adapter_phase,
    adapter_stage,
    anti_collapse,
    check_batches,
    task_batch,
    warmup_epochs,
)
from gatf.nets.mlp import feature_mlp
from gatf.settings import MethodConfig, NotNegative, Positive


class AdaGaussConfig(MethodConfig):
    name: Literal["adagauss"] = "adagauss"
    distillation: Literal["projected", "feature", "none"] = "projected"
    """Distil through a learned projector new → old, on the features themselves, or not at all."""
    distill: NotNegative = 10.0
    """Weight λ of the distillation, a mean over batch and coordinates."""
    anti_collapse: NotNegative = 1.0
    """Weight α of the anti-collapse loss."""
    clamp: Positive = 1.0
    """β: diagonal entries of the Cholesky factor above it are not pushed further."""
    rotation: bool = True
    """Learn four rotations of every class at task 0."""
    projector: Literal["mlp", "affine"] = "mlp"
    """Shape of the projector."""
    adapter: Literal["mlp", "affine"] = "mlp"
    """Shape of the adapter old → new."""
    expansion: PositiveInt = 32
    """Hidden units of the MLPs, as a multiple of S."""
    adapter_lr: Positive = 0.01
    """Learning rate of the adapter stage."""
    adapter_milestones: tuple[float, ...] = (0.3, 0.6, 0.9)
    """Fractions of the adapter's E/2 epochs at which its rate is divided by ten; the paper's text has 0.45 and 0.9."""
    transport: Literal["full", "diag", "mean", "none"] = "full"
    """What the adapter moves: mean and covariance, mean and variances, the mean alone, or nothing."""
    samples: PositiveInt = 10_000
    """Points drawn from each Gaussian to carry it through the adapter."""
    matched_noise: bool = True
    """Draw points whose sample mean and covariance are exact, so that an affine map adds no sampling error."""
    shrink: NotNegative = 0.0
    """Shrinkage of stored covariances (0.5 in the ablation without anti-collapse)."""
    readout: Rule = "bayes"
    """How classes are told apart."""


class AdaGauss(Method):
    """Every class is a Gaussian; after each task a second MLP, the adapter, carries the old ones into the new space."""

    name = "adagauss"
    Config = AdaGaussConfig
    keeps_gaussians_only = True
    summary = "class Gaussians carried by an adapter fitted after each task (NeurIPS 2024)"
    paper = "Rypeść et al., Task-recency bias strikes back, NeurIPS 2024"
    keeps = "mean and covariance of each class in the bottleneck space"
    trains = "backbone and projector, then an adapter old → new"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.config.anti_collapse:
            check_batches(self.optimisation, self.feature_dim)
        self.memory = GaussianMemory(self.feature_dim, rule=self.config.readout, seed=self.seed)
        self.head: Any = None
        self.teacher: Any = None
        self.projector: Any = None
        self.adapter: Any = None

    def begin_task(self, task: TaskInfo) -> None:
        outputs = 4 * task.new if self._rotates(task) else task.new
        self.head = self.make(lambda: nn.Linear(self.feature_dim, outputs), "head", task.index)
        if task.index > 0:
            self.teacher = self.frozen_copy(self.backbone)
            self.projector = self.make(lambda: self._map(self.config.projector), "new to old", task.index)
            self.adapter = self.make(lambda: self._map(self.config.adapter), "old to new", task.index)

    def phases(self, task: TaskInfo) -> list[Phase]:
        stage = self.optimisation.stage(task.index)
        rotates = self._rotates(task)
        modules = {"backbone": self.backbone, "head": self.head}
        if task.index > 0:
            modules["projector"] = self.projector
        backbone = Phase(
            "backbone",
            modules,
            lambda batch: self._loss(batch, task),
            stage,
            groups=self.train_groups(stage, *list(modules.values())[1:]),
            batch_size=stage.batch_size // 4 if rotates else None,
        )
        if task.index == 0 or self.config.transport == "none":
            return [backbone]
        adapter = adapter_phase(
            self.adapter,
            self.adapter,
            self.teacher,
            self.backbone,
            stage=adapter_stage(stage, self.config.adapter_lr, self.config.adapter_milestones),
            anti_collapse_weight=self.config.anti_collapse,
            clamp=self.config.clamp,
        )
        return [backbone, adapter]

    def _loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """L = L_CE + λ·L_PKD + α·L_AC, squared norms as means over batch and coordinates."""
        images, labels = task_batch(batch, task, self._rotates(task))
        features = self.backbone(images)
        if batch.epoch < warmup_epochs(self.optimisation.stage(task.index)):
            features = features.detach()
        terms = {"ce": nn.functional.cross_entropy(self.head(features), labels)}
        if task.index > 0 and self.config.distillation != "none":
            with torch.no_grad():
                old = self.teacher(images)
            seen = self.projector(features) if self.config.distillation == "projected" else features
            terms["distill"] = self.config.distill * nn.functional.mse_loss(seen, old)
        if self.config.anti_collapse and len(features) > features.shape[1]:
            terms["anti_collapse"] = self.config.anti_collapse * anti_collapse(features, self.config.clamp)
        return terms

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        self.backbone.eval()
        if data.info.index > 0 and self.config.transport != "none":
            self._transport(data.info.index)
        self.memory.learn(self.backbone, data, shrink=self.config.shrink, diagonal=self.config.transport == "diag")
        self.head = self.teacher = self.projector = self.adapter = None

    def _transport(self, task: int) -> None:
        """Carry the old Gaussians through the adapter (Alg. 1)."""
        before = self.memory.get()
        if self.config.transport == "mean":
            moved = self.adapter(before.means.float()).double()
            self.memory.set(gaussians.Gaussians(moved, before.covs))
            return
        repairs = self.memory.transport(
            self.adapter,
            samples=self.config.samples,
            matched=self.config.matched_noise,
            task=task,
            shrink=self.config.shrink,
            diagonal=self.config.transport == "diag",
        )
        self.note("transport", **repairs)

    def scores(self, images: Tensor) -> Tensor:
        return self.feature_scores(self.backbone(images))

    def feature_scores(self, features: Tensor) -> Tensor:
        return self.memory.scores(features)

    def stored(self) -> gaussians.Gaussians:
        return self.memory.get()

    def carried(self, old: Tensor, phase: str) -> Tensor | None:
        return self.adapter(old) if phase == "adapter" else None

    def keep(self, stored: gaussians.Gaussians) -> None:
        self.memory.set(stored)

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()

    def _rotates(self, task: TaskInfo) -> bool:
        return bool(self.config.rotation) and task.index == 0

    def _map(self, shape: str) -> nn.Module:
        if shape == "affine":
            return nn.Linear(self.feature_dim, self.feature_dim)
        return feature_mlp(self.feature_dim, self.config.expansion)
