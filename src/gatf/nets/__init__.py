"""Backbones and the small networks around them."""

from gatf.errors import UserError, near_misses
from gatf.nets.base import Backbone
from gatf.nets.foreign import timm_backbone, wrap_backbone
from gatf.nets.mobile import EfficientNetLite0, MobileNetV2
from gatf.nets.pretrained import load_pretrained
from gatf.nets.resnet import ResNet18, ResNet50
from gatf.nets.small import SmallNet
from gatf.settings import INSIDE, BackboneConfig

__all__ = ["Backbone", "build_backbone", "wrap_backbone"]

TIMM = "timm:"
RESNETS = {"resnet18": ResNet18, "resnet50": ResNet50}
MOBILE = {"mobilenet_v2": MobileNetV2, "efficientnet_lite0": EfficientNetLite0}


def build_backbone(config: BackboneConfig, channels: int, notes: list[str] | None = None) -> Backbone:
    """The network a config names: [B, C, H, W] → [B, feature_dim], with pretrained weights if it says so.

    What loading those left out is added to `notes`, a sentence each.
    """
    backbone = _fresh(config, channels)
    if config.pretrained == INSIDE:
        backbone.pretrained = True
    elif config.pretrained is not None:
        loaded = load_pretrained(backbone, config.pretrained)
        if notes is not None:
            notes += loaded.notes(bottleneck_follows=config.bottleneck_init != "random")
    backbone.fixed_norm = config.batch_norm == "fixed" or (config.batch_norm == "auto" and backbone.pretrained)
    return backbone.train()


def _fresh(config: BackboneConfig, channels: int) -> Backbone:
    if config.name in RESNETS:
        return RESNETS[config.name](channels, width=config.width, stem=config.stem, bottleneck=config.bottleneck)
    if config.name in MOBILE:
        return MOBILE[config.name](channels, bottleneck=config.bottleneck)
    if config.name == "small":
        return SmallNet(channels, width=config.width, bottleneck=config.bottleneck)
    if config.name.startswith(TIMM):
        return timm_backbone(config.name.removeprefix(TIMM), channels, config.bottleneck)
    known = (*RESNETS, *MOBILE, "small", "timm:<model>")
    raise UserError(f"no backbone is called '{config.name}'{near_misses(config.name, known)}")
