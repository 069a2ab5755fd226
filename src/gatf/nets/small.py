"""A small network for images of 8 to 16 pixels."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from gatf.nets.base import Backbone
from gatf.nets.resnet import init_convolutions


class SmallNet(Backbone):
    """Three 3×3 convolutions with batch-norm and ReLU, halving the image after the first and the second."""

    def __init__(self, channels: int = 1, *, width: int = 32, bottleneck: int | None = 32) -> None:
        super().__init__()
        sizes = [channels, width, 2 * width, 4 * width]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
            for inputs, outputs in pairwise(sizes)
        )
        self._end_with(sizes[-1], bottleneck)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.blocks
        x = nn.functional.max_pool2d(torch.relu_(first(x)), 2)
        x = nn.functional.max_pool2d(torch.relu_(second(x)), 2)
        return self.bottleneck(torch.relu_(third(x)).mean(dim=(2, 3)))
