"""Methods that train a map from old to new features and transport their Gaussians through it: AdaGauss, BiCyc, GATF."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from gatf.geometry import spd
from gatf.geometry.anchor import Affine
from gatf.geometry.moments import PairedMoments
from gatf.methods.base import Batch, ForTask, Phase, TaskData, TaskInfo
from gatf.methods.parts.anchor import RunningAnchor, RunningAnchorConfig, drift_moments
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.gaussian import GaussianMethod
from gatf.methods.parts.losses import anti_collapse, check_batches, has_covariance
from gatf.methods.parts.memory import GaussianMemory, GaussiansConfig, Rule
from gatf.nets.mlp import feature_mlp
from gatf.settings import AffectsLaterTasksOnly, AffectsReadoutOnly, NotNegative, Positive, StageConfig, Strict


class MLPConfig(Strict):
    """The MLPs between feature spaces."""

    expansion: PositiveInt = 32
    """Hidden units of the MLPs between feature spaces, as a multiple of S."""


class TrainedMapConfig(MLPConfig):
    """Residual and distiller, which are trained with the backbone."""

    lr: Positive | None = None
    """Learning rate of residual and distiller. Default: the stage's."""
    weight_decay: NotNegative | None = None
    """Weight decay of residual and distiller. Default: the stage's."""


class MapConfig(GaussiansConfig):
    """Transported Gaussians: the settings that AdaGauss, BiCyc and GATF share."""

    anti_collapse: NotNegative = 1.0
    """Weight α of the anti-collapse loss."""
    clamp: Positive = 1.0
    """Upper limit β of the anti-collapse loss."""
    rotation: bool = True
    """Train four rotations of every class as four classes at task 0."""
    map: AffectsLaterTasksOnly[MLPConfig] = MLPConfig()
    """The MLPs between feature spaces."""
    adapter_lr: AffectsReadoutOnly[Positive] = 0.01
    """Learning rate of the stage that fits the map on frozen features."""
    readout: AffectsReadoutOnly[Rule] = "bayes"
    """Classifier on the Gaussians: the papers' distance (bayes), Mahalanobis distance, nearest mean (nmc), regularised
    discriminant analysis (rda), or a plugin."""


MapConfigT = TypeVar("MapConfigT", bound=MapConfig, covariant=True)


