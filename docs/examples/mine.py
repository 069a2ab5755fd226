from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gatf.methods.base import Batch, ForTask, Method, MethodCard, Phase, TaskData, TaskInfo
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.prototypes import Prototypes
from gatf.settings import MethodConfig, NotNegative


class MineConfig(MethodConfig):
    strength: NotNegative = 10.0
    """Weight of the distance between old and new features."""


class Mine(Method[MineConfig]):
    """Nearest class mean on a backbone trained with feature distillation."""

    name = "mine"
    Config = MineConfig
    card = MethodCard(
        summary="distilled features, nearest class mean", when="as an example", keeps="class means", trains="backbone"
    )
    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}}  # defaults in other sections
    head = ForTask[nn.Linear]()  # exists during a task: created in begin_task, None after end_task
    teacher = ForTask[nn.Module]()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.prototypes = Prototypes(self.feature_dim)  # persists between tasks

    def begin_task(self, task: TaskInfo) -> None:
        self.head = self.make(lambda: nn.Linear(self.feature_dim, task.new), "head", task.index)
        if task.index > 0:
            self.teacher = self.frozen_copy(self.backbone)

    def phases(self, task: TaskInfo) -> list[Phase]:
        stage = self.optimisation.stage(task.index)

        def loss(batch: Batch) -> dict[str, Tensor]:
            features = self.features(batch)  # [B, S]
            terms = {"ce": cross_entropy(self.head(features), batch.labels - task.old)}
            if task.index > 0:
                old = frozen_features(self.teacher, batch.images)
                terms["distill"] = self.config.strength * mse_loss(features, old)
            return terms

        modules = {"backbone": self.backbone, "head": self.head}
        return [Phase("train", modules, loss, stage, groups=self.train_groups(stage, self.head))]

    def end_task(self, data: TaskData) -> None:
        self.prototypes.learn(self.backbone, data)
        self.head = self.teacher = None

    def scores(self, images: Tensor) -> Tensor:
        return self.prototypes.scores(self.backbone(images))

    def bytes_per_class(self) -> int:
        return self.prototypes.bytes_per_class()
