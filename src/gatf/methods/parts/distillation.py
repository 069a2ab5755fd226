"""Base learners, and the one that distils logits, as LwF: a network trained against a frozen copy of itself.

A base learner trains the backbone and defines which network its features come from; what is done with the features
(prototypes, drift compensation, ridge regression) is the method's. Its `teacher` is the network of the last task and
lives until `end`, so that a method can embed an image with both.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

from torch import Tensor, nn

from gatf.methods.base import Batch, ForTask, Method, Phase, TaskData, TaskInfo
from gatf.methods.lwf import lwf_terms, note_distillation
from gatf.nets.heads import CosineHeads
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
    """Settings of a base learner; `name` chooses it."""

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

    def build(self, method: Method) -> BaseLearner:
        return LwfBase(method.feature_dim, self)


class LwfBase(BaseLearner):
    """LwF as ADC, LDC and DPCR train it: task-local cross-entropy + λ·distillation of the old logits, on a cosine head
    all of whose rows are trained."""

    teacher_heads = ForTask[nn.Module]()

    def __init__(self, dim: int, config: LwfBaseConfig) -> None:
        super().__init__()
        self.feature_dim, self.config = dim, config
        self.heads = CosineHeads(dim)

    def begin(self, method: Method, task: TaskInfo) -> None:
        if task.index > 0:
            self.teacher = method.frozen_copy(method.backbone)
            self.teacher_heads = method.frozen_copy(self.heads)
        method.make(lambda: self.heads.grow(task.new), "head", task.index)

    def phases(self, method: Method, task: TaskInfo, replayed: Callable[[Batch], Tensor] | None = None) -> list[Phase]:
        """`replayed` makes images [P, C, H, W] of a batch that only the distillation learns from, in the same pass."""
        stage = method.optimisation.stage(task.index)
        distill, temperature = self.config.distill, self.config.temperature

        def loss(batch: Batch) -> dict[str, Tensor]:
            teacher = (self.teacher, self.teacher_heads) if task.index > 0 else None
            more = None if replayed is None else replayed(batch)
            return lwf_terms(
                method, self.heads, teacher, batch, task, distill=distill, temperature=temperature, replayed=more
            )

        modules = {"backbone": method.backbone, "head": self.heads}
        return [Phase("train", modules, loss, stage, groups=method.train_groups(stage, self.heads))]

    def network(self, method: Method) -> nn.Module:
        return method.backbone

    def end(self, method: Method, data: TaskData) -> None:
        teacher = (self.teacher, self.teacher_heads) if data.info.index > 0 else None
        note_distillation(method, data, self.heads, teacher, self.config.temperature)
        self.teacher = self.teacher_heads = None
