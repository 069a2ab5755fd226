"""Fine-tuning: the floor. Each task trains the backbone and its own head with cross-entropy and nothing else."""

from typing import Any, ClassVar

from torch import Tensor, nn

from gatf.methods.base import Batch, Method, Phase, TaskData, TaskInfo
from gatf.methods.card import MethodCard
from gatf.nets.heads import Heads
from gatf.settings import MethodConfig


class FinetuneConfig(MethodConfig):
    name: str = "finetune"


class Finetune(Method[FinetuneConfig]):
    """Task-local cross-entropy; heads of earlier tasks stay as they were; prediction over all heads."""

    name = "finetune"
    Config = FinetuneConfig
    card = MethodCard(
        summary="cross-entropy on the new classes only: the lower bound",
        when="as the lower bound of a comparison",
        keeps="a row of the linear head",
        trains="backbone and the task's head",
    )  # fmt: skip
    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heads = Heads(self.feature_dim)

    def begin_task(self, task: TaskInfo) -> None:
        self.make(lambda: self.heads.grow(task.new), "head", task.index)

    def phases(self, task: TaskInfo) -> list[Phase]:
        stage = self.optimisation.stage(task.index)
        head = self.heads.layers[-1]

        def loss(batch: Batch) -> dict[str, Tensor]:
            logits = head(self.features(batch))
            return {"ce": nn.functional.cross_entropy(logits, batch.labels - task.old)}

        modules = {"backbone": self.backbone, "head": head}
        return [Phase("train", modules, loss, stage, groups=self.train_groups(stage, head))]

    def end_task(self, data: TaskData) -> None:
        pass

    def scores(self, images: Tensor) -> Tensor:
        return self.heads(self.backbone(images))

    def bytes_per_class(self) -> int:
        return 4 * (self.feature_dim + 1)
