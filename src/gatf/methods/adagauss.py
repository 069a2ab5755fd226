"""AdaGauss (Rypeść, Cygert, Trzciński, Twardowski: "Task-recency bias strikes back", NeurIPS 2024)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from gatf.methods.base import Batch, ForTask, Phase, TaskData, TaskInfo
from gatf.methods.card import MethodCard
from gatf.methods.lwf import softened_cross_entropy
from gatf.methods.parts.adapter import adapter_phase, adapter_stage
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.gaussian import GaussianMethod
from gatf.methods.parts.losses import anti_collapse, check_batches, has_covariance, task_batch
from gatf.methods.parts.memory import CovarianceConfig, GaussianMemory, Rule
from gatf.nets.heads import Heads
from gatf.nets.mlp import feature_mlp
from gatf.settings import AffectsLaterTasksOnly, AffectsReadoutOnly, NotNegative, Positive


class AdaGaussConfig(CovarianceConfig):
    name: str = "adagauss"
    distillation: AffectsLaterTasksOnly[Literal["projected", "feature", "logit", "none"]] = "projected"
    """Distil through a learned projector new → old, on the features themselves, on the logits of the heads of all past
    tasks, which then are kept and trained further (LwF), or not at all."""
    distill: AffectsLaterTasksOnly[NotNegative] = 10.0
    """Weight λ of the distillation."""
    temperature: AffectsLaterTasksOnly[Positive] = 2.0
    """τ of the logit distillation."""
    reduction: AffectsLaterTasksOnly[Literal["mean", "sum"]] = "mean"
    """Squared distances of distillation and adapter as means over batch and coordinates (the release, to which λ
    belongs), or as sums (the paper's equations)."""
    anti_collapse: NotNegative = 1.0
    """Weight α of the anti-collapse loss."""
    clamp: Positive = 1.0
    """β: diagonal entries of the Cholesky factor above it are not pushed further."""
    rotation: bool = True
    """Learn four rotations of every class at task 0."""
    projector: AffectsLaterTasksOnly[Literal["mlp", "affine"]] = "mlp"
    """Shape of the projector."""
    adapter: AffectsReadoutOnly[Literal["mlp", "affine"]] = "mlp"
    """Shape of the adapter old → new."""
    expansion: AffectsLaterTasksOnly[PositiveInt] = 32
    """Hidden units of the MLPs, as a multiple of S."""
    adapter_lr: AffectsReadoutOnly[Positive] = 0.01
    """Learning rate of the adapter stage."""
    adapter_milestones: AffectsReadoutOnly[tuple[PositiveInt, ...]] = (30, 60, 90)
    """Epochs of the adapter, of which it has half as many as the task, at which its rate is divided by ten; those past
    its end have no effect. The paper's text has 45 and 90."""
    transport: AffectsReadoutOnly[Literal["full", "diag", "mean", "none"]] = "full"
    """What the adapter moves: mean and covariance, mean and variances, the mean alone, or nothing. With `diag` also new
    classes keep variances alone, as with `covariance: diag`, which takes less memory."""
    shrink: AffectsReadoutOnly[NotNegative] = 0.0
    """Shrinkage of stored covariances (0.5 in the ablation without anti-collapse)."""
    readout: AffectsReadoutOnly[Rule] = "bayes"
    """Classifier on the Gaussians: the papers' distance (bayes), Mahalanobis distance, nearest mean (nmc), a linear
    classifier trained on samples (linear), or regularised discriminant analysis (rda)."""
    readout_shrink: AffectsReadoutOnly[NotNegative | None] = None
    """Shrinkage of the covariances in the distances of bayes and mahalanobis. Default: 3 as released, or 0.001; the
    paper, which speaks against shrinking, is readout mahalanobis with 0."""


def summed(phase: Phase, term: str, dim: int) -> Phase:
    """The phase with one of its terms, a mean over batch and coordinates, as a sum over both."""

    def loss(batch: Batch) -> dict[str, Tensor]:
        terms = phase.loss(batch)
        return {**terms, term: batch.whole * dim * terms[term]}

    return replace(phase, loss=loss)


class AdaGauss(GaussianMethod[AdaGaussConfig]):
    """Every class is a Gaussian; after each task a second MLP, the adapter, carries the old ones into the new space."""

    name = "adagauss"
    Config = AdaGaussConfig
    card = MethodCard(
        summary="class Gaussians transported by an adapter fitted after each task (NeurIPS 2024)",
        when="when the network must keep learning and there is time to train an adapter",
        keeps="mean and covariance of each class in the bottleneck space",
        trains="backbone and projector, then an adapter old → new",
        authors=("Grzegorz Rypeść", "Sebastian Cygert", "Tomasz Trzciński", "Bartłomiej Twardowski"),
        title="Task-recency bias strikes back: Adapting covariances in Exemplar-Free Class Incremental Learning",
        venue="NeurIPS",
        year=2024,
        url="https://arxiv.org/abs/2409.18265",
    )  # fmt: skip
    head = ForTask[nn.Linear]()
    teacher = ForTask[nn.Module]()
    teacher_heads = ForTask[nn.Module]()
    projector = ForTask[nn.Module]()
    adapter = ForTask[nn.Module]()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.config.anti_collapse:
            check_batches(self.optimisation, self.feature_dim)
        self.samples = self.config.draws(self.feature_dim)
        self.memory = GaussianMemory.of(
            self.config, self.feature_dim, rule=self.config.readout, seed=self.seed,
            readout_shrink=self.config.readout_shrink,
        )  # fmt: skip
        self.heads = Heads(self.feature_dim) if self.config.distillation == "logit" else None
        """Of the past tasks, where logits are distilled."""

    @property
    def gaussians_only(self) -> bool:
        return self.heads is None

    def begin_task(self, task: TaskInfo) -> None:
        self.memory.release_readout()
        outputs = 4 * task.new if self._rotates(task) else task.new
        self.head = self.make(lambda: nn.Linear(self.feature_dim, outputs), "head", task.index)
        if task.index > 0:
            self.teacher = self.frozen_copy(self.backbone)
            self.teacher_heads = None if self.heads is None else self.frozen_copy(self.heads)
            self.projector = self.make(lambda: self._map(self.config.projector), "new to old", task.index)
            self.adapter = self.make(lambda: self._map(self.config.adapter), "old to new", task.index)

    def phases(self, task: TaskInfo) -> list[Phase]:
        stage = self.optimisation.stage(task.index)
        rotates = self._rotates(task)
        modules = {"backbone": self.backbone, "head": self.head}
        if task.index > 0:
            modules["projector"] = self.projector
            modules |= {} if self.heads is None else {"heads": self.heads}
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
        return [backbone, adapter if self.config.reduction == "mean" else summed(adapter, "adapter", self.feature_dim)]

    def _loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """L = L_CE + λ·L_PKD + α·L_AC."""
        images, labels = task_batch(batch, task, self._rotates(task))
        features = self.features(batch, images)
        terms = {"ce": nn.functional.cross_entropy(self.head(features), labels)}
        if task.index > 0 and self.config.distillation != "none":
            old = frozen_features(self.teacher, images)
            terms["distill"] = self.config.distill * self._distillation(features, old, batch.whole)
        if self.config.anti_collapse and has_covariance(features, batch):
            terms["anti_collapse"] = self.config.anti_collapse * anti_collapse(features, self.config.clamp)
        return terms

    def _distillation(self, features: Tensor, old: Tensor, images: int) -> Tensor:
        """How far features [B, S] are from the teacher's."""
        if self.heads is not None:
            with torch.no_grad():
                logits = self.teacher_heads(old)
            return softened_cross_entropy(self.heads(features), logits, self.config.temperature)
        seen = self.projector(features) if self.config.distillation == "projected" else features
        scale = images * self.feature_dim if self.config.reduction == "sum" else 1
        return scale * nn.functional.mse_loss(seen, old)

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        self.backbone.eval()
        if data.info.index > 0 and self.config.transport != "none":
            self._transport(data.info.index)
        diagonal, noise = self.config.transport == "diag", self.config.noise()
        self.memory.learn(self.backbone, data, shrink=self.config.shrink, diagonal=diagonal, noise=noise)
        self.note_noise(noise)
        if self.heads is not None:
            self.heads.layers.append(self.head)
        self.head = self.teacher = self.teacher_heads = self.projector = self.adapter = None

    def _transport(self, task: int) -> None:
        """Carry the old Gaussians through the adapter (Alg. 1)."""
        if self.config.transport == "mean":
            self.memory.move_means(self.adapter, dtype=self.dtype)
            return
        repairs = self.memory.transport(
            self.adapter,
            samples=self.samples,
            matched=self.config.matched_noise,
            task=task,
            shrink=self.config.shrink,
            diagonal=self.config.transport == "diag",
            dtype=self.dtype,
            fewer=self.config.samples is None,
        )
        self.note("transport", **repairs)

    def transported(self, old: Tensor, phase: str) -> Tensor | None:
        return self.adapter(old) if phase == "adapter" else None

    def reestimated(self, plain: Tensor, mirrored: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
        return self.memory.reestimated(
            torch.cat([plain, mirrored]), torch.cat([labels, labels]),
            shrink=self.config.shrink, diagonal=self.config.transport == "diag",
        ).scores  # fmt: skip

    def bytes_per_class(self) -> int:
        """The Gaussian, and a row of a head where logits are distilled."""
        return self.memory.bytes_per_class() + (0 if self.heads is None else 4 * (self.feature_dim + 1))

    def _rotates(self, task: TaskInfo) -> bool:
        return self.config.rotation and task.index == 0

    def _map(self, shape: str) -> nn.Module:
        if shape == "affine":
            return nn.Linear(self.feature_dim, self.feature_dim)
        return feature_mlp(self.feature_dim, self.config.expansion)
