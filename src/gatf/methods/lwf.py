"""LwF (Li & Hoiem, "Learning without Forgetting", ECCV 2016), in the class-incremental form of FACIL and PyCIL."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeInt, model_validator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, softmax

from gatf.methods.base import Batch, ForTask, Method, Phase, TaskData, TaskInfo
from gatf.methods.parts.extraction import frozen_features, training_mode
from gatf.methods.parts.prototypes import Prototypes
from gatf.methods.parts.stages import facil_stage, pycil_stage
from gatf.nets.heads import CosineHeads, HeadInit, Heads
from gatf.settings import MethodConfig, NotNegative, Positive


class LwFConfig(MethodConfig):
    name: str = "lwf"
    preset: Literal["facil", "pycil", "paper", "ncm"] = "facil"
    """The settings of FACIL, PyCIL or the paper, or the nearest-mean variant that ADC, LDC and DPCR use."""
    distill: NotNegative = 10.0
    """Weight λ of the distillation, the most important setting (1 in the paper, 3 in PyCIL)."""
    temperature: Positive = 2.0
    """T of the softened logits."""
    head: Literal["linear", "cosine"] = "linear"
    """Linear heads with bias, or one cosine head with a learned scale."""
    head_init: HeadInit = "torch"
    """Initial linear head: weights and bias uniform within ±1/√D, or weights within ±√(3/D) and bias 0 (PyCIL)."""
    train_old_heads: bool = False
    """Train the heads of old tasks through the distillation."""
    kd_groups: Literal["all", "per_task"] = "all"
    """One softmax over all old classes, or one per task, as in the paper."""
    warmup_epochs: NonNegativeInt = 0
    """Epochs in which only the new head of a later task is trained."""
    fix_bn: bool = False
    """Fix batch-norm statistics after task 0."""
    readout: Literal["logits", "ncm"] = "logits"
    """Largest logit, or largest cosine to fixed class means."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pycil": {
            "method": {"distill": 3.0, "train_old_heads": True, "head_init": "kaiming"},
            "optimisation": {
                "first": pycil_stage(200, [60, 120, 160], 5e-4),
                "next": pycil_stage(250, [60, 120, 180, 220], 2e-4),
            },
        },
        "paper": {"method": {"distill": 1.0, "train_old_heads": True, "kd_groups": "per_task", "warmup_epochs": 20}},
        "ncm": {"method": {"head": "cosine", "train_old_heads": True, "readout": "ncm"}},
    }

    @model_validator(mode="after")
    def _cosine_head_is_one(self) -> "LwFConfig":
        if self.head == "cosine" and (not self.train_old_heads or self.kd_groups == "per_task" or self.warmup_epochs):
            raise ValueError(
                "a cosine head is one weight for all classes: it needs train_old_heads=true, kd_groups=all and "
                "warmup_epochs=0"
            )
        return self


def softened_cross_entropy(
    student: Tensor, teacher: Tensor, temperature: float, *, groups: Sequence[int] | None = None
) -> Tensor:
    """LwF's distillation (Li & Hoiem, ECCV 2016): −(1/B)·Σ_n Σ_c softmax(teacher/T)·log softmax(student/T).

    Logits [B, C] of the old classes; a sum over classes, a mean over samples, no factor T². One softmax over all old
    classes, or one for each of the column `groups` (the paper's, by task), whose cross-entropies add up.
    """
    if groups is not None:
        pairs = zip(student.split(list(groups), dim=1), teacher.split(list(groups), dim=1), strict=True)
        return torch.stack([softened_cross_entropy(new, old, temperature) for new, old in pairs]).sum()
    targets = softmax(teacher / temperature, dim=1)
    return -(targets * log_softmax(student / temperature, dim=1)).sum(dim=1).mean()


def softened_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) of the softened distributions: the distillation less its floor, the teacher's entropy."""
    return softened_cross_entropy(student, teacher, temperature) - softened_cross_entropy(teacher, teacher, temperature)


def local_cross_entropy(logits: Tensor, labels: Tensor, old: int) -> Tensor:
    """Cross-entropy whose softmax covers the new classes only: logits [B, C], labels [B] in old..C−1."""
    return cross_entropy(logits[:, old:], labels - old if old else labels)  # one launch fewer in the first task


Network = tuple[nn.Module, nn.Module]
"""A backbone and its heads."""


