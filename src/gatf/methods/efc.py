"""EFC (Magistri, Trinci, Soutif-Cormerais, van de Weijer, Bagdanov: "Elastic Feature Consolidation for Cold Start
Exemplar-Free Incremental Learning", ICLR 2024), and its extension EFC++ (the same authors: "EFC++: Elastic Feature
Consolidation with Prototype Re-balancing for Cold Start Exemplar-Free Incremental Learning", 2025). Where paper and
release differ, the release is the default."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax

from gatf.data.augment import four_rotations, rotation_labels_appended
from gatf.devices import upload
from gatf.geometry import gaussians, moments, spd
from gatf.methods.base import Batch, ForTask, Method, Phase, TaskData, TaskInfo, shuffled
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.memory import GaussianMemory
from gatf.nets.heads import Heads
from gatf.seeding import generator
from gatf.settings import Fraction, MethodConfig, NotNegative, Positive, StageConfig

ADAM = {"optimiser": "adam", "weight_decay": 2e-4, "clip": None, "drop_last": False, "warmup": 0.0}
REBALANCED_AT_ONCE = 256
"""Rows of a re-balancing batch, prototypes and images together."""


class EFCConfig(MethodConfig):
    name: str = "efc"
    preset: Literal["efc", "efc++"] = "efc"
    """EFC, or EFC++, which re-balances all heads after training the backbone without prototypes."""
    efm: NotNegative = 10.0
    """Weight λ of drift that changes the old classifier's output."""
    damping: NotNegative = 0.1
    """η: weight of drift in every direction."""
    drift_width: Positive | None = 0.2
    """σ of the kernel that weighs samples when old means move; null: the means stay."""
    minmax: bool = True
    """Scale distances to 0…1 before the kernel (release); σ is tuned for that."""
    prototype_batch: PositiveInt = 64
    """Size of the rehearsal batch, prototypes and images together."""
    fill_batch: bool = False
    """Repeat classes until the rehearsal batch is full; the release repeats them once."""
    jitter: NotNegative = 1e-5
    """Added to the variances of drawn prototypes."""
    rebalance: Fraction = 0.0
    """Epochs of re-balancing all heads after each later task, as a fraction of the task's epochs. 0: heads rehearse
    prototypes during training."""
    rebalance_lr: Positive = 1e-3
    """Learning rate of re-balancing."""
    rotation: bool = True
    """Train four rotations of every class at task 0."""
    stats_transform: Literal["train", "test"] = "train"
    """Images for drift, feature matrix and Gaussians: augmented (release) or plain."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"efc++": {"method": {"rebalance": 0.5}}}


def feature_matrix(features: Tensor, weight: Tensor) -> Tensor:
    """The Empirical Feature Matrix: mean of Wᵀ(diag π − ππᵀ)W, π = softmax(W f). [N, S], [C, S] → [S, S].

    It is the mean outer product of ∂log π_y/∂f over y ~ π. Only means over C and C×C are taken before W is applied.
    """
    weight = weight.double()
    likely = softmax(features.double() @ weight.T, dim=1)  # [N, C]
    inner = torch.diag(likely.mean(0)) - likely.T @ likely / len(likely)
    return spd.symmetrise(weight.T @ inner @ weight)


def elastic_drift(new: Tensor, old: Tensor, efm: Tensor, *, weight: float, damping: float) -> Tensor:
    """Mean over the batch of (f − g)ᵀ(λE + ηI)(f − g), not divided by the dimension."""
    drift = new - old
    along = ((drift @ efm) * drift).sum(1)
    return (weight * along + damping * drift.square().sum(1)).mean()


def drift_weights(old: Tensor, means: Tensor, efm: Tensor, *, width: float, minmax: bool = True) -> Tensor:
    """How much each sample's drift counts for each class: exp(−d/(2σ²)) over its sum, [N, S], [C, S] → [C, N].

    d is the squared distance (g − p)ᵀE(g − p), with `minmax` scaled to 0…1 over the whole table.
    """
    stretched = means @ efm  # [C, S]
    squares = ((old @ efm) * old).sum(1) + (stretched * means).sum(1)[:, None]
    nearness = -(squares - 2 * stretched @ old.T).clamp_min(0)  # [C, N]
    if minmax:
        low, high = nearness.aminmax()
        nearness = (nearness - low) / (high - low).clamp_min(torch.finfo(nearness.dtype).tiny)
    return softmax(nearness / (2 * width**2), dim=1)


def rehearsal_counts(old: int, new: int, batch: int, draws: torch.Generator, *, fill: bool = False) -> tuple[int, int]:
    """How many prototypes and how many images make up a rehearsal batch: as many as old and new classes among `batch`
    classes drawn without replacement; with fewer classes each comes once, then some again, in the same order."""
    order = torch.randperm(old + new, generator=draws)
    chosen = order.repeat(-(-batch // len(order)) if fill else 2)[:batch]
    prototypes = int((chosen < old).sum())
    return prototypes, len(chosen) - prototypes


def prototype_labels(old: int, batch: int, count: int, draws: torch.Generator) -> Tensor:
    """Classes of `count` prototypes: out of `batch`, in which all old classes come equally often, up to one."""
    every = torch.randperm(old, generator=draws).repeat(-(-batch // old))[:batch]
    return every[torch.randperm(batch, generator=draws)[:count]]


class EFC(Method[EFCConfig]):
    """Features may drift where the old classifier does not look; Gaussians of old classes rehearse all heads."""

    name = "efc"
    Config = EFCConfig
    teacher = ForTask[nn.Module]()
    defaults: ClassVar[dict[str, Any]] = {
        "backbone": {"bottleneck": None},
        "optimisation": {
            "first": ADAM | {"lr": 1e-3, "schedule": "steps", "milestones": [0.45, 0.9], "decay": 0.1},
            "next": ADAM | {"lr": 1e-4, "schedule": "constant"},
        },
    }  # fmt: skip
    efm: Tensor

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heads = Heads(self.feature_dim, bias=False)
        self.memory = GaussianMemory(self.feature_dim, rule="bayes", seed=self.seed)
        self.register_buffer("efm", torch.zeros(self.feature_dim, self.feature_dim))
        self.rotated: nn.Linear | None = None
        self._lowers: Tensor | None = None
        self._last: Batch | None = None
        """The mini-batch before this one. Not part of the state: a checkpoint holds no pixels."""

    def begin_task(self, task: TaskInfo) -> None:
        self.make(lambda: self.heads.grow(task.new), "head", task.index)
        for module in self.backbone.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.requires_grad_(task.index == 0)
        self._lowers = self._last = None
        if self.config.rotation and task.index == 0:
            self.rotated = self.make(lambda: nn.Linear(self.feature_dim, 3 * task.new), "rotated head", 0)
        if task.index > 0:
            self.teacher = self.frozen_copy(self.backbone)

    def phases(self, task: TaskInfo) -> list[Phase]:
        stage = self.optimisation.stage(task.index)
        rotated = {} if self.rotated is None else {"rotated": self.rotated}
        modules = {"backbone": self.backbone, "heads": self.heads, **rotated}
        groups = self.train_groups(stage, self.heads, *rotated.values())
        for group in groups:
            group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
        later = self._consolidation_loss if self.config.rebalance else self._next_loss
        loss = self._first_loss if task.index == 0 else later
        size = self._loaded(task.index)
        mode = None if task.index == 0 else self._set_mode
        keep = None if task.index == 0 else self._keep
        train = Phase(
            "train", modules, lambda batch: loss(batch, task), stage, groups, size, set_mode=mode, on_resume=keep
        )
        return [train, self._rebalancing(task)] if task.index > 0 and self.config.rebalance else [train]

    def _rebalancing(self, task: TaskInfo) -> Phase:
        """EFC++: with the backbone frozen and old means moved, all heads learn from features and prototypes."""
        stage = StageConfig(
            epochs=max(1, round(self.config.rebalance * self.optimisation.next.epochs)), lr=self.config.rebalance_lr,
            schedule="constant", clip=None, warmup=0.0, drop_last=False,
        )  # fmt: skip

        def move(epoch: int, data: TaskData) -> None:
            if epoch == 0:
                self.memory.set(self._followed(*self._statistics(data)))

        def loss(batch: Batch) -> dict[str, Tensor]:
            count = -(-len(batch.images) * task.old // task.new)
            draws = generator(self.seed, "rebalancing", task.index, batch.epoch, batch.step)
            labels = upload(prototype_labels(task.old, count, count, draws), self.device)
            features = torch.cat([frozen_features(self.backbone, batch.images), self._sample(labels, batch.generator)])
            return {"ce": cross_entropy(self.heads(features), torch.cat([batch.labels, labels]))}

        size = max(1, REBALANCED_AT_ONCE * task.new // task.seen)
        return Phase(
            "rebalance", {"heads": self.heads}, loss, stage, batch_size=size, on_epoch_start=move,
            set_mode=self._set_mode, rate="method.rebalance_lr", follows={"memory": self.memory},
        )  # fmt: skip

    def _keep(self, batch: Batch, data: TaskData | None = None) -> None:
        self._last = batch

    def _loaded(self, task: int) -> int:
        """Images loaded a step."""
        batch = self.optimisation.stage(task).batch_size
        return batch if self.rotated is None else max(1, batch // 4)

    def _set_mode(self) -> None:
        """After task 0 batch-norm is frozen: statistics by eval mode, weights by taking no gradient."""
        self.backbone.eval()
        self.heads.train()

    def _first_loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Cross-entropy over the classes and, through a layer thrown away later, their rotations."""
        if self.rotated is None:
            return {"ce": cross_entropy(self.heads(self.features(batch)), batch.labels)}
        features = self.features(batch, four_rotations(batch.images))
        logits = torch.cat([self.heads(features), self.rotated(features)], dim=1)
        return {"ce": cross_entropy(logits, rotation_labels_appended(batch.labels, task.new))}

    def _next_loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """L = L_new + L_EFM + L_rep: the new head alone; drift; all heads on prototypes and a few images of
        the batch before. Counts and classes are drawn on the CPU, so that nothing waits for the device."""
        config, size, images = self.config, len(batch.images), batch.images
        draws = generator(self.seed, "rehearsal", task.index, batch.epoch, batch.step)
        prototypes = config.prototype_batch
        before = batch.labels[:0]
        if self._last is not None:
            prototypes, real = rehearsal_counts(task.old, task.new, prototypes, draws, fill=config.fill_batch)
            before = self._last.labels[:real]
            images = torch.cat([images, self._last.images[: len(before)]])  # one pass: batch-norm is frozen
        labels = upload(prototype_labels(task.old, config.prototype_batch, prototypes, draws), self.device)
        sampled = self._sample(labels, batch.generator)
        features = self.features(batch, images)
        terms = self._new_and_drift(features[:size], batch, task)
        rehearsed, truth = torch.cat([sampled, features[size:]]), torch.cat([labels, before])
        self._keep(batch)
        return terms | {"rehearsal": cross_entropy(self.heads(rehearsed), truth)}

    def _consolidation_loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """EFC++: L_new + L_EFM."""
        return self._new_and_drift(self.features(batch), batch, task)

    def _new_and_drift(self, new: Tensor, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """L_new, the new head alone, and L_EFM, the drift of the batch's features [B, S]."""
        config, old = self.config, frozen_features(self.teacher, batch.images)
        return {
            "ce": cross_entropy(self.heads.layers[-1](new), batch.labels - task.old),
            "drift": elastic_drift(new.float(), old.float(), self.efm, weight=config.efm, damping=config.damping),
        }

    def _sample(self, labels: Tensor, draws: torch.Generator) -> Tensor:
        """One draw of Normal(p_c, Σ_c + jitter·I) for each label, [N] → [N, S]."""
        if self._lowers is None:
            self._lowers = spd.cholesky(self.memory.get().covs, self.config.jitter).lower.float()
        noise = upload(torch.randn(len(labels), self.feature_dim, 1, generator=draws), self.device)
        return self.memory.means[labels] + (self._lowers[labels] @ noise)[:, :, 0]

    @torch.no_grad()
    def _statistics(self, data: TaskData) -> tuple[Tensor, ...]:
        """New features [N, S], labels [N] and, after task 0, old features [N, S] of one epoch."""
        self.backbone.eval()
        passed: list[tuple[Tensor, ...]] = []
        size = self._loaded(data.info.index)
        for batch in data.batches(self.config.stats_transform, batch_size=size, purpose="statistics", order=shuffled):
            old = () if data.info.index == 0 else (self.teacher(batch.images),)
            passed.append((self.backbone(batch.images), batch.labels, *old))
        return tuple(torch.cat(part) for part in zip(*passed, strict=True))

    @torch.no_grad()
    def _followed(self, new: Tensor, labels: Tensor, old: Tensor) -> gaussians.Gaussians:
        """The stored Gaussians, their means moved by the drift of the new images, weighed by the old feature matrix."""
        stored, config = self.memory.get(), self.config
        if config.drift_width is None:
            return stored
        was = old.double()
        weights = drift_weights(was, stored.means, self.efm.double(), width=config.drift_width, minmax=config.minmax)
        return gaussians.Gaussians(stored.means + weights @ (new.double() - was), stored.covs)

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        """Old means move by the old feature matrix, unless they did before re-balancing; then the new matrix, then
        Gaussians of the new classes."""
        task, size = data.info, self._loaded(data.info.index)
        new, labels, *old = self._statistics(data)
        stored = self._followed(new, labels, *old) if old and not self.config.rebalance else self.memory.get()
        full = len(new) // size * size or len(new)  # full batches only
        weight = torch.cat([layer.weight for layer in self.heads.layers])  # type: ignore[misc]
        self.efm = feature_matrix(new[:full], weight).float()
        learnt = moments.class_moments(new, labels - task.old, classes=task.new)
        self.memory.set(stored.concat(gaussians.Gaussians(learnt.mean, learnt.covariance())))
        self.rotated = self.teacher = self._last = self._lowers = None

    def scores(self, images: Tensor) -> Tensor:
        return self.heads(self.backbone(images))

    def stored(self) -> gaussians.Gaussians:
        return self.memory.get()

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()
