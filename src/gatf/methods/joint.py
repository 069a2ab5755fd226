"""Joint training: the ceiling. At every task a fresh network learns all classes so far, old images included."""

from copy import deepcopy
from typing import Any, ClassVar

from torch import Tensor, nn

from gatf.methods.base import Batch, Method, Phase, TaskData, TaskInfo
from gatf.methods.card import MethodCard
from gatf.nets.heads import Heads
from gatf.settings import MethodConfig


class JointConfig(MethodConfig):
    name: str = "joint"


class Joint(Method[JointConfig]):
    """The only method that keeps images; it is here to show what forgetting costs the others."""

    name = "joint"
    Config = JointConfig
    card = MethodCard(
        summary="all images of all seen classes, from scratch in each task: the upper bound (not exemplar-free)",
        when="when all images may be stored: the upper bound of a comparison",
        keeps="a row of the linear head, and all images",
        trains="a new backbone and head on all seen classes",
    )  # fmt: skip
    exemplar_free = False
    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heads = Heads(self.feature_dim)
        self._untrained = deepcopy(self.backbone.state_dict())

    def begin_task(self, task: TaskInfo) -> None:
        self.backbone.load_state_dict(self._untrained)
        self.heads.layers = nn.ModuleList()
        self.make(lambda: self.heads.grow(task.seen), "head", task.index)

    def phases(self, task: TaskInfo) -> list[Phase]:
        stage = self.optimisation.first

        def loss(batch: Batch) -> dict[str, Tensor]:
            return {"ce": nn.functional.cross_entropy(self.heads(self.features(batch)), batch.labels)}

        modules = {"backbone": self.backbone, "head": self.heads}
        groups = self.train_groups(stage, self.heads)
        return [Phase("train", modules, loss, stage, groups=groups, rate="optimisation.first.lr")]

    def end_task(self, data: TaskData) -> None:
        pass

    def scores(self, images: Tensor) -> Tensor:
        return self.heads(self.backbone(images))

    def bytes_per_class(self) -> int:
        return 4 * (self.feature_dim + 1)
