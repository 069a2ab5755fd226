"""GATF as the authors' released code runs it. It differs from the paper (`methods/gatf.py`) in several places:

- the residual starts with every layer zero, so only its output bias can learn;
- the anchor is a plain ridge regression, and its running average is not corrected for its start;
- the loss has cycle-consistency and pairwise cosine terms, and optionally a feature perturbation at task 0;
- the Gaussians are transported by plain samples, and a tenth of the training images is held out.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gatf.geometry import spd
from gatf.geometry.anchor import Affine, fit_anchor
from gatf.methods.base import Batch, ForTask, Phase, TaskData, TaskInfo
from gatf.methods.card import MethodCard
from gatf.methods.parts.adapter import adapter_phase, adapter_stage, map_group
from gatf.methods.parts.anchor import RunningAnchor, RunningAnchorConfig, drift_moments
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.gaussian import GaussianMethod
from gatf.methods.parts.losses import anti_collapse, check_batches, has_covariance, task_batch, whole_rows
from gatf.methods.parts.memory import CovarianceConfig, GaussianMemory, Rule
from gatf.nets.mlp import dead_residual, feature_mlp
from gatf.settings import AffectsLaterTasksOnly, AffectsReadoutOnly, NotNegative, Positive

PAIRWISE_ROWS = 128
"""Rows of a batch that the pairwise term compares."""


class GATFReleaseConfig(CovarianceConfig):
    name: str = "gatf-release"
    anchor: AffectsLaterTasksOnly[RunningAnchorConfig] = RunningAnchorConfig()
    """The anchor, a ridge regression from old to new features."""
    topology: AffectsLaterTasksOnly[NotNegative] = 5.0
    """Weight of the forward and the backward term."""
    cycle: AffectsLaterTasksOnly[NotNegative] = 2.0
    """Weight of the cycle-consistency terms."""
    pairwise: AffectsLaterTasksOnly[NotNegative] = 0.05
    """Weight of the pairwise cosine terms."""
    perturb: NotNegative = 0.0
    """Step of the feature perturbation at task 0, from which only the head learns (0.5 in the CUB-200 script)."""
    refine: AffectsReadoutOnly[bool] = False
    """After training, fit the map further on frozen features, as AdaGauss fits its adapter."""
    adapter_lr: AffectsReadoutOnly[Positive] = 0.01
    """Learning rate of `refine`, divided by ten at its epochs 30, 60 and 90."""
    anti_collapse: NotNegative = 1.0
    """Weight α of the anti-collapse loss."""
    clamp: Positive = 1.0
    """Upper limit β of the anti-collapse loss."""
    rotation: bool = True
    """Train four rotations of every class as four classes at task 0."""
    expansion: AffectsLaterTasksOnly[PositiveInt] = 32
    """Hidden units of residual and distiller, as a multiple of S."""
    map_lr: AffectsLaterTasksOnly[Positive | None] = None
    """Learning rate of residual and distiller. Default: the stage's."""
    map_weight_decay: AffectsLaterTasksOnly[NotNegative | None] = None
    """Weight decay of residual and distiller. Default: the stage's."""
    matched_noise: AffectsReadoutOnly[bool] = False
    """Draw samples in mirrored pairs with exact mean and covariance, which the release does not."""
    readout: AffectsReadoutOnly[Rule] = "bayes"
    """Classifier on the Gaussians: the papers' distance (bayes), Mahalanobis distance, nearest mean (nmc), a linear
    classifier trained on samples (linear), or regularised discriminant analysis (rda)."""

    def first_training(self) -> dict[str, Any]:
        """Task 0 is trained as in AdaGauss, unless features are perturbed."""
        own = super().first_training()
        if not self.perturb:
            del own["perturb"]
            own["name"] = "adagauss"
        return own


def cosines(features: Tensor) -> Tensor:
    """Cosine similarities of the first rows of a batch, [B, S] → [rows, rows]."""
    unit = nn.functional.normalize(features[:PAIRWISE_ROWS], dim=1)
    return unit @ unit.T


def perturbation_terms(
    head: nn.Module, features: Tensor, labels: Tensor, *, step: float, rows: int
) -> dict[str, Tensor]:
    """Task-0 feature perturbation of the CUB-200 script: the cross-entropy of features moved by `step` along its
    normalised gradient, and the mean norm of the gradient there, for a loss that is the mean over all `rows`.

    The moved features are constants, so only the head learns from either term.
    """
    start = features.detach().requires_grad_()
    (uphill,) = torch.autograd.grad(cross_entropy(head(start), labels, reduction="sum"), start)
    moved = (start + step * nn.functional.normalize(uphill, dim=1)).detach().requires_grad_()
    loss = cross_entropy(head(moved), labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, moved, create_graph=True)
    return {"adversarial": loss / len(labels), "gradient_norm": gradient.norm(dim=1).mean() / rows}


