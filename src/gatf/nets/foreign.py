"""Backbones that are not ours: any module that returns features, and timm's models."""

import torch
from torch import Tensor, nn

from gatf.errors import UserError


class Wrapped(nn.Module):
    """A module that returns features [B, D], with D known, and perhaps a linear bottleneck after it."""

    def __init__(self, net: nn.Module, dim: int, bottleneck: int | None = None) -> None:
        super().__init__()
        self.net = net
        self.bottleneck: nn.Module = nn.Identity() if bottleneck is None else nn.Linear(dim, bottleneck)
        self.feature_dim = dim if bottleneck is None else bottleneck

    def forward(self, x: Tensor) -> Tensor:
        return self.bottleneck(self.net(x))


def wrap_backbone(module: nn.Module, image_shape: tuple[int, int, int]) -> nn.Module:
    """A module from Python as a backbone: as it is where it has an integer `feature_dim`, else with D found by passing
    two blank images (channels, height, width) through it."""
    if isinstance(getattr(module, "feature_dim", None), int):
        return module
    return Wrapped(module, probe_dim(module, image_shape))


@torch.no_grad()
def probe_dim(module: nn.Module, image_shape: tuple[int, int, int]) -> int:
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
        import timm
    except (
        Exception
    ) as error:  # timm needs torchvision, which fails in its own ways beside a torch it was not built for
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"backbone.name=timm:{model} needs timm, which does not import here ({reason}): "
            "pip install 'gatf-cil[timm]'"
        ) from None
    try:
        net = timm.create_model(model, pretrained=False, num_classes=0, in_chans=channels)
    except (RuntimeError, ValueError, TypeError) as error:
        raise UserError(f"timm cannot make '{model}': {' '.join(str(error).split())}") from None
    return Wrapped(net, int(net.num_features), bottleneck)
