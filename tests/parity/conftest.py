"""What the official code computed: one file of numbers for each method, read by that method's test."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from gatf.data.augment import Pipeline
from gatf.data.base import ImageSet
from gatf.data.loader import TaskData, TaskInfo

Recorded = Callable[..., dict[str, Tensor]]


@pytest.fixture(scope="session")
def recorded() -> Recorded:
    """`recorded("fecam")`: the tensors of fecam.safetensors by name; `recorded("fecam", "head/")`: only head/…."""

    def load(method: str, prefix: str = "") -> dict[str, Tensor]:
        tensors = load_file(Path(__file__).parent / f"{method}.safetensors")
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    return load


class ToyNet(nn.Module):
    """Images [B, 3, 2, 2] → features [B, S]: a linear layer, batch-norm (so that its mode matters) and ReLU."""

    def __init__(self, weights: dict[str, Tensor], rectified: bool = True) -> None:
        super().__init__()
        self.feature_dim, inputs = weights["linear.weight"].shape
        self.rectified = rectified
        self.linear = nn.Linear(inputs, self.feature_dim, bias=False)
        self.norm = nn.BatchNorm1d(self.feature_dim)
        self.load_state_dict(weights, strict=False)

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.linear(images.flatten(1)))
        return features.relu() if self.rectified else features


@pytest.fixture(scope="session")
def toy_net() -> Callable[..., ToyNet]:
    """`toy_net(recorded("fecam", "input/net/"))`: the little network that the official code was given, in eval mode."""

    def build(weights: dict[str, Tensor], rectified: bool = True) -> ToyNet:
        return ToyNet(weights, rectified).eval()

    return build


def mirror(images: Tensor, draws: torch.Generator) -> Tensor:
    """An augmentation without chance: it tells whether training or test images were looked at."""
    return images.flip(-1)


@pytest.fixture(scope="session")
def toy_tasks() -> Callable[..., list[TaskData]]:
    """`toy_tasks(images, labels, [3, 2, 2])`: images uint8 [N, 3, 2, 2] as tasks of so many classes. Pixels are divided
    by 255; training images are mirrored."""

    def cut(images: Tensor, labels: Tensor, sizes: list[int]) -> list[TaskData]:
        pipeline, tasks = Pipeline((mirror,), mean=(0.0,), std=(1.0,)), []
        for index, new in enumerate(sizes):
            old = sum(sizes[:index])
            (rows,) = torch.where((labels >= old) & (labels < old + new))
            info, members = TaskInfo(index, old, new, len(rows)), (rows, labels[rows])
            pixels = ImageSet(images, labels)
            tasks.append(TaskData(info, pixels, members, pipeline=pipeline, seed=0, device=torch.device("cpu")))
        return tasks

    return cut
