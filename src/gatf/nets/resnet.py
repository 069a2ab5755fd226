"""ResNet-18 as the class-incremental literature uses it, and ResNet-50."""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from gatf.nets.base import Backbone

Stem = Literal["3x3", "3x3pool", "7x7"]
NARROW = 16
"""Below this number of input channels a shortcut takes every second pixel itself and convolves without stride: the
strided 1×1 convolution of torch 2.13 corrupts memory in its backward pass (docs/performance.md)."""


def convolved(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """`layer(x)` of a 3×3 convolution padded by one; in training on a CPU a map of at most 2×2 pixels is one product.

    On such a map most of the kernel's nine taps lie outside, and oneDNN multiplies with them all the same. Here each
    pair of an output and an input pixel takes its tap, and these matrices side by side make one that maps all inputs to
    all outputs: the same sums in another order, a third of the time.
    """
    height, width = x.shape[2:]
    if not layer.training or x.device.type != "cpu" or layer.stride != (1, 1) or max(height, width) > 2:
        return layer(x)
    pixels = [(row, column) for row in range(height) for column in range(width)]
    taps = [3 * (i - k + 1) + (j - m + 1) for k, m in pixels for i, j in pixels]  # from pixel (i, j) to pixel (k, m)
    each = layer.weight.permute(2, 3, 0, 1).flatten(0, 1).index_select(0, torch.tensor(taps))
    matrix = each.unflatten(0, (len(pixels), -1)).transpose(1, 2).flatten(2).flatten(0, 1)
    # [pixel out, pixel in, outputs, inputs] → [pixel out · outputs, pixel in · inputs]
    out = nn.functional.linear(x.permute(0, 2, 3, 1).flatten(1), matrix)
    return out.view(-1, height, width, layer.out_channels).permute(0, 3, 1, 2)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, with ReLU after the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.every = stride if inputs < NARROW else 1
        self.downsample = _shortcut(inputs, outputs, stride, stride // self.every)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu_(self.bn1(convolved(self.conv1, x)))  # in place: nobody else needs what batch-norm gave
        out = self.bn2(convolved(self.conv2, out))
        out += self.downsample(self.sampled(x))
        return torch.relu_(out)

    def sampled(self, x: Tensor) -> Tensor:
        """The pixels that the shortcut sees, where its convolution does not choose them itself."""
        return x[:, :, :: self.every, :: self.every] if self.every > 1 else x


class NarrowBlock(nn.Module):
    """A 3×3 convolution on a quarter of the channels, between two of 1×1, and a shortcut. The 3×3 has the stride, as in
    torchvision's weights."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inside = outputs // 4
        self.conv1 = nn.Conv2d(inputs, inside, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inside)
        self.conv2 = nn.Conv2d(inside, inside, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inside)
        self.conv3 = nn.Conv2d(inside, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu_(self.bn1(self.conv1(x)))
        out = torch.relu_(self.bn2(convolved(self.conv2, out)))
        out = self.bn3(self.conv3(out))
        out += self.downsample(x)
        return torch.relu_(out)


def _shortcut(inputs: int, outputs: int, stride: int, own_stride: int) -> nn.Module:
    """Beside a block of some stride, of which the shortcut's convolution has its own part."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, own_stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(Backbone):
    """Image [B, C, H, W] → feature [B, S]; tensors have torchvision's names.

    The S-dimensional bottleneck of AdaGauss is a 1×1 convolution with bias before global average pooling; both are
    linear, so pooling comes first here and the bottleneck is a linear layer on the pooled features (same function,
    fewer operations). Without bottleneck the features are the pooled output of the last ReLU, hence non-negative.
    """

    block: ClassVar[type[BasicBlock | NarrowBlock]]
    blocks: ClassVar[tuple[int, int, int, int]]
    """Of each stage."""
    expansion: ClassVar[int]
    """Channels of the first stage, as a multiple of the stem's."""

    def __init__(self, channels: int = 3, *, width: int = 64, stem: Stem = "3x3", bottleneck: int | None = 64) -> None:
        super().__init__()
        size, stride = (7, 2) if stem == "7x7" else (3, 1)
        self.conv1 = nn.Conv2d(channels, width, size, stride, size // 2, bias=False)
        self.maxpool: nn.Module = nn.Identity() if stem == "3x3" else nn.MaxPool2d(3, 2, 1)
        self.bn1 = nn.BatchNorm2d(width)
        first = self.expansion * width
        self.layer1 = self._stage(0, width, first, 1)
        self.layer2 = self._stage(1, first, 2 * first, 2)
        self.layer3 = self._stage(2, 2 * first, 4 * first, 2)
        self.layer4 = self._stage(3, 4 * first, 8 * first, 2)
        self._end_with(8 * first, bottleneck)
        init_convolutions(self)

    def _stage(self, number: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
        more = [self.block(outputs, outputs, 1) for _ in range(self.blocks[number] - 1)]
        return nn.Sequential(self.block(inputs, outputs, stride), *more)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu_(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.bottleneck(x.mean(dim=(2, 3)))


class ResNet18(ResNet):
    """512 features at width 64."""

    block, blocks, expansion = BasicBlock, (2, 2, 2, 2), 1


class ResNet50(ResNet):
    """2048 features at width 64."""

    block, blocks, expansion = NarrowBlock, (3, 4, 6, 3), 4


def init_convolutions(net: nn.Module) -> None:
    """Convolutions, and the bottleneck as the 1×1 convolution it stands for: normal with std √(2/(k²·outputs)), where
    only the outputs that read the same input count (all, but for a depthwise convolution).

    Batch-norm starts at weight 1, bias 0; the bottleneck's bias keeps the framework's default. (AdaGauss, resnet18.)
    """
    for name, module in net.named_modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.kernel_size[0] ** 2 * module.out_channels // module.groups
            nn.init.normal_(module.weight, 0.0, math.sqrt(2 / fan_out))
        elif name == "bottleneck" and isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, math.sqrt(2 / module.out_features))