class GATFRelease(GaussianMethod[GATFReleaseConfig]):
    """GATF with the deviations of the authors' release."""

    name = "gatf-release"
    Config = GATFReleaseConfig
    gaussians_only = True
    defaults: ClassVar[dict[str, Any]] = {"data": {"val_fraction": 0.1}}
    card = MethodCard(
        summary="GATF as the authors' released code runs it, which differs from the paper (ECCV 2026)",
        when="to compare with numbers of the authors' code",
        keeps="mean and covariance of each class in the bottleneck space",
        trains="backbone, the map old → new (a constant on a ridge anchor) and its inverse, together",
        authors=("Xu", "Krawczyk"),
        title="Geometry-Anchored Transport Framework for Exemplar-Free Class-Incremental Learning",
        venue="ECCV",
        year=2026,
        url="https://github.com/HXuSz11/GATF_ECCV2026",
    )  # fmt: skip
    head = ForTask[nn.Linear]()
    teacher = ForTask[nn.Module]()
    residual = ForTask[nn.Module]()
    distiller = ForTask[nn.Module]()
    anchor = ForTask[RunningAnchor]()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.config.anti_collapse:
            check_batches(self.optimisation, self.feature_dim)
        self.samples = self.config.draws(self.feature_dim)
        self.memory = GaussianMemory.of(self.config, self.feature_dim, rule=self.config.readout, seed=self.seed)

    def begin_task(self, task: TaskInfo) -> None:
        self.memory.release_readout()
        dim, config = self.feature_dim, self.config
        outputs = 4 * task.new if self._rotates(task) else task.new
        self.head = self.make(lambda: nn.Linear(dim, outputs), "head", task.index)
        if task.index > 0:
            self.teacher = self.frozen_copy(self.backbone)
            self.residual = self.make(lambda: dead_residual(dim, config.expansion), "old to new", task.index)
            self.distiller = self.make(lambda: feature_mlp(dim, config.expansion), "new to old", task.index)
            self.anchor = RunningAnchor(dim, config.anchor.ema, bias_correct=False).to(self.device)

    def map(self, old: Tensor) -> Tensor:
        """Old features [B, S] in the new space: anchor plus residual."""
        return self.anchor(old) + self.residual(old)

    def phases(self, task: TaskInfo) -> list[Phase]:
        config, stage = self.config, self.optimisation.stage(task.index)
        modules = {"backbone": self.backbone, "head": self.head}
        groups, follows = self.train_groups(stage, self.head), dict[str, nn.Module]()
        if task.index > 0:
            maps = {"distiller": self.distiller, "residual": self.residual}
            modules |= maps
            groups.append(map_group(maps.values(), config.map_lr, config.map_weight_decay))
            follows = {"anchor": self.anchor}
        training = Phase(
            "backbone", modules, lambda batch: self.loss(batch, task), stage, groups=groups,
            batch_size=stage.batch_size // 4 if self._rotates(task) else None, on_epoch_start=self._refresh,
            follows=follows,
        )  # fmt: skip
        if task.index == 0 or not config.refine:
            return [training]
        refining = adapter_phase(
            self.residual, self.map, self.teacher, self.backbone,
            stage=adapter_stage(stage, config.adapter_lr), anti_collapse_weight=config.anti_collapse,
            clamp=config.clamp, on_epoch_start=self._restart_anchor,
        )  # fmt: skip
        return [training, refining]

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """The paper's terms, cycle consistency and pairwise cosines; at task 0 optionally the perturbation."""
        config = self.config
        images, labels = task_batch(batch, task, self._rotates(task))
        new = self.features(batch, images)
        terms = {"ce": cross_entropy(self.head(new), labels)}
        if task.index > 0:
            old = frozen_features(self.teacher, images)
            back, moved, target = self.distiller(new), self.map(old), new.detach()
            terms["forward"] = config.topology * mse_loss(moved, target)
            terms["backward"] = config.topology * mse_loss(back, old)
            if config.cycle:
                there = mse_loss(self.map(back.detach()), target)
                home = mse_loss(self.distiller(moved.detach()), old)
                terms["cycle"] = config.cycle * (there + home)
            if config.pairwise:
                pairs = mse_loss(cosines(moved), cosines(target)) + mse_loss(cosines(back), cosines(old))
                terms["pairwise"] = config.pairwise * pairs
        elif config.perturb:
            terms |= perturbation_terms(self.head, new, labels, step=config.perturb, rows=whole_rows(new, batch))
        if config.anti_collapse and has_covariance(new, batch):
            terms["anti_collapse"] = config.anti_collapse * anti_collapse(new, config.clamp)
        return terms

    def _refresh(self, epoch: int, data: TaskData) -> None:
        if data.info.index > 0 and epoch % self.config.anchor.refresh == 0:
            self.anchor.update(self._estimate(data, epoch, "anchor"))

    def _restart_anchor(self, epoch: int, data: TaskData) -> None:
        """Before refinement, estimate the anchor from the final networks alone."""
        if epoch == 0:
            self.anchor.update(self._estimate(data, epoch, "refine anchor"), restart=True)

    def _estimate(self, data: TaskData, epoch: int, purpose: str) -> Affine:
        pairs = drift_moments(
            self.teacher, self.backbone, data, dim=self.feature_dim, purpose=purpose, epoch=epoch,
            batch_size=self.optimisation.stage(data.info.index).batch_size,
        )  # fmt: skip
        self.note("anchor", epoch=epoch, condition_old=float(spd.condition_number(pairs.cov_old)))
        return fit_anchor(pairs, self.config.anchor.ridge, kind="ridge")

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        """Transport the old Gaussians, then estimate those of the new classes."""
        self.backbone.eval()
        if data.info.index > 0:
            repairs = self.memory.transport(
                self.map, samples=self.samples, matched=self.config.matched_noise, task=data.info.index,
                dtype=self.dtype, fewer=self.config.samples is None,
            )  # fmt: skip
            self.note("transport", **repairs)
        self.memory.learn(self.backbone, data, noise=self.config.noise())
        self.note_noise(self.config.noise())
        self.head = self.teacher = self.residual = self.distiller = self.anchor = None

    def transported(self, old: Tensor, phase: str) -> Tensor | None:
        return self.map(old)

    def reestimated(self, plain: Tensor, mirrored: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
        return self.memory.reestimated(torch.cat([plain, mirrored]), torch.cat([labels, labels])).scores

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()

    def _rotates(self, task: TaskInfo) -> bool:
        return self.config.rotation and task.index == 0
