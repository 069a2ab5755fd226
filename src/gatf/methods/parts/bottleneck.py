"""The first weights of a bottleneck after a pretrained network: found from the first task's images, not drawn."""

import torch
from torch import Tensor, nn

from gatf import distributed
from gatf.geometry.moments import Moments
from gatf.methods.base import TaskData
from gatf.methods.parts.extraction import of_all_processes, own_features
from gatf.nets import Backbone
from gatf.settings import BackboneConfig

SMALLEST_SHARE = 1e-3
"""Variances below this share of the largest one count as that much: few images show no variance in most directions."""


def start_bottleneck(backbone: nn.Module, config: BackboneConfig, data: TaskData) -> None:
    """Let the bottleneck keep what the images of the first task vary in most, if the config asks for it.

    Random weights would mix the features that pretraining made; the projection on principal axes keeps distances
    between images as well as S numbers can.
    """
    if not isinstance(backbone, Backbone) or not isinstance(layer := backbone.bottleneck, nn.Linear):
        return
    if wider_than_read(layer):
        return
    if config.bottleneck_init == "random" or (config.bottleneck_init == "auto" and not backbone.pretrained):
        return
    backbone.bottleneck = nn.Identity()
    try:
        features, _ = own_features(backbone, data, mirror=True)
    finally:
        backbone.bottleneck = layer
    keep_axes(layer, of_all_processes(Moments.of(features)))
    distributed.take_from_first([layer.weight.data, layer.bias.data])


def wider_than_read(layer: nn.Linear) -> bool:
    """Whether a bottleneck has more outputs than there are axes, so that it keeps its own weights."""
    return layer.out_features > layer.in_features


def keep_axes(layer: nn.Linear, seen: Moments) -> None:
    """Let a bottleneck keep the principal axes of what was seen."""
    weight, bias = whitening(seen, layer.out_features)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)


def whitening(seen: Moments, dim: int) -> tuple[Tensor, Tensor]:
    """Weight [S, D] and bias [S] of the map to the S = `dim` principal axes, each with mean 0 and variance 1."""
    variances, axes = torch.linalg.eigh(seen.covariance())  # ascending
    largest, axes = variances.flip(0)[:dim], axes.flip(1)[:, :dim]
    scale = largest.clamp_min(SMALLEST_SHARE * float(largest[0])).clamp_min(1e-12).rsqrt()
    weight = (axes * scale).mT
    return weight, -weight @ seen.mean
