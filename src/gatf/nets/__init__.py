"""Backbones and the small networks around them."""

from torch import nn

from gatf.errors import UserError, near_misses
from gatf.nets.foreign import Wrapped, timm_backbone, wrap_backbone
from gatf.nets.pretrained import load_pretrained
from gatf.nets.resnet import ResNet18
from gatf.nets.small import SmallNet
from gatf.settings import BackboneConfig

__all__ = ["build_backbone", "wrap_backbone"]

TIMM = "timm:"


def build_backbone(config: BackboneConfig, channels: int, notes: list[str] | None = None) -> nn.Module:
    """The network a config names: [B, C, H, W] → [B, feature_dim], with pretrained weights if it says so.

    What loading those left out is added to `notes`, a sentence each.
    """
    backbone = _fresh(config, channels)
    if config.pretrained is not None:
        inner = backbone.net if isinstance(backbone, Wrapped) else backbone
        loaded = load_pretrained(inner, config.pretrained)
        if notes is not None:
            notes += loaded.notes()
    return backbone


def _fresh(config: BackboneConfig, channels: int) -> nn.Module:
    if config.name == "resnet18":
        return ResNet18(channels, width=config.width, stem=config.stem, bottleneck=config.bottleneck)
    if config.name == "small":
        return SmallNet(channels, width=config.width, bottleneck=config.bottleneck)
    if config.name.startswith(TIMM):
        return timm_backbone(config.name.removeprefix(TIMM), channels, config.bottleneck)
    known = ("resnet18", "small", "timm:<model>")
    raise UserError(f"no backbone is called '{config.name}'{near_misses(config.name, known)}")
