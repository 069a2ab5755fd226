"""PASS (Zhu et al., "Prototype Augmentation and Self-Supervision for Incremental Learning", CVPR 2021)."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gatf.data.augment import four_rotations, rotation_labels_class_major
from gatf.devices import upload
from gatf.errors import UserError
from gatf.methods.base import Batch, ForTask, Method, Phase, TaskData, TaskInfo, shuffled
from gatf.methods.parts.extraction import Growing, class_means, extract, frozen_features
from gatf.nets.heads import Heads
from gatf.settings import MethodConfig, NotNegative, Positive


class PASSConfig(MethodConfig):
    name: str = "pass"
    prototype: NotNegative = 10.0
    """Weight α of the cross-entropy on noisy prototypes of old classes."""
    distill: NotNegative = 10.0
    """Weight β of the feature distillation."""
    temperature: Positive = 0.1
    """τ that logits are divided by in both cross-entropies (1 in the ImageNet-Subset release)."""
    rotation: bool = True
    """Train four rotations of every class as four classes in every task."""
    radius: Literal["first", "running", "deviation"] = "first"
    """Noise scale r: root mean variance of task 0, of all seen tasks, or the mean standard deviation of task 0."""
    proto_aug_view: bool = False
    """Compute prototypes from augmented images in full batches, as the release does."""


def class_variances(features: Tensor, labels: Tensor, *, classes: int, unbiased: bool = True) -> Tensor:
    """Variance of every class along every coordinate, float64 [classes, S]; never a covariance matrix.

    A class of one sample has no unbiased variance: it gets the population's, zero.
    """
    features = features.double()
    squares = (features - class_means(features, labels, classes=classes)[labels]).square()
    population = class_means(squares, labels, classes=classes)
    if not unbiased:
        return population
    counts = torch.bincount(labels, minlength=classes).double()[:, None]
    return population * counts / (counts - 1).clamp_min(1)


def frobenius_distance(new: Tensor, old: Tensor) -> Tensor:
    """‖F_new − F_old‖_F over the whole batch: not squared, not averaged; its gradient at zero is zero."""
    return torch.linalg.vector_norm(new.float() - old.float())


def prototype_noise(prototypes: Tensor, radius: float | Tensor, generator: torch.Generator) -> Tensor:
    """Prototypes `[n, D]` moved by `radius` times standard normal noise (PASS, prototype augmentation)."""
    noise = torch.randn(prototypes.shape, dtype=prototypes.dtype, device=generator.device, generator=generator)
    return prototypes + radius * upload(noise, prototypes.device)


class NoisyPrototypes(Growing):
    """Mean feature of every class, and one noise radius."""

    means: Tensor
    squared_radius: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.zeros(0, dim))
        self.register_buffer("squared_radius", torch.zeros(()))

    def learn(self, features: Tensor, labels: Tensor, *, new: int, rule: str) -> None:
        """Append the means of `new` classes (labels 0..new−1) and set the radius by its rule.

        r² = (1/C₀)·Σ_c trace(Σ_c)/D of task 0 (release), or its running mean over all classes (paper).
        """
        old = len(self.means)
        means = class_means(features, labels, classes=new)
        self.means = torch.cat([self.means, means.float()])
        if rule == "deviation":
            if old == 0:
                deviations = class_variances(features, labels, classes=new, unbiased=False).sqrt()
                self.squared_radius = deviations.mean().square().float()
        elif old == 0 or rule == "running":
            variances = class_variances(features, labels, classes=new).mean(1)  # trace(Σ_c)/D, [new]
            self.squared_radius = ((old * self.squared_radius + variances.sum()) / (old + new)).float()

    def sample(self, count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Features μ_c + r·e, e ~ N(0, I), and labels c, uniform over the classes kept."""
        labels = upload(torch.randint(len(self.means), (count,), generator=draws), self.means.device)
        return prototype_noise(self.means[labels], self.squared_radius.sqrt(), draws), labels


