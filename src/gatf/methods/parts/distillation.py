"""Networks trained against a frozen copy of themselves: LwF's logit distillation and feature distillation.

A base learner trains the backbone and says which network its features come from; what is done with the features
(prototypes, drift compensation, ridge regression) is the method's. Its `teacher` is the network of the last task and
lives until `end`, so that a method can look at the same image through both.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, mse_loss, softmax

from gatf.methods.base import Batch, ForTask, Method, Phase, TaskData, TaskInfo
from gatf.methods.parts.components import frozen_features
from gatf.nets.heads import CosineHeads, HeadInit, Heads

KdGroups = Literal["all", "per_task"]


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
    return cross_entropy(logits[:, old:], labels - old)


def freeze_batch_norm(net: nn.Module) -> None:
    """Put the batch-norm layers into eval mode: their statistics stay, their weights still train."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def training_mode(*modules: nn.Module, fix_bn: bool) -> Callable[[], None]:
    """What a phase calls to put its networks into train mode, batch-norm left in eval mode if asked."""

    def enter() -> None:
        for module in modules:
            module.train()
            if fix_bn:
                freeze_batch_norm(module)

    return enter


def facil_stage(lr: float) -> dict[str, Any]:
    """What FACIL's EWC and LwF have of their own; SGD, steps and clipping are the common ones (AdaGauss, BiCyc)."""
    return {"optimiser": "sgd", "lr": lr, "warmup": 0.0, "drop_last": False}


def pycil_stage(epochs: int, milestones: Sequence[int], weight_decay: float) -> dict[str, Any]:
    """How PyCIL trains EWC and LwF: SGD at 0.1 in batches of 128, ×0.1 after these epochs, gradients as they are."""
    return {
        "optimiser": "sgd", "epochs": epochs, "batch_size": 128, "lr": 0.1, "momentum": 0.9,
        "weight_decay": weight_decay, "schedule": "steps",
        "milestones": [round(epoch / epochs, 4) for epoch in milestones], "decay": 0.1, "clip": None, "warmup": 0.0,
        "drop_last": False,
    }  # fmt: skip


class BaseLearner(nn.Module, ABC):
    """How a backbone is trained from task to task. The method owns the backbone and hands itself in."""

    teacher = ForTask[nn.Module]()
    """Feature network of the last task, frozen, [B, C, H, W] → [B, D]; there is none at task 0."""

    @abstractmethod
    def begin(self, method: Method, task: TaskInfo) -> None:
        """New head, frozen teacher."""

    @abstractmethod
    def phases(self, method: Method, task: TaskInfo) -> list[Phase]:
        """What is trained."""

    @abstractmethod
    def network(self, method: Method) -> nn.Module:
        """The feature network in training, [B, C, H, W] → [B, D]."""

    @abstractmethod
    def end(self, method: Method, data: TaskData) -> None:
        """Report, and drop what lived for the task."""


