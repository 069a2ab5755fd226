"""Networks trained against a frozen copy of themselves: base learners that distil logits, as LwF, or features.

A base learner trains the backbone and says which network its features come from; what is done with the features
(prototypes, drift compensation, ridge regression) is the method's. Its `teacher` is the network of the last task and
lives until `end`, so that a method can embed an image with both.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gatf.methods.base import Batch, ForTask, Method, Phase, TaskData, TaskInfo
from gatf.methods.lwf import distillation_report, local_cross_entropy, softened_cross_entropy
from gatf.methods.parts.extraction import frozen_features, training_mode
from gatf.nets.heads import CosineHeads, Heads
from gatf.settings import NotNegative, Positive, Strict


class BaseLearner(nn.Module, ABC):
    """How a backbone is trained from task to task. The method owns the backbone and hands itself in."""

    feature_dim: int
    """D, the dimension of the network's features."""
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


class BaseConfig(Strict, ABC):
    """Settings of a base learner; `name` says which."""

    name: str
    unit_length: ClassVar[bool] = False
    """Whether features are embeddings of length 1, in a space of their own and not the backbone's."""

    @abstractmethod
    def build(self, method: Method) -> BaseLearner:
        """The learner of a method's backbone."""


class LwfBaseConfig(BaseConfig):
    name: Literal["lwf"] = "lwf"
    distill: NotNegative = 10.0
    """Weight λ of the distillation of old logits."""
    temperature: Positive = 2.0
    """T of the softened logits."""
    cosine_head: bool = True
    """One cosine head with a learned scale (off: linear heads with bias)."""
    fix_bn: bool = False
    """Fix batch-norm statistics after task 0."""

    def build(self, method: Method) -> BaseLearner:
        return LwfBase(method.feature_dim, self)


class LwfBase(BaseLearner):
    """LwF as ADC, LDC and DPCR train it: task-local cross-entropy + λ·distillation of the old logits, on a cosine head
    all of whose rows are trained; or on linear heads, one layer per task, all of them trained."""

    teacher_heads = ForTask[nn.Module]()

    def __init__(self, dim: int, config: LwfBaseConfig) -> None:
        super().__init__()
        self.feature_dim, self.config = dim, config
        self.heads: CosineHeads | Heads = CosineHeads(dim) if config.cosine_head else Heads(dim)

    def begin(self, method: Method, task: TaskInfo) -> None:
        if task.index > 0:
            self.teacher = method.frozen_copy(method.backbone)
            self.teacher_heads = method.frozen_copy(self.heads)
        method.make(lambda: self.heads.grow(task.new), "head", task.index)

    def phases(self, method: Method, task: TaskInfo) -> list[Phase]:
        config, stage = self.config, method.optimisation.stage(task.index)
        fix_bn = config.fix_bn and task.index > 0

        def loss(batch: Batch) -> dict[str, Tensor]:
            features = method.features(batch)
            logits = self.heads(features)
            terms = {"ce": local_cross_entropy(logits, batch.labels, task.old)}
            if task.index > 0 and config.distill:
                old = self.teacher_heads(frozen_features(self.teacher, batch.images))
                distance = softened_cross_entropy(logits[:, : task.old], old, config.temperature)
                terms["distill"] = config.distill * distance
            return terms

        return [
            Phase(
                "train",
                {"backbone": method.backbone, "head": self.heads},
                loss,
                stage,
                groups=method.train_groups(stage, self.heads),
                set_mode=training_mode(method.backbone, self.heads, fix_bn=fix_bn),
            )
        ]

    def network(self, method: Method) -> nn.Module:
        return method.backbone

    def end(self, method: Method, data: TaskData) -> None:
        teacher = (self.teacher, self.teacher_heads) if data.info.index > 0 else None
        values = distillation_report(data, (method.backbone, self.heads), teacher, self.config.temperature)
        if values:
            method.note("distillation", **values)
        self.teacher = self.teacher_heads = None


class FeatureBaseConfig(BaseConfig):
    name: Literal["feature"] = "feature"
    distill: NotNegative = 10.0
    """Weight λ of the distillation of features."""
    fix_bn: bool = False
    """Fix batch-norm statistics after task 0."""

    def build(self, method: Method) -> BaseLearner:
        return FeatureBase(method.feature_dim, self)


class FeatureBase(BaseLearner):
    """Cross-entropy on a linear head of the new classes + λ·mean squared distance of features from the teacher's."""

    head = ForTask[nn.Linear]()

    def __init__(self, dim: int, config: FeatureBaseConfig) -> None:
        super().__init__()
        self.feature_dim, self.config = dim, config

    def begin(self, method: Method, task: TaskInfo) -> None:
        if task.index > 0:
            self.teacher = method.frozen_copy(method.backbone)
        self.head = method.make(lambda: nn.Linear(self.feature_dim, task.new), "head", task.index)

    def phases(self, method: Method, task: TaskInfo) -> list[Phase]:
        stage = method.optimisation.stage(task.index)
        fix_bn = self.config.fix_bn and task.index > 0

        def loss(batch: Batch) -> dict[str, Tensor]:
            features = method.features(batch)
            terms = {"ce": cross_entropy(self.head(features), batch.labels - task.old)}
            if task.index > 0 and self.config.distill:
                old = frozen_features(self.teacher, batch.images)
                terms["distill"] = self.config.distill * mse_loss(features, old)
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
