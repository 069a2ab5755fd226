"""Methods whose answer to an image follows from the backbone's features of it."""

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gatf.methods.base import Batch, ConfigT, Method, Phase, TaskInfo
from gatf.methods.parts.losses import task_batch


class FeatureMethod(Method[ConfigT], ABC):
    """A method that sees of an image what the backbone makes of it, and no more."""

    @abstractmethod
    def feature_scores(self, features: Tensor) -> Tensor:
        """`scores` from features [B, S] on."""

    def scores(self, images: Tensor) -> Tensor:
        return self.feature_scores(self.backbone(images))

    @property
    def network_is_fixed(self) -> bool:
        """Whether no task trains the backbone. Then features of all images can be computed beforehand, once for all
        such methods, and the method asks for nothing else: `end_task` extracts features of the plain images."""
        return False

    @property
    def gaussians_only(self) -> bool:
        """Whether backbone and the Gaussians in `stored` are all that is kept between tasks, which may depend on the
        settings."""
        return False

    def first_task(self, head: nn.Module, task: TaskInfo, *, rotate: bool = False) -> list[Phase]:
        """Cross-entropy of a head in the first task, whose network is frozen afterwards; with `rotate` each image is
        turned four times."""
        stage = self.optimisation.first

        def loss(batch: Batch) -> dict[str, Tensor]:
            images, labels = task_batch(batch, task, rotate)
            return {"ce": cross_entropy(head(self.features(batch, images)), labels)}

        modules = {"backbone": self.backbone, "head": head}
        loaded = stage.batch_size // 4 if rotate else None
        return [Phase("train", modules, loss, stage, self.train_groups(stage, head), loaded)]
