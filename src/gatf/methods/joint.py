"""Joint training: the upper bound. In every task a fresh network learns all seen classes, old images included."""

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from gatf.methods.base import Batch, Phase, TaskInfo
from gatf.methods.parts.linear import LinearHeads
from gatf.settings import MethodConfig


class JointConfig(MethodConfig):
    name: str = "joint"


class Joint(LinearHeads[JointConfig]):
    """The only method that keeps images: the upper bound, against which forgetting is measured."""

    name = "joint"
    Config = JointConfig
    exemplar_free = False
    revisits = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
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
