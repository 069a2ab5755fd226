"""Backbones and the small networks around them."""

from copy import deepcopy

from torch import nn

from gatf import plugins
from gatf.errors import UserError
from gatf.nets.base import Backbone
from gatf.nets.foreign import Wrapped, probe_dim, timm_backbone, wrap_backbone
from gatf.nets.identity import Vectors
from gatf.nets.mobile import EfficientNetLite0, EfficientNetLite1, EfficientNetLite2, MobileNetV2
from gatf.nets.pretrained import load_pretrained
from gatf.nets.resnet import ResNet18, ResNet50, Stem
from gatf.nets.small import SmallNet
from gatf.settings import INSIDE, PYTHON, VECTORS, BackboneConfig

__all__ = ["Backbone", "build_backbone", "python_backbone", "wrap_backbone"]

TIMM = "timm:"
RESNETS = {"resnet18": ResNet18, "resnet50": ResNet50}
MOBILE = {
    "mobilenet_v2": MobileNetV2,
    **{kind.name: kind for kind in (EfficientNetLite0, EfficientNetLite1, EfficientNetLite2)},
}
BACKBONES = (*RESNETS, *MOBILE, "small", VECTORS)
"""Names of the shipped backbones."""
LARGEST_FOR_3X3 = 64
"""Side of images up to which `stem=auto` is 3x3."""


def build_backbone(
    config: BackboneConfig, channels: int, notes: list[str] | None = None, *, side: int = 32
) -> Backbone:
    """The network a config names: [B, C, H, W] → [B, feature_dim], with pretrained weights if it asks for them.

    What loading those left out is added to `notes`, a sentence each. A plugin is a function from the number of channels
    to a module that returns features; images of this side show their dimension.
    """
    backbone = _fresh(config, channels, side)
    if config.pretrained == INSIDE:
        backbone.pretrained = True
    elif config.pretrained is not None:
        loaded = load_pretrained(backbone, config.pretrained)
        if notes is not None:
            notes += loaded.notes(bottleneck_follows=config.bottleneck_init != "random")
    return _with_norm(backbone, config)


def python_backbone(module: nn.Module, config: BackboneConfig, image_shape: tuple[int, ...]) -> Backbone:
    """A copy of a module from Python with what the config adds to it: a bottleneck, and how batch-norm trains."""
    module = deepcopy(module)
    if not isinstance(module, Wrapped):
        module = Wrapped(module, probe_dim(module, image_shape), config.bottleneck)
    return _with_norm(module, config)


def _with_norm(backbone: Backbone, config: BackboneConfig) -> Backbone:
    backbone.fixed_norm = config.batch_norm == "fixed" or (config.batch_norm == "auto" and backbone.pretrained)
    return backbone.train()


def _fresh(config: BackboneConfig, channels: int, side: int) -> Backbone:
    if config.name in RESNETS:
        stem: Stem = config.stem if config.stem != "auto" else "3x3" if side <= LARGEST_FOR_3X3 else "7x7"
        return RESNETS[config.name](channels, width=config.width, stem=stem, bottleneck=config.bottleneck)
    if config.name in MOBILE:
        return MOBILE[config.name](channels, bottleneck=config.bottleneck)
    if config.name == "small":
        return SmallNet(channels, width=config.width, bottleneck=config.bottleneck)
    if config.name == VECTORS:
        return Vectors(channels, unit_length=config.unit_length)
    if config.name.startswith(TIMM):
        return timm_backbone(config.name.removeprefix(TIMM), channels, config.bottleneck)
    if config.name.startswith(PYTHON):
        raise UserError(f"the backbone {config.name.removeprefix(PYTHON)} comes from Python and must be given again")
    build = plugins.find("backbone", config.name, dict.fromkeys((*BACKBONES, "timm:<model>")))
    module = plugins.call("backbone", config.name, build, channels)
    if not isinstance(module, nn.Module):
        raise UserError(f"backbone '{config.name}' returns {type(module).__name__}, not a torch module")
    return Wrapped(module, probe_dim(module, (channels, side, side)), config.bottleneck)
