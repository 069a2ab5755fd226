"""FeTrIL (Petit, Popescu, Schindler, Picard, Delezoide: "Feature Translation for Exemplar-Free Class-Incremental
Learning", WACV 2023). By default task 0 is trained as PyCIL does; `recipe` has the authors' way."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize

from gatf.data.augment import RandomFlip
from gatf.data.policies import AugMix
from gatf.errors import UserError
from gatf.geometry.linear_models import fit_svm
from gatf.methods.base import Batch, ForTask, Phase, TaskData, TaskInfo
from gatf.methods.parts.extraction import Growing, class_means, extract
from gatf.methods.parts.features import FeatureMethod
from gatf.methods.parts.losses import task_batch
from gatf.methods.parts.stages import FIRST_TASK_OPTIMISATION
from gatf.nets.heads import CosineHeads, wide_linear
from gatf.nets.resnet import ResNet18
from gatf.seeding import generator
from gatf.settings import MethodConfig, NotNegative, Positive, StageConfig

NORM_GUARD = 1e-12


class FeTrILConfig(MethodConfig):
    name: Literal["fetril"] = "fetril"
    classifier: Literal["svc", "fc"] = "svc"
    """A linear SVM on unit features, refitted at every task, or a linear layer trained on raw features."""
    similarity: Literal["cosine", "euclidean"] = "cosine"
    """How an old class finds the new class that imitates it: by angle (PyCIL) or distance (release) of raw means."""
    rank: PositiveInt = 1
    """Imitate an old class with its most similar new class (1), the second most similar (2), and so on; with the least
    similar one where there are fewer."""
    penalty: Positive = 1.0
    """C of the SVM: weight of the squared hinge against ½‖w‖² + ½b²."""
    tolerance: Positive = 1e-4
    """The SVM is solved when the gradient of every class has fallen to this fraction of its first value."""
    fc_epochs: PositiveInt = 50
    """Epochs of the linear layer, rate annealed to zero by a cosine."""
    fc_lr: Positive = 0.05
    """Learning rate of the linear layer."""
    fc_weight_decay: NotNegative = 5e-4
    """Weight decay of the linear layer."""
    fc_batch_size: PositiveInt = 128
    """Features per step of the linear layer."""
    task0_rotation: bool = False
    """Learn four rotations of every class at task 0 (the protocol of EFC and AdaGauss)."""
    train_network: bool = True
    """Train the network at task 0; off: take a pretrained one as it is."""
    recipe: Literal["pycil", "official"] = "pycil"
    """Task 0 as `optimisation.first` says, or in the authors' two stages with their own optimisers: a cosine head on
    features without the last ReLU on mirrored images, then a linear head with it under Lookahead and AugMix. The
    authors also enlarge all images to 224 pixels: see the recipe cifar100-t10."""
    official_epochs: tuple[PositiveInt, PositiveInt] = (90, 290)
    """Epochs of the two stages of recipe official."""
    decay: Literal["release", "step"] = "release"
    """Second stage of recipe official: a tenth of the rate in epochs 80 and 120 alone (the release) or from them on."""


def official_stages(config: FeTrILConfig) -> tuple[StageConfig, StageConfig]:
    """How the authors' release trains task 0: 90 epochs with ×0.1 at 30 and 60, then 290 with Lookahead(5, 0.8)."""
    epochs, more_epochs = config.official_epochs
    first = StageConfig(
        epochs=epochs, batch_size=128, lr=0.1, weight_decay=1e-4, milestones=(1 / 3, 2 / 3), clip=None, warmup=0.0,
        drop_last=False,
    )  # fmt: skip
    second = {
        "epochs": more_epochs, "batch_size": 64, "lr": 0.01, "milestones": (80 / 290, 120 / 290),
        "schedule": "dips" if config.decay == "release" else "steps", "lookahead": 5, "lookahead_rate": 0.8,
    }  # fmt: skip
    return first, first.model_copy(update=second)


