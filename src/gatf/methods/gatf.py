"""GATF (Xu & Krawczyk, "Geometry-Anchored Transport Framework for EFCIL", ECCV 2026).

Backbone, heads, rotation, warm-up, Gaussians and classifier are AdaGauss's, so that any gain is the transport's.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gatf.geometry import AnchorKind, anchor, moments, spd
from gatf.methods.adc import AdversarialDrift, successes
from gatf.methods.base import Batch, ForTask, Phase, TaskData, TaskInfo
from gatf.methods.parts.adapter import adapter_phase, adapter_stage
from gatf.methods.parts.extraction import feature_pairs, frozen_features, of_all_processes
from gatf.methods.parts.gaussian import GaussianMethod
from gatf.methods.parts.losses import (
    anti_collapse,
    check_batches,
    cosines,
    has_covariance,
    perturbation_terms,
    task_batch,
    whole_rows,
)
from gatf.methods.parts.memory import CovarianceConfig, GaussianMemory, Rule
from gatf.nets.mlp import dead_residual, feature_mlp, zero_residual
from gatf.settings import Fraction, NotNegative, Positive


class GATFConfig(CovarianceConfig):
    name: Literal["gatf"] = "gatf"
    afterwards: ClassVar[frozenset[str]] = CovarianceConfig.afterwards | {
        "preset", "refine", "adapter_lr", "final_refresh", "resurrected", "readout",
    }  # fmt: skip
    later: ClassVar[frozenset[str]] = frozenset({
        "top_aware", "aga", "dead_residual", "residual_target", "topology", "distill", "anchor", "anchor_rank", "ridge",
        "refresh", "ema", "bias_correct", "expansion", "map_lr", "map_weight_decay", "cycle", "pairwise",
    })  # fmt: skip
    preset: Literal["paper", "release", "plus"] = "paper"
    """The paper's equations; what the authors' released code does, which differs in all that the preset changes; or
    plus, what did best on validation images here (docs/methods.md), at the same bytes per class."""
    top_aware: bool = True
    """Train the map old → new and its inverse together with the backbone (off: AdaGauss's distillation)."""
    aga: bool = True
    """Start the map from the Analytic Geometric Anchor (off: an MLP alone)."""
    dead_residual: bool = False
    """Zero every layer of the residual on the anchor, as the release does: then only its output bias can move."""
    residual_target: Literal["train", "eval"] = "train"
    """Features that the residual learns to reach: those the loss has anyway, with batch-norm in train mode, or in eval
    mode, as the anchor is estimated and classes are measured; the latter takes one more pass of the backbone."""
    refine: bool = False
    """Fit the map further on frozen features after training, as AdaGauss fits its adapter."""
    topology: NotNegative = 5.0
    """Weight λ_top of the forward and the backward term."""
    distill: NotNegative = 10.0
    """Weight of the distillation when `top_aware` is off."""
    anchor: AnchorKind = "sylvester"
    """The anchor of Theorem 1, plain ridge regression, or the first shrunk towards the identity instead of zero: it is
    the identity where nothing moved, and needs fewer images. lowrank keeps few directions of how the latter differs
    from the identity; procrustes turns whitened features, which keeps their spread."""
    anchor_rank: PositiveInt = 8
    """Directions that lowrank keeps."""
    ridge: Positive | Literal["auto"] = 0.01
    """ρ of the anchor, for procrustes the share of the mean variance that is added in every direction; auto: chosen by
    generalised cross-validation at each estimate (sylvester, identity, lowrank)."""
    refresh: PositiveInt = 10
    """K: epochs between two estimates of the anchor."""
    ema: Fraction = 0.9
    """m: weight of the past in the running anchor."""
    bias_correct: bool = True
    """Divide the running anchor by 1 − mᵏ, so that short runs are not stuck at their first estimate."""
    final_refresh: bool = False
    """After training, solve the anchor once more for what the residual leaves."""
    resurrected: NonNegativeInt = 0
    """In the final refresh, add this number of images per old class: images of the task that ADC's steps have perturbed
    until the old network takes them for the class. 0: none."""
    anti_collapse: NotNegative = 1.0
    """Weight α of the anti-collapse loss."""
    clamp: Positive = 1.0
    """β of the anti-collapse loss."""
    rotation: bool = True
    """Learn four rotations of every class at task 0."""
    expansion: PositiveInt = 32
    """Hidden units of residual and distiller, as a multiple of S."""
    map_lr: Positive | None = None
    """Learning rate of residual and distiller, where it differs from the stage's."""
    map_weight_decay: NotNegative | None = None
    """Weight decay of residual and distiller, where it differs from the stage's."""
    adapter_lr: Positive = 0.01
    """Learning rate of `refine`, divided by ten at its epochs 30, 60 and 90."""
    cycle: NotNegative = 0.0
    """Weight of the release's cycle-consistency terms."""
    pairwise: NotNegative = 0.0
    """Weight of the release's pairwise cosine terms."""
    perturb: NotNegative = 0.0
    """Step of the release's task-0 feature perturbation, from which only the head learns (0.5 in its CUB script)."""
    readout: Rule = "bayes"
    """How classes are told apart: by distances as released (bayes), by Mahalanobis distances, by the nearest mean
    (nmc), by a classifier trained on draws from the Gaussians (linear), or by regularised discriminant analysis
    (rda)."""

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        method = {"anchor": "ridge", "dead_residual": True, "bias_correct": False, "matched_noise": False}
        terms = {"cycle": 2.0, "pairwise": 0.05}
        plus = {"topology": 1.0, "anchor": "identity", "final_refresh": True, "readout": "rda"}
        return {"release": {"method": method | terms, "data": {"val_fraction": 0.1}}, "plus": {"method": plus}}

    def first_training(self) -> dict[str, Any]:
        """AdaGauss's, where nothing is perturbed."""
        own = super().first_training()
        if not self.perturb:
            del own["perturb"]
            own["name"] = "adagauss"
        return own

    @model_validator(mode="after")
    def _anchor_can_be_solved(self) -> "GATFConfig":
        if self.resurrected and not self.final_refresh:
            raise ValueError("resurrected images join the final refresh only; set final_refresh=true")
        if self.ridge == "auto" and self.anchor in ("ridge", "procrustes"):
            raise ValueError(f"ridge=auto is for anchor sylvester, identity and lowrank, not {self.anchor}")
        return self

    @model_validator(mode="after")
    def _map_is_trained(self) -> "GATFConfig":
        if not (self.top_aware or self.aga or self.refine):
            raise ValueError("without top_aware and aga nothing trains the map; set refine=true")
        return self


class RunningAnchor(nn.Module):
    """The exponential moving average of the anchor (Sec. 3.3): buffers, never parameters."""

    weight: Tensor
    bias: Tensor
    steps: Tensor

    def __init__(self, dim: int, momentum: float, bias_correct: bool) -> None:
        super().__init__()
        self.momentum, self.bias_correct = momentum, bias_correct
        self.replace(anchor.AnchorEMA.empty(dim, momentum, bias_correct=bias_correct))

    def replace(self, ema: anchor.AnchorEMA) -> None:
        self.register_buffer("weight", ema.weight)
        self.register_buffer("bias", ema.bias)
        self.register_buffer("steps", torch.full((), ema.steps, device=ema.weight.device))
        self._value: anchor.Affine | None = None

    def update(self, estimate: anchor.Affine, restart: bool = False) -> None:
        """P̄ ← m P̄ + (1 − m) P̂, b̄ likewise; with `restart` the estimate stands alone."""
        ema = self._ema()
        if restart:
            ema = anchor.AnchorEMA.empty(
                len(self.bias), self.momentum, bias_correct=self.bias_correct, device=self.weight.device
            )
        self.replace(ema.update(estimate))

    def forward(self, old: Tensor) -> Tensor:
        """Ā_lin(z) = P̄ z + b̄."""
        if self._value is None:
            exact = self._ema().value()
            self._value = anchor.Affine(exact.weight.to(old.dtype), exact.bias.to(old.dtype))
        return self._value(old)

    def _ema(self) -> anchor.AnchorEMA:
        return anchor.AnchorEMA(self.weight, self.bias, int(self.steps), self.momentum, self.bias_correct)

    def _load_from_state_dict(self, *args: Any) -> None:
        self._value = None
        super()._load_from_state_dict(*args)


class GATF(GaussianMethod[GATFConfig]):
    """The map A_t = anchor + residual is trained together with the backbone; a distiller maps back."""

    name = "gatf"
    Config = GATFConfig
    gaussians_only = True
    summary = "Gaussians carried by an analytic anchor plus residual, trained with the backbone (ECCV 2026)"
    paper = "Xu & Krawczyk, Geometry-Anchored Transport Framework for EFCIL, ECCV 2026"
    keeps = "mean and covariance of each class in the bottleneck space"
    trains = "backbone, the map old → new (residual on an analytic anchor) and its inverse, all at once"
    head = ForTask[nn.Linear]()
    teacher = ForTask[nn.Module]()
    residual = ForTask[nn.Module]()
    distiller = ForTask[nn.Module]()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.config.anti_collapse:
            check_batches(self.optimisation, self.feature_dim)
        self.samples = self.config.draws(self.feature_dim)
        self.memory = GaussianMemory(
            self.feature_dim, rule=self.config.readout, seed=self.seed, storage=self.config.storage,
            rda=(self.config.rda_mixture, self.config.rda_shrinkage),
        )  # fmt: skip
        self.anchor: RunningAnchor | None = None

    def begin_task(self, task: TaskInfo) -> None:
        self.memory.release_readout()
        dim, config = self.feature_dim, self.config
        outputs = 4 * task.new if self._rotates(task) else task.new
        self.head = self.make(lambda: nn.Linear(dim, outputs), "head", task.index)
        if task.index > 0:
            build = feature_mlp if not config.aga else dead_residual if config.dead_residual else zero_residual
            self.teacher = self.frozen_copy(self.backbone)
            self.residual = self.make(lambda: build(dim, config.expansion), "old to new", task.index)
            self.distiller = self.make(lambda: feature_mlp(dim, config.expansion), "new to old", task.index)
            if config.aga:
                self.anchor = RunningAnchor(dim, config.ema, config.bias_correct).to(self.device)

    def map(self, old: Tensor) -> Tensor:
        """A_t(z) = P̄ z + b̄ + g(z): old features in the new space."""
        return self.residual(old) if self.anchor is None else self.anchor(old) + self.residual(old)

    def phases(self, task: TaskInfo) -> list[Phase]:
        config, stage = self.config, self.optimisation.stage(task.index)
        modules = {"backbone": self.backbone, "head": self.head}
        groups = self.train_groups(stage, self.head)
        if task.index > 0:
            maps = {"distiller": self.distiller} | ({"residual": self.residual} if config.top_aware else {})
            modules |= maps
            group: dict[str, Any] = {"params": [p for module in maps.values() for p in module.parameters()]}
            group |= {"lr": config.map_lr} if config.map_lr is not None else {}
            group |= {"weight_decay": config.map_weight_decay} if config.map_weight_decay is not None else {}
            groups.append(group)
        training = Phase(
            "backbone", modules, lambda batch: self._loss(batch, task), stage, groups=groups,
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

    def _loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """L = L_CE + λ_top·(‖g(z_old) − sg(z_new − Ā_lin(z_old))‖² + ‖D(z_new) − z_old‖²) + α·L_AC(z_new).

        The forward term trains g only, the backward term the distiller and the backbone; squares are means.
        """
        config = self.config
        images, labels = task_batch(batch, task, self._rotates(task))
        new = self.features(batch, images)
        terms = {"ce": cross_entropy(self.head(new), labels)}
        if task.index > 0:
            old = frozen_features(self.teacher, images)
            back = self.distiller(new)
            if config.top_aware:
                moved = self.map(old)
                terms["forward"] = config.topology * mse_loss(moved, self._target(new, images))
                terms["backward"] = config.topology * mse_loss(back, old)
                terms |= self._release_terms(old, new.detach(), moved, back)
            else:
                terms["distill"] = config.distill * mse_loss(back, old)
        elif config.perturb:
            terms |= perturbation_terms(self.head, new, labels, step=config.perturb, rows=whole_rows(new, batch))
        if config.anti_collapse and has_covariance(new, batch):
            terms["anti_collapse"] = config.anti_collapse * anti_collapse(new, config.clamp)
        return terms

    def _target(self, new: Tensor, images: Tensor) -> Tensor:
        """What the map is to make of old features: constants, by `residual_target`."""
        if self.config.residual_target == "train":
            return new.detach()
        target = frozen_features(self.backbone.eval(), images)
        self.backbone.train()
        return target

    def _release_terms(self, old: Tensor, new: Tensor, moved: Tensor, back: Tensor) -> dict[str, Tensor]:
        """Cycle consistency and pairwise cosines, found in the released code only; `new` carries no gradient."""
        terms = {}
        if self.config.cycle:
            there = mse_loss(self.map(back.detach()), new)
            home = mse_loss(self.distiller(moved.detach()), old)
            terms["cycle"] = self.config.cycle * (there + home)
        if self.config.pairwise:
            pairs = mse_loss(cosines(moved), cosines(new)) + mse_loss(cosines(back), cosines(old))
            terms["pairwise"] = self.config.pairwise * pairs
        return terms

    def _refresh(self, epoch: int, data: TaskData) -> None:
        """Before the first step, and then every K epochs, estimate the anchor from one epoch of pairs (Sec. 3.3)."""
        if self.anchor is not None and epoch % self.config.refresh == 0:
            self.anchor.update(self._estimate(data, epoch, "anchor"))

    def _restart_anchor(self, epoch: int, data: TaskData) -> None:
        if self.anchor is not None and epoch == 0:
            self.anchor.update(self._estimate(data, epoch, "refine anchor"), restart=True)

    @torch.no_grad()
    def _estimate(
        self, data: TaskData, epoch: int, purpose: str, residual: nn.Module | None = None,
        more: tuple[Tensor, Tensor] | None = None,
    ) -> anchor.Affine:  # fmt: skip
        """The anchor of one epoch of pairs (z_old, z_new), or (z_old, z_new − g(z_old)) when given g, and of `more`."""

        def pairs(old: Tensor, new: Tensor) -> moments.PairedMoments:
            return moments.PairedMoments.of(old, new if residual is None else new - residual(old))

        total = moments.PairedMoments.zeros(self.feature_dim, self.feature_dim, device=self.device)
        size = self.optimisation.stage(data.info.index).batch_size
        for old, new in feature_pairs(self.teacher, self.backbone, data, batch_size=size, purpose=purpose, epoch=epoch):
            total = total.merge(pairs(old, new))
        total = of_all_processes(total)
        if more is not None:  # every process has all of them
            total = total.merge(pairs(*more))
        self.note("anchor", epoch=epoch, condition_old=float(spd.condition_number(total.cov_old)))
        config = self.config
        return anchor.fit_anchor(total, config.ridge, kind=config.anchor, rank=config.anchor_rank)

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        self.backbone.eval()
        if data.info.index > 0:
            self._transport(data)
        self.memory.learn(self.backbone, data, noise=self.config.noise())
        self.note_noise(self.config.noise())
        self.head = self.teacher = self.residual = self.distiller = self.anchor = None

    def _transport(self, data: TaskData) -> None:
        """Carry the old Gaussians through A_t, which is not trained any further."""
        config = self.config
        if config.final_refresh and self.anchor is not None:
            self.anchor.update(
                self._estimate(data, 0, "final anchor", self.residual, self._near_old(data)), restart=True
            )
        repairs = self.memory.transport(
            self.map, samples=self.samples, matched=config.matched_noise, task=data.info.index, dtype=self.dtype,
            fewer=config.samples is None,
        )  # fmt: skip
        self.note("transport", **repairs)

    def _near_old(self, data: TaskData) -> tuple[Tensor, Tensor] | None:
        """Features [N, S] in both networks of images that were perturbed towards the old classes, those that got
        there (ADC, Algorithm 1)."""
        if self.config.resurrected == 0:
            return None
        drift = AdversarialDrift(candidates=self.config.resurrected, grad_norm="sample", step_size=2.5)
        means = self.memory.means.to(self.dtype)
        old, new, _ = drift.resurrect(means, self.teacher, self.backbone, data)
        arrived = successes(means, old)
        self.note("resurrected", share=float(arrived.double().mean()))
        return old[arrived], new[arrived]

    def transported(self, old: Tensor, phase: str) -> Tensor | None:
        return self.map(old) if self.config.top_aware or self.config.aga or phase == "adapter" else None

    def reestimated(self, plain: Tensor, mirrored: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
        return self.memory.reestimated(torch.cat([plain, mirrored]), torch.cat([labels, labels])).scores

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()

    def _rotates(self, task: TaskInfo) -> bool:
        return self.config.rotation and task.index == 0
