"""FeTrIL (Petit, Popescu, Schindler, Picard, Delezoide: "Feature Translation for Exemplar-Free Class-Incremental
Learning", WACV 2023). Task 0 is trained as PyCIL does."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize

from gatf.geometry.linear_models import fit_svm
from gatf.methods.base import Batch, ForTask, Phase, TaskData, TaskInfo
from gatf.methods.card import MethodCard
from gatf.methods.parts.extraction import Growing, class_means, extract
from gatf.methods.parts.features import FeatureMethod
from gatf.methods.parts.losses import task_batch
from gatf.methods.parts.stages import FIRST_TASK_OPTIMISATION
from gatf.nets.heads import wide_linear
from gatf.seeding import generator
from gatf.settings import MethodConfig, NotNegative, Positive

NORM_GUARD = 1e-12


class FeTrILConfig(MethodConfig):
    name: str = "fetril"
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
    card = MethodCard(
        summary="frozen backbone; new features, translated to old class means, train a linear classifier (WACV 2023)",
        when="when the first task resembles later ones and only a mean per class can be stored",
        keeps="the mean of each class",
        trains="backbone at task 0; later only a linear classifier",
        authors=("Grégoire Petit", "Adrian Popescu", "Hugo Schindler", "David Picard", "Bertrand Delezoide"),
        title="FeTrIL: Feature Translation for Exemplar-Free Class-Incremental Learning",
        venue="WACV",
        year=2023,
        url="https://arxiv.org/abs/2211.13131",
    )  # fmt: skip
    head = ForTask[nn.Linear]()
    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}, "optimisation": FIRST_TASK_OPTIMISATION}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.memory = LinearMemory(self.feature_dim)

    @property
    def network_is_fixed(self) -> bool:
        return not self.config.train_network

    def begin_task(self, task: TaskInfo) -> None:
        if task.index == 0 and self.config.train_network:
            outputs = 4 * task.new if self.config.task0_rotation else task.new
            self.head = self.make(lambda: wide_linear(self.feature_dim, outputs), "head", 0)

    def phases(self, task: TaskInfo) -> list[Phase]:
        """Task 0 only. What is fitted later never touches the network and is done in `end_task`."""
        if task.index > 0 or not self.config.train_network:
            return []
        stage, rotates = self.optimisation.first, self.config.task0_rotation

        def loss(batch: Batch) -> dict[str, Tensor]:
            images, labels = task_batch(batch, task, rotates)
            return {"ce": cross_entropy(self.head(self.features(batch, images)), labels)}

        modules = {"backbone": self.backbone, "head": self.head}
        loaded = stage.batch_size // 4 if rotates else None
        return [Phase("train", modules, loss, stage, self.train_groups(stage, self.head), loaded)]

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
        self.head = None

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
