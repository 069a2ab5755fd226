"""EFC (Magistri, Trinci, Soutif-Cormerais, van de Weijer, Bagdanov: "Elastic Feature Consolidation for Cold Start
Exemplar-Free Incremental Learning", ICLR 2024). Where paper and release differ, the release is the default."""

from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax

from gatf.data.augment import four_rotations
from gatf.devices import upload
from gatf.geometry import gaussians, moments, spd
from gatf.methods.base import Batch, ForTask, Method, Phase, TaskData, TaskInfo, shuffled
from gatf.methods.card import MethodCard
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.memory import GaussianMemory
from gatf.nets.heads import Heads
from gatf.seeding import generator
from gatf.settings import MethodConfig, NotNegative, Positive

ADAM = {"optimiser": "adam", "weight_decay": 2e-4, "clip": None, "drop_last": False, "warmup": 0.0}


class EFCConfig(MethodConfig):
    name: str = "efc"
    efm: NotNegative = 10.0
    """Weight λ of drift along the directions that change the old classifier's output."""
    damping: NotNegative = 0.1
    """η: weight of drift in every direction."""
    drift_width: Positive | None = 0.2
    """σ of the kernel that weighs samples when old means move; null leaves the means where they were."""
    minmax: bool = True
    """Scale distances to 0…1 over all classes and samples before the kernel (release); σ is tuned for that."""
    prototype_batch: PositiveInt = 64
    """Rows of the rehearsal batch, drawn prototypes and images together."""
    fill_batch: bool = False
    """Repeat classes until the rehearsal batch is full; the release repeats them once."""
    jitter: NotNegative = 1e-5
    """Added to the variances that prototypes are drawn with."""
    rotation: bool = True
    """Learn four rotations of every class at task 0."""
    stats_transform: Literal["train", "test"] = "train"
    """Images that drift, feature matrix and Gaussians are computed on: augmented (release) or plain."""


def rotated_labels(labels: Tensor, classes: int) -> Tensor:
    """Labels of `four_rotations`: class c as it is, and n + 3c + (k − 1) at k = 1, 2, 3 quarter turns."""
    return torch.cat([labels, *(classes + 3 * labels + turn for turn in range(3))])


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
    card = MethodCard(
        summary="feature drift penalised by its effect on the classifier, Gaussian prototypes rehearsed (ICLR 2024)",
        when="when the network must keep learning and a covariance per class can be stored",
        keeps="mean and covariance of each class",
        trains="backbone and all heads",
        authors=(
            "Simone Magistri", "Tomaso Trinci", "Albin Soutif-Cormerais", "Joost van de Weijer", "Andrew D. Bagdanov",
        ),
        title="Elastic Feature Consolidation for Cold Start Exemplar-Free Incremental Learning",
        venue="ICLR",
        year=2024,
        url="https://arxiv.org/abs/2402.03917",
    )  # fmt: skip
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
        loss = self._first_loss if task.index == 0 else self._next_loss
        size = self._loaded(task.index)
        mode = None if task.index == 0 else self._set_mode
        keep = None if task.index == 0 else self._keep
        return [
            Phase("train", modules, lambda batch: loss(batch, task), stage, groups, size, set_mode=mode, on_resume=keep)
        ]

    def _keep(self, batch: Batch) -> None:
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
        return {"ce": cross_entropy(logits, rotated_labels(batch.labels, task.new))}

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
        old = frozen_features(self.teacher, batch.images)
        new, again, rehearsed = features[:size], features[size:], torch.cat([labels, before])
        self._keep(batch)
        return {
            "ce": cross_entropy(self.heads.layers[-1](new), batch.labels - task.old),
            "drift": elastic_drift(new.float(), old.float(), self.efm, weight=config.efm, damping=config.damping),
            "rehearsal": cross_entropy(self.heads(torch.cat([sampled, again])), rehearsed),
        }

    def _sample(self, labels: Tensor, draws: torch.Generator) -> Tensor:
        """One draw of Normal(p_c, Σ_c + jitter·I) for each label, [N] → [N, S]."""
        if self._lowers is None:
            self._lowers = spd.cholesky(self.memory.get().covs, self.config.jitter).lower.float()
        noise = upload(torch.randn(len(labels), self.feature_dim, 1, generator=draws), self.device)
        return self.memory.means[labels] + (self._lowers[labels] @ noise)[:, :, 0]

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        """Old means move by the old feature matrix; then the new matrix, then Gaussians of the new classes."""
        self.backbone.eval()
        config, task, size = self.config, data.info, self._loaded(data.info.index)
        passed: list[tuple[Tensor, ...]] = []  # new features, labels, and after task 0 old features of one epoch
        for batch in data.batches(config.stats_transform, batch_size=size, purpose="statistics", order=shuffled):
            old = () if task.index == 0 else (self.teacher(batch.images),)
            passed.append((self.backbone(batch.images), batch.labels, *old))
        new, labels, *before = (torch.cat(part) for part in zip(*passed, strict=True))
        stored = self.memory.get()
        if task.index > 0 and config.drift_width is not None:
            was, efm = before[0].double(), self.efm.double()
            weights = drift_weights(was, stored.means, efm, width=config.drift_width, minmax=config.minmax)
            stored = gaussians.Gaussians(stored.means + weights @ (new.double() - was), stored.covs)
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