def adapter_stage(stage: StageConfig, lr: float) -> StageConfig:
    """How AdaGauss fits its adapter: half the epochs, SGD at its own rate, the last batch dropped; ×0.1 after 30, 60
    and 90 epochs of its own, however many it has."""
    epochs = max(1, stage.epochs // 2)
    reached = tuple(milestone / epochs for milestone in (30, 60, 90) if milestone < epochs)
    changes = {"optimiser": "sgd", "epochs": epochs, "lr": lr, "milestones": reached}
    return stage.model_copy(update={**changes, "schedule": "steps", "decay": 0.1, "drop_last": True})


class MappedGaussians(GaussianMethod[MapConfigT], ABC):
    """One Gaussian per class; task 0 with rotations; the anti-collapse loss; transport by samples through a map."""

    gaussians_only = True
    head = ForTask[nn.Linear]()
    teacher = ForTask[nn.Module]()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        config, dim = self.config, self.feature_dim
        if config.anti_collapse:
            check_batches(self.optimisation, dim)
        self.samples = config.draws(dim)
        self.memory = GaussianMemory.of(config, dim, rule=config.readout, seed=self.seed)

    @abstractmethod
    def map(self, old: Tensor) -> Tensor:
        """Old features [B, S] in the new space."""

    @abstractmethod
    def trained_maps(self) -> dict[str, nn.Module]:
        """The maps that are trained with the backbone after task 0."""

    @abstractmethod
    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """The terms of the loss."""

    @abstractmethod
    def refinement(self, task: TaskInfo) -> list[Phase]:
        """What is trained after the backbone, from task 1 on."""

    def begin_task(self, task: TaskInfo) -> None:
        self.memory.release_readout()
        outputs = 4 * task.new if self.rotates(task) else task.new
        self.head = self.make(lambda: nn.Linear(self.feature_dim, outputs), "head", task.index)
        if task.index > 0:
            self.teacher = self.frozen_copy(self.backbone)

    def make_mlp(self, name: str, task: TaskInfo) -> nn.Module:
        """An MLP between feature spaces, as AdaGauss has it."""
        return self.make(lambda: feature_mlp(self.feature_dim, self.config.map.expansion), name, task.index)

    def rotates(self, task: TaskInfo) -> bool:
        return self.config.rotation and task.index == 0

    def phases(self, task: TaskInfo) -> list[Phase]:
        stage = self.optimisation.stage(task.index)
        maps = {} if task.index == 0 else self.trained_maps()
        modules = {"backbone": self.backbone, "head": self.head, **maps}
        groups = self.train_groups(stage, self.head)
        if maps:
            groups.append({"params": [p for module in maps.values() for p in module.parameters()]})
        loaded = stage.batch_size // 4 if self.rotates(task) else None  # images per step, each turned four times
        training = Phase("backbone", modules, lambda batch: self.loss(batch, task), stage, groups, batch_size=loaded)
        return [training] if task.index == 0 else [training, *self.refinement(task)]

    def collapse_term(self, features: Tensor, batch: Batch) -> dict[str, Tensor]:
        """α·L_AC, where the batch has a covariance."""
        config = self.config
        if not config.anti_collapse or not has_covariance(features, batch):
            return {}
        return {"anti_collapse": config.anti_collapse * anti_collapse(features, config.clamp)}

    def fitting(
        self, module: nn.Module, task: TaskInfo, on_epoch_start: Callable[[int, TaskData], None] | None = None
    ) -> Phase:
        """AdaGauss's adapter stage: with both networks frozen, fit the map, of which `module` is trained."""
        frozen = cache(lambda: self.frozen_copy(self.backbone))  # made in the first step, after its training

        def loss(batch: Batch) -> dict[str, Tensor]:
            old, new = frozen_features(self.teacher, batch.images), frozen_features(frozen(), batch.images)
            moved = self.map(old)
            terms = {"adapter": mse_loss(moved, new)}
            return terms | {f"adapter_{name}": term for name, term in self.collapse_term(moved, batch).items()}

        def set_mode() -> None:
            self.backbone.eval()
            module.train()

        stage = adapter_stage(self.optimisation.stage(task.index), self.config.adapter_lr)
        return Phase(
            "adapter", {"adapter": module}, loss, stage, on_epoch_start=on_epoch_start, rate="method.adapter_lr",
            set_mode=set_mode,
        )  # fmt: skip

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        """Transport the old Gaussians through the map (AdaGauss, Alg. 1), then estimate those of the new classes."""
        self.backbone.eval()
        if data.info.index > 0:
            self.transport(data)
        self.learn_classes(data)
        self.drop_task_modules()

    def transport(self, data: TaskData) -> None:
        self.push_memory(self.map, data.info.index)

    def push_memory(self, mapping: Callable[[Tensor], Tensor], task: int) -> None:
        """Transport every stored Gaussian by samples through a map."""
        repairs = self.memory.transport(
            mapping, samples=self.samples, matched=self.config.matched_noise, task=task, dtype=self.dtype,
            fewer=self.config.samples is None,
        )  # fmt: skip
        self.note("transport", **repairs)

    def learn_classes(self, data: TaskData) -> None:
        """Estimate the Gaussians of the task's new classes, with noise if the config asks for it."""
        noise = self.config.noise
        if noise.epsilon is None:
            self.memory.learn(self.backbone, data)
        else:
            self.memory.learn(self.backbone, data, noise=(noise.epsilon, noise.delta, noise.clip))
            self.note("privacy", epsilon=noise.epsilon, delta=noise.delta, clip=noise.clip)

    def transported(self, old: Tensor, phase: str) -> Tensor | None:
        return self.map(old)

    def reestimated(self, plain: Tensor, mirrored: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
        return self.memory.reestimated(torch.cat([plain, mirrored]), torch.cat([labels, labels])).scores

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()


class AnchoredConfig(MapConfig):
    """Anchored transport: the settings that GATF and its release share."""

    topology: AffectsLaterTasksOnly[NotNegative] = 5.0
    """Weight λ_top of the forward and the backward term."""
    refine: AffectsReadoutOnly[bool] = False
    """After training, fit the map further on frozen features, as AdaGauss fits its adapter."""
    map: AffectsLaterTasksOnly[TrainedMapConfig] = TrainedMapConfig()
    """Residual and distiller."""


AnchoredConfigT = TypeVar("AnchoredConfigT", bound=AnchoredConfig, covariant=True)


class AnchoredMap(MappedGaussians[AnchoredConfigT], ABC):
    """The plumbing of GATF: anchor, residual and distiller live for one task and are trained with the backbone."""

    bias_correct: ClassVar[bool] = True
    """Whether the anchor's running average is corrected for its start."""
    residual = ForTask[nn.Module]()
    distiller = ForTask[nn.Module]()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.anchor: RunningAnchor | None = None

    @abstractmethod
    def anchor_settings(self) -> RunningAnchorConfig | None:
        """How the anchor is estimated; None without an anchor."""

    @abstractmethod
    def build_residual(self) -> nn.Module:
        """The trained part of the map."""

    @abstractmethod
    def fit_anchor(self, pairs: PairedMoments) -> Affine:
        """The anchor from moments of (z_old, z_new)."""

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        if task.index > 0:
            settings = self.anchor_settings()
            self.residual = self.make(self.build_residual, "old to new", task.index)
            self.distiller = self.make_mlp("new to old", task)
            if settings is not None:
                anchor = RunningAnchor(self.feature_dim, settings.ema, bias_correct=self.bias_correct)
                self.anchor = anchor.to(self.device)

    def map(self, old: Tensor) -> Tensor:
        """A_t(z) = P̄ z + b̄ + g(z): old features [B, S] in the new space."""
        return self.residual(old) if self.anchor is None else self.anchor(old) + self.residual(old)

    def phases(self, task: TaskInfo) -> list[Phase]:
        training, *refinement = super().phases(task)
        if task.index > 0:
            own = {"lr": self.config.map.lr, "weight_decay": self.config.map.weight_decay}
            training.groups[-1] |= {name: value for name, value in own.items() if value is not None}
            training.on_epoch_start = self._refresh
            training.follows = {} if self.anchor is None else {"anchor": self.anchor}
        return [training, *refinement]

    def refinement(self, task: TaskInfo) -> list[Phase]:
        fitting = [self.fitting(self.residual, task, on_epoch_start=self._restart_anchor)]
        return fitting if self.config.refine else []

    def _refresh(self, epoch: int, data: TaskData) -> None:
        """Update the running anchor before the first step and then every K epochs (Sec. 3.3)."""
        settings = self.anchor_settings()
        if self.anchor is not None and settings is not None and epoch % settings.refresh == 0:
            self.anchor.update(self.estimate_anchor(data, epoch, "anchor"))

    def _restart_anchor(self, epoch: int, data: TaskData) -> None:
        """Before refinement, estimate the anchor from the final networks alone."""
        if self.anchor is not None and epoch == 0:
            self.anchor.update(self.estimate_anchor(data, epoch, "refine anchor"), restart=True)

    def estimate_anchor(self, data: TaskData, epoch: int, purpose: str, residual: nn.Module | None = None) -> Affine:
        """The anchor from one epoch of pairs (z_old, z_new), or (z_old, z_new − g(z_old)) for a `residual` g."""
        pairs = drift_moments(
            self.teacher, self.backbone, data, dim=self.feature_dim, purpose=purpose, epoch=epoch, residual=residual,
            batch_size=self.optimisation.stage(data.info.index).batch_size,
        )  # fmt: skip
        self.note("anchor", epoch=epoch, condition_old=float(spd.condition_number(pairs.cov_old)))
        return self.fit_anchor(pairs)

    def drop_task_modules(self) -> None:
        super().drop_task_modules()
        self.anchor = None
