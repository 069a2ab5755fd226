"""FeTrIL (Petit, Popescu, Schindler, Picard, Delezoide: "Feature Translation for Exemplar-Free Class-Incremental
Learning", WACV 2023). Task 0 is trained as PyCIL does."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from gatf.geometry.linear_models import fit_svm
from gatf.methods.base import ForTask, Phase, TaskData, TaskInfo
from gatf.methods.parts.extraction import Growing, class_means, extract
from gatf.methods.parts.features import FeatureMethod
from gatf.methods.parts.stages import FIRST_TASK_OPTIMISATION
from gatf.nets.heads import wide_linear
from gatf.settings import MethodConfig, Positive

NORM_GUARD = 1e-12


class FeTrILConfig(MethodConfig):
    name: str = "fetril"
    similarity: Literal["cosine", "euclidean"] = "cosine"
    """How the new class that imitates an old one is chosen: by angle (PyCIL) or distance (release) of raw means."""
    penalty: Positive = 1.0
    """C of the SVM: weight of the squared hinge against ½‖w‖² + ½b²."""
    tolerance: Positive = 1e-4
    """The SVM stops when the gradient of every class is this fraction of its first value."""
    task0_rotation: bool = False
    """Train four rotations of every class at task 0 (the protocol of EFC and AdaGauss)."""
    train_network: bool = True
    """Train the network at task 0; off: use a frozen pretrained one."""


def imitations(features: Tensor, labels: Tensor, means: Tensor, sources: Tensor) -> tuple[Tensor, Tensor]:
    """Features of new classes, and copies of them translated to old means, class after class: [M, D], and labels [M].

    X̂_p = X_s(p) − μ_s(p) + μ_p for every old class p: features are [N, D], labels [N] scenario classes, means [C, D] of
    all classes, sources [old] the new class that imitates each old one. A class has as many rows as its source.
    """
    classes, old = len(means), len(sources)
    every = torch.cat([sources, torch.arange(old, classes, device=sources.device)])  # [C]
    counts = torch.bincount(labels, minlength=classes)
    starts = counts.cumsum(0) - counts
    sizes = counts[every]
    targets = torch.arange(classes, device=sizes.device).repeat_interleave(sizes)  # [M]
    place = torch.arange(len(targets), device=sizes.device) - (sizes.cumsum(0) - sizes)[targets]
    rows = labels.argsort(stable=True)[starts[every[targets]] + place]
    return features[rows] + (means - means[every]).to(features)[targets], targets


def choose_sources(old: Tensor, new: Tensor, *, similarity: str) -> Tensor:
    """For each old mean [O, D] the position of the most similar new mean [K, D] → [O]; ties: the first."""
    old, new = old.double(), new.double()
    if similarity == "cosine":
        similarities = normalize(old, dim=1, eps=NORM_GUARD) @ normalize(new, dim=1, eps=NORM_GUARD).T
    else:
        similarities = -torch.cdist(old, new, compute_mode="donot_use_mm_for_euclid_dist")
    return similarities.argsort(dim=1, descending=True, stable=True)[:, 0]


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
        if task.index > 0 or self.network_is_fixed:
            return []
        return self.first_task(self.head, task, rotate=self.config.task0_rotation)

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        task, memory = data.info, self.memory
        features, labels = extract(self.backbone, data)
        new = class_means(features, labels - task.old, classes=task.new)
        old = memory.means.double()
        memory.means = torch.cat([memory.means, new.float()])
        sources = task.old + choose_sources(old, new, similarity=self.config.similarity)  # [old]
        translated, targets = imitations(features, labels, torch.cat([old, new]), sources)
        unit = normalize(translated, dim=1, eps=NORM_GUARD)  # not before the translation, which would miss the means
        weight, bias = fit_svm(
            unit, targets, classes=task.seen, penalty=self.config.penalty, tolerance=self.config.tolerance
        )
        memory.weight, memory.bias = weight.float(), bias.float()
        self.head = None

    def feature_scores(self, features: Tensor) -> Tensor:
        return linear(normalize(features, dim=1, eps=NORM_GUARD), self.memory.weight, self.memory.bias)

    def bytes_per_class(self) -> int:
        """The mean; the SVM is refitted from the means."""
        return 4 * self.feature_dim
