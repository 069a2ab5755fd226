"""ResNet-18 as the class-incremental literature uses it."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

Stem = Literal["3x3", "3x3pool", "7x7"]
NARROW = 16
"""Below so many input channels a shortcut takes every second pixel itself and convolves without stride: the strided 1×1
convolution of torch 2.13 corrupts memory in its backward pass (docs/performance.md)."""


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, with ReLU after the sum unless `rectified` is switched off."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.rectified = True
        self.downsample: nn.Module = nn.Identity()
        self.every = stride if inputs < NARROW else 1
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride // self.every, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu_(self.bn1(self.conv1(x)))  # in place: nobody else needs what batch-norm gave
        out = self.bn2(self.conv2(out))
        out += self.downsample(self.sampled(x))
        return torch.relu_(out) if self.rectified else out

    def sampled(self, x: Tensor) -> Tensor:
        """The pixels that the shortcut sees, where its convolution does not choose them itself."""
        return x[:, :, :: self.every, :: self.every] if self.every > 1 else x


class ResNet18(nn.Module):
    """Image [B, C, H, W] → feature [B, S].

    The S-dimensional bottleneck of AdaGauss is a 1×1 convolution with bias before global average pooling; both are
    linear, so pooling comes first here and the bottleneck is a linear layer on the pooled features (same function,
    fewer operations). Without bottleneck the features are the pooled output of the last ReLU, hence non-negative.
    """

    def __init__(self, channels: int = 3, *, width: int = 64, stem: Stem = "3x3", bottleneck: int | None = 64) -> None:
        super().__init__()
        size, stride = (7, 2) if stem == "7x7" else (3, 1)
        self.conv1 = nn.Conv2d(channels, width, size, stride, size // 2, bias=False)
        self.maxpool: nn.Module = nn.Identity() if stem == "3x3" else nn.MaxPool2d(3, 2, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = self._stage(width, width, 1)
        self.layer2 = self._stage(width, 2 * width, 2)
        self.layer3 = self._stage(2 * width, 4 * width, 2)
        self.layer4 = self._stage(4 * width, 8 * width, 2)
        self.bottleneck: nn.Module = nn.Identity() if bottleneck is None else nn.Linear(8 * width, bottleneck)
        self.feature_dim = 8 * width if bottleneck is None else bottleneck
        init_convolutions(self)

    @staticmethod
    def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        return nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu_(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.bottleneck(x.mean(dim=(2, 3)))

    def rectify_output(self, on: bool) -> None:
        """Keep or leave out the ReLU after the last residual sum. LUCIR, whose cosine head wants features with a sign,
        trains without it (Hou et al., CVPR 2019)."""
        last = self.layer4[-1]
        assert isinstance(last, BasicBlock)
        last.rectified = on


def init_convolutions(net: nn.Module) -> None:
    """Convolutions, and the bottleneck as the 1×1 convolution it stands for: normal with std √(2/(k²·outputs)).

    Batch-norm starts at weight 1, bias 0; the bottleneck's bias keeps the framework's default. (AdaGauss, resnet18.)
    """
    for name, module in net.named_modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, 0.0, math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels)))
        elif name == "bottleneck" and isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, math.sqrt(2 / module.out_features))