class PASS(Method[PASSConfig]):
    """Old classes live on as prototypes with isotropic noise; rotations as classes make features that transfer."""

    name = "pass"
    Config = PASSConfig
    teacher = ForTask[nn.Module]()
    # ×0.1 after 45 and 90 of 101 epochs; the release steps at the start of an epoch, one earlier: [0.4357, 0.8812]
    defaults: ClassVar[dict[str, Any]] = {
        "backbone": {"bottleneck": None},
        "optimisation": {
            stage: {
                "optimiser": "adam", "lr": 1e-3, "weight_decay": 2e-4, "schedule": "steps",
                "milestones": [0.4455, 0.8911], "decay": 0.1, "clip": None, "drop_last": False, "warmup": 0.0,
            }
            for stage in ("first", "next")
        },
    }  # fmt: skip

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.views = 4 if self.config.rotation else 1
        self.heads = Heads(self.feature_dim)  # `views` outputs a class
        self.prototypes = NoisyPrototypes(self.feature_dim)

    def begin_task(self, task: TaskInfo) -> None:
        self.make(lambda: self.heads.grow(self.views * task.new), "head", task.index)
        if task.index > 0:
            self.teacher = self.frozen_copy(self.backbone)

    def phases(self, task: TaskInfo) -> list[Phase]:
        stage = self.optimisation.stage(task.index)
        return [
            Phase(
                "train",
                {"backbone": self.backbone, "heads": self.heads},
                lambda batch: self._loss(batch, task),
                stage,
                groups=self.train_groups(stage, self.heads),
                batch_size=self._loaded(task.index),
            )
        ]

    def _loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """L = L_ce + α·L_proto + β·L_kd: one softmax over all classes; prototypes meet the head only."""
        config = self.config
        images, labels = batch.images, batch.labels
        if config.rotation:
            images, labels = four_rotations(images), rotation_labels_class_major(labels)
        features = self.features(batch, images)
        terms = {"ce": self._cross_entropy(features, labels)}
        if task.index == 0:
            return terms
        if config.prototype:
            noisy, classes = self.prototypes.sample(self._loaded(task.index), batch.generator)
            terms["prototype"] = config.prototype * self._cross_entropy(noisy, self.views * classes)
        if config.distill:
            old = frozen_features(self.teacher, images)
            terms["distill"] = config.distill * frobenius_distance(features, old)
        return terms

    def _cross_entropy(self, features: Tensor, labels: Tensor) -> Tensor:
        """In float32: with τ = 0.1 logits are ten times larger."""
        return nn.functional.cross_entropy(self.heads(features).float() / self.config.temperature, labels)

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        features, labels = self._augmented(data) if self.config.proto_aug_view else extract(self.backbone, data)
        self.prototypes.learn(features, labels - data.info.old, new=data.info.new, rule=self.config.radius)
        self.note("prototypes", radius=float(self.prototypes.squared_radius.sqrt()))
        self.teacher = None

    def _augmented(self, data: TaskData) -> tuple[Tensor, Tensor]:
        """Features and labels of one epoch of augmented images, the incomplete last batch left out (release)."""
        self.backbone.eval()
        size = self._loaded(data.info.index)
        batches = data.batches("train", batch_size=size, purpose="prototypes", order=shuffled, drop_last=True)
        pairs = [(self.backbone(batch.images), batch.labels) for batch in batches]
        features, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        if len(labels.unique()) < data.info.new:
            raise UserError(
                f"task {data.info.index} has a class without an image in any full batch, so no prototype: "
                "set method.proto_aug_view=false or lower the batch size"
            )
        return features, labels

    def scores(self, images: Tensor) -> Tensor:
        """Logits of the un-rotated outputs 0, 4, 8, …"""
        return self.heads(self.backbone(images))[:, :: self.views]

    def centres(self) -> Tensor:
        return self.prototypes.means

    def bytes_per_class(self) -> int:
        """A prototype and the head's rows, float32."""
        return 4 * (self.feature_dim + self.views * (self.feature_dim + 1))

    def _loaded(self, task: int) -> int:
        """n: images loaded a step."""
        return max(1, self.optimisation.stage(task).batch_size // self.views)