def lwf_terms(
    method: Method, heads: nn.Module, teacher: Network | None, batch: Batch, task: TaskInfo, *, distill: float,
    temperature: float, groups: Sequence[int] | None = None, replayed: Tensor | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """L = L_new + λ·L_old: cross-entropy of the new classes among themselves, the old logits as the teacher's, of the
    batch and of `replayed` images [P, C, H, W], if there are any."""
    images = batch.images if replayed is None else torch.cat([batch.images, replayed])
    logits = heads(method.features(batch, images))
    new = logits if replayed is None else logits[: len(batch.images)]
    terms = {"ce": local_cross_entropy(new, batch.labels, task.old)}
    if teacher is not None and distill:
        old_backbone, old_heads = teacher
        old = old_heads(frozen_features(old_backbone, images))
        distance = softened_cross_entropy(logits[:, : task.old], old, temperature, groups=groups)
        terms["distill"] = distill * distance
    return terms


@torch.no_grad()
def note_distillation(
    method: Method, data: TaskData, heads: nn.Module, teacher: Network | None, temperature: float
) -> None:
    """Report how far the student's old logits went from the teacher's over the task's images (KL, zero when they did
    not), unless there is no teacher yet; and a cosine head's scale, which must grow well above 1 for the softened
    softmax to say anything."""
    report = {}
    if teacher is not None:
        method.backbone.eval()
        total = torch.zeros((), device=method.device)
        old_backbone, old_heads = teacher
        for batch in data.batches("test"):
            new = heads(method.backbone(batch.images))[:, : data.info.old]
            total += len(new) * softened_divergence(new, old_heads(old_backbone(batch.images)), temperature)
        report["kl"] = float(total) / len(data)
    if isinstance(heads, CosineHeads):
        report["scale"] = float(heads.scale.detach())
    if report:
        method.note("distillation", **report)


class LwF(Method[LwFConfig]):
    """The logits of old classes are held where the network of the last task has them."""

    name = "lwf"
    Config = LwFConfig
    defaults: ClassVar[dict[str, Any]] = {
        "backbone": {"bottleneck": None},
        "optimisation": {"first": facil_stage(0.1), "next": facil_stage(0.1)},
    }
    teacher = ForTask[nn.Module]()
    teacher_heads = ForTask[nn.Module]()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        dim, config = self.feature_dim, self.config
        self.heads: CosineHeads | Heads = (
            CosineHeads(dim) if config.head == "cosine" else Heads(dim, init=config.head_init)
        )
        self.prototypes = Prototypes(dim) if config.readout == "ncm" else None

    def begin_task(self, task: TaskInfo) -> None:
        if task.index > 0:
            self.teacher, self.teacher_heads = self.frozen_copy(self.backbone), self.frozen_copy(self.heads)
        self.make(lambda: self.heads.grow(task.new), "head", task.index)

    def phases(self, task: TaskInfo) -> list[Phase]:
        stage = self.optimisation.stage(task.index)
        trained: nn.Module = self.heads
        if isinstance(self.heads, Heads) and not self.config.train_old_heads:
            self.heads.layers.requires_grad_(False)
            trained = self.heads.layers[-1].requires_grad_(True)
        training = Phase(
            "train",
            {"backbone": self.backbone, "head": trained},
            lambda batch: self._loss(batch, task),
            stage,
            groups=self.train_groups(stage, trained),
            set_mode=training_mode(self.backbone, trained, fix_bn=self.config.fix_bn and task.index > 0),
        )
        warms_up = self.config.warmup_epochs > 0 and task.index > 0
        return [self._head_phase(task), training] if warms_up else [training]

    def _loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        return lwf_terms(
            self, self.heads, self._teacher(task), batch, task, distill=self.config.distill,
            temperature=self.config.temperature, groups=self._groups(),
        )  # fmt: skip

    def _teacher(self, task: TaskInfo) -> Network | None:
        return (self.teacher, self.teacher_heads) if task.index > 0 else None

    def _groups(self) -> list[int] | None:
        """Classes of each old task, where each has a softmax of its own."""
        if isinstance(self.heads, Heads) and self.config.kd_groups == "per_task":
            return [int(layer.out_features) for layer in self.heads.layers[:-1]]  # type: ignore[arg-type]
        return None

    def _head_phase(self, task: TaskInfo) -> Phase:
        """The paper's warm-up: the new head alone, with a frozen backbone."""
        assert isinstance(self.heads, Heads)
        head = self.heads.layers[-1]

        def loss(batch: Batch) -> dict[str, Tensor]:
            with torch.no_grad():
                features = self.backbone(batch.images)
            return {"ce": cross_entropy(head(features), batch.labels - task.old)}

        def set_mode() -> None:
            self.backbone.eval()
            head.train()

        changes = {"epochs": self.config.warmup_epochs, "schedule": "constant"}
        stage = self.optimisation.stage(task.index).model_copy(update=changes)
        return Phase("head", {"head": head}, loss, stage, set_mode=set_mode)

    def end_task(self, data: TaskData) -> None:
        if self.prototypes is not None:
            self.prototypes.learn(self.backbone, data)
        note_distillation(self, data, self.heads, self._teacher(data.info), self.config.temperature)
        self.teacher = self.teacher_heads = None

    def scores(self, images: Tensor) -> Tensor:
        features = self.backbone(images)
        return self.heads(features) if self.prototypes is None else self.prototypes.scores(features)

    def bytes_per_class(self) -> int:
        """The row of the head, with its bias where it has one, and the prototype where there is one."""
        numbers = self.feature_dim + (self.config.head == "linear")
        return 4 * numbers + (0 if self.prototypes is None else self.prototypes.bytes_per_class())
