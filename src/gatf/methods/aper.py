"""APER (Zhou, Cai, Ye, Zhan, Liu: "Revisiting Class-Incremental Learning with Pre-Trained Models: Generalizability and
Adaptivity are All You Need", IJCV 2024), with full fine-tuning as the adaptation. Without adaptation it is SimpleCIL,
which is `ncm` with its default settings."""

from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gatf.geometry.readout import nearest_mean_distances
from gatf.methods.base import Batch, ForTask, Method, Phase, TaskData, TaskInfo
from gatf.methods.ncm import MeanMemory
from gatf.methods.parts.extraction import extract
from gatf.methods.parts.stages import FIRST_TASK_OPTIMISATION
from gatf.nets.heads import CosineHeads
from gatf.settings import MethodConfig


class APERConfig(MethodConfig):
    name: str = "aper"


class BothNetworks(nn.Module):
    """Features of two networks side by side, [B, C, H, W] → [B, 2·S]."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.first(images), self.second(images)], dim=1)


class APER(Method[APERConfig]):
    """Nearest class mean, by cosine, on features of the network as it was before the first task, and as it is after."""

    name = "aper"
    Config = APERConfig
    revisits = True
    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}, "optimisation": FIRST_TASK_OPTIMISATION}
    head = ForTask[CosineHeads]()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.original = deepcopy(self.backbone).eval().requires_grad_(False)
        self.memory = MeanMemory(2 * self.feature_dim)

    def train(self, mode: bool = True) -> "APER":
        """The first network stays as it is."""
        super().train(mode)
        self.original.eval()
        return self

    def begin_task(self, task: TaskInfo) -> None:
        if task.index == 0:
            self.head = self.make(lambda: CosineHeads(self.feature_dim).grow(task.new), "head", 0)

    def phases(self, task: TaskInfo) -> list[Phase]:
        """Task 0 only."""
        if task.index > 0:
            return []
        stage = self.optimisation.first

        def loss(batch: Batch) -> dict[str, Tensor]:
            return {"ce": cross_entropy(self.head(self.features(batch)), batch.labels)}

        modules = {"backbone": self.backbone, "head": self.head}
        return [Phase("train", modules, loss, stage, groups=self.train_groups(stage, self.head))]

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        features, labels = extract(self._both(), data)
        self.memory.add(features, labels, classes=data.info.seen, transform=lambda rows: rows)
        self.head = None

    def _both(self) -> nn.Module:
        return BothNetworks(self.original, self.backbone)

    def scores(self, images: Tensor) -> Tensor:
        return -nearest_mean_distances(self._both()(images), self.memory.means, normalise=True)

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()
