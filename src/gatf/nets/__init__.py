"""Backbones and the small networks around them."""

from torch import nn

from gatf.errors import UserError, near_misses
from gatf.nets.resnet import ResNet18
from gatf.nets.small import SmallNet
from gatf.settings import BackboneConfig


def build_backbone(config: BackboneConfig, channels: int) -> nn.Module:
    """The network a config names: [B, C, H, W] → [B, feature_dim]."""
    if config.name == "resnet18":
        return ResNet18(channels, width=config.width, stem=config.stem, bottleneck=config.bottleneck)
    if config.name == "small":
        return SmallNet(channels, width=config.width, bottleneck=config.bottleneck)
    raise UserError(f"no backbone is called '{config.name}'{near_misses(config.name, ('resnet18', 'small'))}")