@dataclass(frozen=True)
class Imitations:
    """Real features of new classes, and copies of them translated to the means of old classes. A translated feature is
    computed when it is asked for."""

    features: Tensor
    """Of the new classes' images, [N, D]."""
    shifts: Tensor
    """μ_c − μ_s(c): what class c adds to the features of its source, zero for a new class, [C, D]."""
    rows: Tensor
    """Which real feature each of the M rows is made of, [M]."""
    labels: Tensor
    """Class of each row, [M], in the order of the classes."""

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, means: Tensor, sources: Tensor) -> "Imitations":
        """X̂_p = X_s(p) − μ_s(p) + μ_p for every old class p: labels [N] are scenario classes, means [C, D] of all
        classes, sources [old] the new class that imitates each old one. A class has as many rows as its source."""
        classes, old = len(means), len(sources)
        every = torch.cat([sources, torch.arange(old, classes, device=sources.device)])  # [C]
        counts = torch.bincount(labels, minlength=classes)
        starts = counts.cumsum(0) - counts
        sizes = counts[every]
        targets = torch.arange(classes, device=sizes.device).repeat_interleave(sizes)  # [M]
        place = torch.arange(len(targets), device=sizes.device) - (sizes.cumsum(0) - sizes)[targets]
        rows = labels.argsort(stable=True)[starts[every[targets]] + place]
        return cls(features, (means - means[every]).to(features), rows, targets)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        return self.features[self.rows[chosen]] + self.shifts[self.labels[chosen]]


def choose_sources(old: Tensor, new: Tensor, *, similarity: str, rank: int = 1) -> Tensor:
    """For each old mean [O, D] the position of its `rank`-th most similar new mean [K, D] → [O]; ties: the first."""
    old, new = old.double(), new.double()
    if similarity == "cosine":
        similarities = normalize(old, dim=1, eps=NORM_GUARD) @ normalize(new, dim=1, eps=NORM_GUARD).T
    else:
        similarities = -torch.cdist(old, new, compute_mode="donot_use_mm_for_euclid_dist")
    order = similarities.argsort(dim=1, descending=True, stable=True)
    return order[:, min(rank, len(new)) - 1]


def fit_linear(
    pseudo: Imitations, weight: Tensor, bias: Tensor, config: FeTrILConfig, draws: torch.Generator
) -> tuple[Tensor, Tensor]:
    """One linear layer trained by SGD on raw features, from weight [C, D] and bias [C]."""
    weight, bias = (start.detach().clone().requires_grad_() for start in (weight, bias))
    optimiser = torch.optim.SGD([weight, bias], lr=config.fc_lr, momentum=0.9, weight_decay=config.fc_weight_decay)
    for epoch in range(config.fc_epochs):
        optimiser.param_groups[0]["lr"] = config.fc_lr * (1 + math.cos(math.pi * epoch / config.fc_epochs)) / 2
        order = torch.randperm(len(pseudo), generator=draws).to(weight.device)
        for chosen in order.split(config.fc_batch_size):
            with torch.enable_grad():
                loss = cross_entropy(linear(pseudo[chosen], weight, bias), pseudo.labels[chosen])
            weight.grad, bias.grad = torch.autograd.grad(loss, [weight, bias])
            optimiser.step()
    return weight.detach(), bias.detach()


class LinearMemory(Growing):
    """Mean raw feature of every class, and the linear classifier of the last task."""

    means: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.zeros(0, dim))
        self.register_buffer("weight", torch.zeros(0, dim))
        self.register_buffer("bias", torch.zeros(0))


