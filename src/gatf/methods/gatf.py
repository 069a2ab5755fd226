"""GATF (Xu & Krawczyk, "Geometry-Anchored Transport Framework for EFCIL", ECCV 2026): the paper's method.

Backbone, heads, rotation, warm-up, Gaussians and classifier are AdaGauss's; GATF adds the transport.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gatf.geometry import spd
from gatf.geometry.anchor import Affine, fit_anchor
from gatf.methods.base import Batch, ForTask, Phase, TaskData, TaskInfo
from gatf.methods.card import MethodCard
from gatf.methods.parts.adapter import adapter_phase, adapter_stage, map_group
from gatf.methods.parts.anchor import AnchorConfig, RunningAnchor, drift_moments
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.gaussian import GaussianMethod
from gatf.methods.parts.losses import anti_collapse, check_batches, has_covariance, task_batch
from gatf.methods.parts.memory import CovarianceConfig, GaussianMemory, Rule
from gatf.nets.mlp import feature_mlp, zero_residual
from gatf.settings import AffectsLaterTasksOnly, AffectsReadoutOnly, NotNegative, Positive


class GATFConfig(CovarianceConfig):
    name: str = "gatf"
    preset: AffectsReadoutOnly[Literal["paper", "plus"]] = "paper"
    """The paper's settings, or `plus`: the settings that did best on validation images, with equal memory per class."""
    anchor: AffectsLaterTasksOnly[AnchorConfig] = AnchorConfig()
    """The Analytic Geometric Anchor."""
    topology: AffectsLaterTasksOnly[NotNegative] = 5.0
    """Weight λ_top of the forward and the backward term."""
    top_aware: AffectsLaterTasksOnly[bool] = True
    """Train the map old → new and its inverse together with the backbone. Off: AdaGauss's distillation."""
    distill: AffectsLaterTasksOnly[NotNegative] = 10.0
    """Weight of the distillation when `top_aware` is off."""
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
    readout: AffectsReadoutOnly[Rule] = "bayes"
    """Classifier on the Gaussians: the papers' distance (bayes), Mahalanobis distance, nearest mean (nmc), a linear
    classifier trained on samples (linear), or regularised discriminant analysis (rda)."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "plus": {
            "method": {"topology": 1.0, "anchor": {"kind": "identity", "final_refresh": True}, "readout": "rda"},
        },
    }

    def first_training(self) -> dict[str, Any]:
        """Task 0 is trained as in AdaGauss."""
        return super().first_training() | {"name": "adagauss"}

    @model_validator(mode="after")
    def _map_is_trained(self) -> "GATFConfig":
        if not (self.top_aware or self.anchor.kind != "none" or self.refine):
            raise ValueError("nothing trains the map with top_aware=false and anchor.kind=none; set refine=true")
        return self


class GATF(GaussianMethod[GATFConfig]):
    """The map A_t = anchor + residual is trained together with the backbone; a distiller maps back."""

    name = "gatf"
    Config = GATFConfig
    gaussians_only = True
    card = MethodCard(
        summary="Gaussians transported by an analytic anchor plus residual, trained with the backbone (ECCV 2026)",
        when="when the network must keep learning and predictions must be certified or rejected",
        keeps="mean and covariance of each class in the bottleneck space",
        trains="backbone, the map old → new (residual on an analytic anchor) and its inverse, together",
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

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.config.anti_collapse:
            check_batches(self.optimisation, self.feature_dim)
        self.samples = self.config.draws(self.feature_dim)
        self.memory = GaussianMemory.of(self.config, self.feature_dim, rule=self.config.readout, seed=self.seed)
        self.anchor: RunningAnchor | None = None

    def begin_task(self, task: TaskInfo) -> None:
        self.memory.release_readout()
        dim, config = self.feature_dim, self.config
        outputs = 4 * task.new if self._rotates(task) else task.new
        self.head = self.make(lambda: nn.Linear(dim, outputs), "head", task.index)
        if task.index > 0:
            anchored = config.anchor.kind != "none"
            build = zero_residual if anchored else feature_mlp
            self.teacher = self.frozen_copy(self.backbone)
            self.residual = self.make(lambda: build(dim, config.expansion), "old to new", task.index)
            self.distiller = self.make(lambda: feature_mlp(dim, config.expansion), "new to old", task.index)
            if anchored:
                self.anchor = RunningAnchor(dim, config.anchor.ema, bias_correct=True).to(self.device)

    def map(self, old: Tensor) -> Tensor:
        """A_t(z) = P̄ z + b̄ + g(z): old features [B, S] in the new space."""
        return self.residual(old) if self.anchor is None else self.anchor(old) + self.residual(old)

    def phases(self, task: TaskInfo) -> list[Phase]:
        config, stage = self.config, self.optimisation.stage(task.index)
        modules = {"backbone": self.backbone, "head": self.head}
        groups = self.train_groups(stage, self.head)
        if task.index > 0:
            maps = {"distiller": self.distiller} | ({"residual": self.residual} if config.top_aware else {})
            modules |= maps
            groups.append(map_group(maps.values(), config.map_lr, config.map_weight_decay))
        training = Phase(
            "backbone", modules, lambda batch: self.loss(batch, task), stage, groups=groups,
            batch_size=stage.batch_size // 4 if self._rotates(task) else None, on_epoch_start=self._refresh,
            follows={} if self.anchor is None else {"anchor": self.anchor},
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
        """L = L_CE + λ_top·(L_forward + L_backward) + α·L_AC(z_new); squares are means over batch and coordinates."""
        config = self.config
        images, labels = task_batch(batch, task, self._rotates(task))
        new = self.features(batch, images)  # [B, S]
        terms = {"ce": cross_entropy(self.head(new), labels)}
        if task.index > 0:
            old = frozen_features(self.teacher, images)  # [B, S]
            # L_backward = ‖D(z_new) − z_old‖²: trains the distiller and the backbone
            backward = mse_loss(self.distiller(new), old)
            if config.top_aware:
                # L_forward = ‖g(z_old) − sg(z_new − Ā_lin(z_old))‖²: trains the residual g alone
                terms["forward"] = config.topology * mse_loss(self.map(old), new.detach())
                terms["backward"] = config.topology * backward
            else:
                terms["distill"] = config.distill * backward
        if config.anti_collapse and has_covariance(new, batch):
            terms["anti_collapse"] = config.anti_collapse * anti_collapse(new, config.clamp)
        return terms

    def _refresh(self, epoch: int, data: TaskData) -> None:
        """Update the running anchor before the first step and then every K epochs (Sec. 3.3)."""
        if self.anchor is not None and epoch % self.config.anchor.refresh == 0:
            self.anchor.update(self._estimate(data, epoch, "anchor"))

    def _restart_anchor(self, epoch: int, data: TaskData) -> None:
        """Before refinement, estimate the anchor from the final networks alone."""
        if self.anchor is not None and epoch == 0:
            self.anchor.update(self._estimate(data, epoch, "refine anchor"), restart=True)

    def _estimate(self, data: TaskData, epoch: int, purpose: str, residual: nn.Module | None = None) -> Affine:
        """P Σ_o + ρ Σ_n P = Cov(z_new, z_old), b = μ_n − P μ_o (Eq. 5, Theorem 1), from one epoch of pairs."""
        pairs = drift_moments(
            self.teacher, self.backbone, data, dim=self.feature_dim, purpose=purpose, epoch=epoch, residual=residual,
            batch_size=self.optimisation.stage(data.info.index).batch_size,
        )  # fmt: skip
        self.note("anchor", epoch=epoch, condition_old=float(spd.condition_number(pairs.cov_old)))
        kind: Literal["sylvester", "identity"] = "identity" if self.config.anchor.kind == "identity" else "sylvester"
        return fit_anchor(pairs, self.config.anchor.ridge, kind=kind)

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        """Transport the old Gaussians through A_t, then estimate those of the new classes."""
        self.backbone.eval()
        if data.info.index > 0:
            self._transport(data)
        self.memory.learn(self.backbone, data, noise=self.config.noise())
        self.note_noise(self.config.noise())
        self.head = self.teacher = self.residual = self.distiller = self.anchor = None

    def _transport(self, data: TaskData) -> None:
        if self.config.anchor.final_refresh and self.anchor is not None:
            self.anchor.update(self._estimate(data, 0, "final anchor", self.residual), restart=True)
        repairs = self.memory.transport(
            self.map, samples=self.samples, matched=self.config.matched_noise, task=data.info.index, dtype=self.dtype,
            fewer=self.config.samples is None,
        )  # fmt: skip
        self.note("transport", **repairs)

    def transported(self, old: Tensor, phase: str) -> Tensor | None:
        trained = self.config.top_aware or self.config.anchor.kind != "none" or phase == "adapter"
        return self.map(old) if trained else None

    def reestimated(self, plain: Tensor, mirrored: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
        return self.memory.reestimated(torch.cat([plain, mirrored]), torch.cat([labels, labels])).scores

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()

    def _rotates(self, task: TaskInfo) -> bool:
        return self.config.rotation and task.index == 0