class LwfBase(BaseLearner):
    """Task-local cross-entropy + λ·distillation of the old logits. By default as ADC, LDC and DPCR train LwF: a cosine
    head, all of whose rows are trained. With `cosine=False` the linear heads of FACIL, one layer a task."""

    teacher_heads = ForTask[nn.Module]()

    def __init__(
        self, dim: int, *, distill: float = 10.0, temperature: float = 2.0, cosine: bool = True,
        train_old_heads: bool = True, kd_groups: KdGroups = "all", fix_bn: bool = False, head_epochs: int = 0,
        head_init: HeadInit = "torch",
    ) -> None:  # fmt: skip
        super().__init__()
        if cosine and (not train_old_heads or kd_groups == "per_task" or head_epochs):
            raise ValueError(
                "a cosine head is one weight: frozen old heads, softmaxes by task and head warm-up are not"
            )
        self.distill, self.temperature, self.fix_bn = distill, temperature, fix_bn
        self.train_old_heads, self.kd_groups, self.head_epochs = train_old_heads, kd_groups, head_epochs
        self.heads: CosineHeads | Heads = CosineHeads(dim) if cosine else Heads(dim, init=head_init)

    def begin(self, method: Method, task: TaskInfo) -> None:
        if task.index > 0:
            self.teacher = method.frozen_copy(method.backbone)
            self.teacher_heads = method.frozen_copy(self.heads)
        method.make(lambda: self.heads.grow(task.new), "head", task.index)

    def phases(self, method: Method, task: TaskInfo) -> list[Phase]:
        stage = method.optimisation.stage(task.index)
        trained: nn.Module = self.heads
        if isinstance(self.heads, Heads) and not self.train_old_heads:
            self.heads.layers.requires_grad_(False)
            trained = self.heads.layers[-1].requires_grad_(True)
        fix_bn = self.fix_bn and task.index > 0

        def loss(batch: Batch) -> dict[str, Tensor]:
            features = method.features(batch)
            logits = self.heads(features)
            terms = {"ce": local_cross_entropy(logits, batch.labels, task.old)}
            if task.index > 0 and self.distill:
                terms["distill"] = self.distill * self._distillation(logits[:, : task.old], batch.images)
            return terms

        training = Phase(
            "train",
            {"backbone": method.backbone, "head": trained},
            loss,
            stage,
            groups=method.train_groups(stage, trained),
            set_mode=training_mode(method.backbone, trained, fix_bn=fix_bn),
        )
        warms_up = self.head_epochs > 0 and task.index > 0
        return [self._head_phase(method, task), training] if warms_up else [training]

    def _distillation(self, student: Tensor, images: Tensor) -> Tensor:
        teacher = self.teacher_heads(frozen_features(self.teacher, images))
        groups = None
        if isinstance(self.heads, Heads) and self.kd_groups == "per_task":
            groups = [int(layer.out_features) for layer in self.heads.layers[:-1]]  # type: ignore[arg-type]
        return softened_cross_entropy(student, teacher, self.temperature, groups=groups)

    def _head_phase(self, method: Method, task: TaskInfo) -> Phase:
        """The paper's warm-up: the new head alone, the backbone at rest."""
        assert isinstance(self.heads, Heads)
        head = self.heads.layers[-1]

        def loss(batch: Batch) -> dict[str, Tensor]:
            with torch.no_grad():
                features = method.backbone(batch.images)
            return {"ce": cross_entropy(head(features), batch.labels - task.old)}

        stage = method.optimisation.stage(task.index)
        stage = stage.model_copy(update={"epochs": self.head_epochs, "schedule": "constant"})
        return Phase("head", {"head": head}, loss, stage, set_mode=lambda: _at_rest(method.backbone, head))

    def network(self, method: Method) -> nn.Module:
        return method.backbone

    def end(self, method: Method, data: TaskData) -> None:
        """Notes how far the student's old logits went from the teacher's (KL, zero when they did not), and the cosine
        head's scale, which must grow well above 1 for the softened softmax to say anything."""
        values = {}
        if data.info.index > 0:
            values["kl"] = self._divergence(method.backbone, data)
        if isinstance(self.heads, CosineHeads):
            values["scale"] = float(self.heads.scale.detach())
        if values:
            method.note("distillation", **values)
        self.teacher = self.teacher_heads = None

    @torch.no_grad()
    def _divergence(self, backbone: nn.Module, data: TaskData) -> float:
        backbone.eval()
        total = torch.zeros((), device=next(backbone.parameters()).device)
        for batch in data.batches("test"):
            student = self.heads(backbone(batch.images))[:, : data.info.old]
            teacher = self.teacher_heads(self.teacher(batch.images))
            total += len(student) * softened_divergence(student, teacher, self.temperature)
        return float(total) / len(data)


class FeatureDistillationBase(BaseLearner):
    """Cross-entropy on a linear head of the new classes + λ·mean squared distance of features from the teacher's."""

    head = ForTask[nn.Linear]()

    def __init__(self, dim: int, *, distill: float = 10.0, fix_bn: bool = False) -> None:
        super().__init__()
        self.dim, self.distill, self.fix_bn = dim, distill, fix_bn

    def begin(self, method: Method, task: TaskInfo) -> None:
        if task.index > 0:
            self.teacher = method.frozen_copy(method.backbone)
        self.head = method.make(lambda: nn.Linear(self.dim, task.new), "head", task.index)

    def phases(self, method: Method, task: TaskInfo) -> list[Phase]:
        stage = method.optimisation.stage(task.index)
        fix_bn = self.fix_bn and task.index > 0

        def loss(batch: Batch) -> dict[str, Tensor]:
            features = method.features(batch)
            terms = {"ce": cross_entropy(self.head(features), batch.labels - task.old)}
            if task.index > 0 and self.distill:
                old = frozen_features(self.teacher, batch.images)
                terms["distill"] = self.distill * mse_loss(features, old)
            return terms

        return [
            Phase(
                "train",
                {"backbone": method.backbone, "head": self.head},
                loss,
                stage,
                groups=method.train_groups(stage, self.head),
                set_mode=training_mode(method.backbone, self.head, fix_bn=fix_bn),
            )
        ]

    def network(self, method: Method) -> nn.Module:
        return method.backbone

    def end(self, method: Method, data: TaskData) -> None:
        self.head = self.teacher = None


def _at_rest(backbone: nn.Module, head: nn.Module) -> None:
    backbone.eval()
    head.train()