class FeTrIL(FeatureMethod[FeTrILConfig]):
    """A backbone frozen after task 0; old classes are imitated by translated features of new ones."""

    name = "fetril"
    Config = FeTrILConfig
    summary = "frozen backbone; new features, translated to old class means, train a linear classifier (WACV 2023)"
    paper = "Petit et al., FeTrIL: Feature Translation for Exemplar-Free Class-Incremental Learning, WACV 2023"
    keeps = "the mean of each class"
    trains = "backbone at task 0; later only a linear classifier"
    head = ForTask[nn.Linear]()
    cosine_head = ForTask[CosineHeads]()
    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}, "optimisation": FIRST_TASK_OPTIMISATION}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.config.recipe == "official" and not isinstance(self.backbone, ResNet18):
            raise UserError(
                "method.recipe=official leaves out ResNet-18's last ReLU at first: set backbone.name=resnet18"
            )
        self.memory = LinearMemory(self.feature_dim)

    @property
    def network_is_fixed(self) -> bool:
        return not self.config.train_network

    def begin_task(self, task: TaskInfo) -> None:
        if task.index == 0 and self.config.train_network:
            outputs = 4 * task.new if self.config.task0_rotation else task.new
            official = self.config.recipe == "official"
            self.head = self.make(
                lambda: (nn.Linear if official else wide_linear)(self.feature_dim, outputs), "head", 0
            )
            if official:
                self.cosine_head = self.make(lambda: CosineHeads(self.feature_dim).grow(outputs), "cosine head", 0)

    def phases(self, task: TaskInfo) -> list[Phase]:
        """Task 0 only. What is fitted later never touches the network and is done in `end_task`."""
        if task.index > 0 or not self.config.train_network:
            return []
        if self.config.recipe == "official":
            first, second = official_stages(self.config)
            without_relu = self._phase("cosine", self.cosine_head, first, task, rectified=False)
            training = self._phase("train", self.head, second, task)
            return [replace(without_relu, augment=(RandomFlip(),)), replace(training, augment=(AugMix(5, 7),))]
        return [self._phase("train", self.head, self.optimisation.first, task)]

    def _phase(self, name: str, head: nn.Module, stage: StageConfig, task: TaskInfo, rectified: bool = True) -> Phase:
        rotates = self.config.task0_rotation

        def loss(batch: Batch) -> dict[str, Tensor]:
            images, labels = task_batch(batch, task, rotates)
            return {"ce": cross_entropy(head(self.features(batch, images)), labels)}

        def set_mode() -> None:
            self.backbone.train()
            head.train()
            if isinstance(self.backbone, ResNet18):
                self.backbone.rectify_output(rectified)

        modules = {"backbone": self.backbone, "head": head}
        groups, loaded = self.train_groups(stage, head), stage.batch_size // 4 if rotates else None
        return Phase(name, modules, loss, stage, groups, loaded, set_mode=set_mode)

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        task, memory = data.info, self.memory
        features, labels = extract(self.backbone, data)
        new = class_means(features, labels - task.old, classes=task.new)
        old = memory.means.double()
        memory.means = torch.cat([memory.means, new.float()])
        sources = task.old + choose_sources(old, new, similarity=self.config.similarity, rank=self.config.rank)  # [old]
        pseudo = Imitations.of(features, labels, torch.cat([old, new]), sources)
        if self.config.classifier == "svc":
            self._fit_svc(pseudo, task.seen)
        elif task.index == 0 and self.config.train_network:
            memory.weight, memory.bias = self.head.weight[: task.new].clone(), self.head.bias[: task.new].clone()
        else:
            self._train_fc(pseudo, task)
        self.head = self.cosine_head = None

    def _fit_svc(self, pseudo: Imitations, classes: int) -> None:
        """Features are translated first, then normalised: the other way round the means would not match."""
        unit = normalize(pseudo[:], dim=1, eps=NORM_GUARD)
        weight, bias = fit_svm(
            unit, pseudo.labels, classes=classes, penalty=self.config.penalty, tolerance=self.config.tolerance
        )
        self.memory.weight, self.memory.bias = weight.float(), bias.float()

    def _train_fc(self, pseudo: Imitations, task: TaskInfo) -> None:
        """Old rows from the last task, new ones fresh."""
        memory = self.memory
        fresh = self.make(lambda: wide_linear(self.feature_dim, task.new), "fc", task.index)
        start = torch.cat([memory.weight, fresh.weight]), torch.cat([memory.bias, fresh.bias])
        memory.weight, memory.bias = fit_linear(pseudo, *start, self.config, generator(self.seed, "fc", task.index))

    def feature_scores(self, features: Tensor) -> Tensor:
        if self.config.classifier == "svc":
            features = normalize(features, dim=1, eps=NORM_GUARD)
        return linear(features, self.memory.weight, self.memory.bias)

    def bytes_per_class(self) -> int:
        """The mean; the linear layer too where it carries over (an SVM is refitted from the means)."""
        return 4 * self.feature_dim if self.config.classifier == "svc" else 4 * (2 * self.feature_dim + 1)
