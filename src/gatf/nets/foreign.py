"""Backbones that are not ours: any module that returns features, and timm's models."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from gatf.errors import UserError
from gatf.nets.base import Backbone


class Wrapped(Backbone):
    """A module that returns features [B, D], with D known, and perhaps a linear bottleneck after it.

    If the module has attributes `pretrained`, `normalisation` and `central_share`, as a `Backbone` has them, they hold.
    """

    def __init__(self, net: nn.Module, dim: int, bottleneck: int | None = None) -> None:
        super().__init__()
        self.net = net
        self.pretrained = bool(getattr(net, "pretrained", False))
        self.normalisation = getattr(net, "normalisation", None)
        self.central_share = getattr(net, "central_share", None)
        self._end_with(dim, bottleneck)

    def forward(self, x: Tensor) -> Tensor:
        return self.bottleneck(self.net(x))


def wrap_backbone(module: nn.Module, image_shape: tuple[int, ...]) -> nn.Module:
    """A module from Python as a backbone: unchanged if it has an integer `feature_dim`, else wrapped with D found by a
    forward pass of two blank images (channels, height, width)."""
    if isinstance(getattr(module, "feature_dim", None), int):
        return module
    return Wrapped(module, probe_dim(module, image_shape))


def constructor_name(module: nn.Module) -> str:
    """The dotted name of a module's class, as information for users; nothing imports it."""
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"


@torch.no_grad()
def probe_dim(module: nn.Module, image_shape: tuple[int, ...]) -> int:
    """D of the module's output [B, D] for images of this shape."""
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    training = module.training
    module.eval()  # blank images must not move batch-norm's statistics
    try:
        features = module(torch.zeros(2, *image_shape, device=device))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the backbone fails on images of shape {list(image_shape)}: {reason}") from None
    finally:
        module.train(training)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(f"the backbone must return features [B, D]; for two images it returns {shape}")
    return features.shape[1]


def timm_backbone(model: str, channels: int, bottleneck: int | None) -> Wrapped:
    """A model of timm without its classifier."""
    try:
        timm = _import_timm()
    except Exception as error:  # timm imports torchvision, which fails in its own ways beside a torch of another build
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"backbone.name=timm:{model} needs timm, which does not import here ({reason}): "
            "pip install 'gatf-cil[timm]'"
        ) from None
    try:
        net = timm.create_model(model, pretrained=False, num_classes=0, in_chans=channels)
    except (RuntimeError, ValueError, TypeError) as error:
        raise UserError(f"timm cannot make '{model}': {' '.join(str(error).split())}") from None
    dim = getattr(net, "head_hidden_size", None) or net.num_features  # some widen the features after pooling them
    return Wrapped(net, int(dim), bottleneck)


def _import_timm() -> Any:
    """timm, also where torchvision's compiled operators are missing, as beside a CPU build of torch.

    torchvision then fails on import because it describes two operators for boxes that nobody declared. No backbone uses
    them; once they are declared, without a body, the rest imports.
    """
    try:
        return import_module("timm")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return import_module("timm")
