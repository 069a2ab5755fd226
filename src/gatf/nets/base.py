"""What every backbone has: the size of its features, where its weights come from, how its batch-norm trains."""

from typing import Self

from torch import Tensor, nn

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel, of pixels from 0 to 1."""


class Backbone(nn.Module):
    """Image [B, C, H, W] → feature [B, feature_dim], through a linear bottleneck or none at the end."""

    feature_dim: int
    bottleneck: nn.Module
    pretrained: bool = False
    """Whether its weights come from elsewhere; then it is fine-tuned rather than trained."""
    normalisation: Normalisation | None = None
    """What pretrained weights expect of pixels, where that is known; else the data's own is as good as any."""
    central_share: float | None = None
    """Of the shorter side of large images, what pretrained weights expect to see in a test, where that is known."""
    fixed_norm: bool = False
    """Batch-norm keeps its statistics while everything trains: a few images must not replace those of a million."""

    def _end_with(self, dim: int, bottleneck: int | None) -> None:
        """The last layer of a network with D = `dim` pooled features."""
        self.bottleneck = nn.Identity() if bottleneck is None else nn.Linear(dim, bottleneck)
        self.feature_dim = dim if bottleneck is None else bottleneck

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.fixed_norm:
            freeze_batch_norm(self)
        return self

    def our_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Published weights by the names that this network gives them."""
        return tensors


def freeze_batch_norm(net: nn.Module) -> None:
    """Put the batch-norm layers into eval mode: their statistics stay, their weights still train."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
