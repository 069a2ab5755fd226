"""Fine-tuning: the lower bound. Each task trains the backbone and its own head with cross-entropy and nothing else."""

from torch import Tensor, nn

from gatf.methods.base import Batch, Phase, TaskInfo
from gatf.methods.parts.linear import LinearHeads
from gatf.settings import MethodConfig


class FinetuneConfig(MethodConfig):
    name: str = "finetune"


class Finetune(LinearHeads[FinetuneConfig]):
    """Task-local cross-entropy; heads of earlier tasks are not trained further; prediction over all heads."""

    name = "finetune"
    Config = FinetuneConfig

    def phases(self, task: TaskInfo) -> list[Phase]:
        stage = self.optimisation.stage(task.index)
        head = self.heads.layers[-1]

        def loss(batch: Batch) -> dict[str, Tensor]:
            logits = head(self.features(batch))
            return {"ce": nn.functional.cross_entropy(logits, batch.labels - task.old)}

        modules = {"backbone": self.backbone, "head": head}
        return [Phase("train", modules, loss, stage, groups=self.train_groups(stage, head))]
