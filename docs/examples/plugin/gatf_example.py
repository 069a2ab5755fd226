"""One part of each kind for gatf: a data source, a backbone, an augmentation, a readout and a method."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gatf.data.base import Source
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.readout import QuadraticReadout
from gatf.methods.base import MethodCard
from gatf.methods.ncm import NCM, NCMConfig
from gatf.methods.parts.prototypes import Metric
from gatf.settings import DataConfig


def stripes(config: DataConfig) -> Source:
    """Stripes: four classes of noisy 16×16 grey images, one per direction."""
    draws = torch.Generator().manual_seed(0)
    rows, columns = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    waves = torch.stack([rows, columns, rows + columns, rows - columns]) % 8 < 4  # [classes, 16, 16]

    def part(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(4).repeat(count)
        noise = torch.randint(100, (len(labels), 16, 16), generator=draws)
        return (waves[labels] * 120 + noise).to(torch.uint8), labels

    return Source.from_arrays("stripes", part(config.max_per_class or 40), part(10), ["row", "column", "up", "down"])


def pooled(channels: int) -> nn.Module:
    """A backbone: a module that maps images [B, C, H, W] to features [B, D]."""
    layers = [nn.Conv2d(channels, 16, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class Noise:
    """An augmentation: uint8 images [B, C, H, W] → the same. `noise:8` gives `Noise(8)`."""

    strength: int = 8

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        size = (2 * self.strength + 1, images.shape)
        noise = torch.randint(*size, generator=generator).to(images.device) - self.strength
        return (images + noise).clamp(0, 255).to(torch.uint8)


def diagonal(gaussians: Gaussians) -> QuadraticReadout:
    """A readout: from class Gaussians to an object with `scores` and `graph`. This one ignores correlations."""
    variances = gaussians.covs.diagonal(dim1=1, dim2=2)
    return QuadraticReadout.of(gaussians.means, torch.diag_embed(variances + 1e-3), normalise=False)


class EuclideanConfig(NCMConfig):
    metric: Metric = "euclidean"
    """Distance between vectors."""


class Euclidean(NCM):
    """A method: nearest class mean by Euclidean distance."""

    name = "euclidean"
    Config = EuclideanConfig
    card = MethodCard(
        summary="nearest class mean by Euclidean distance",
        when="as an example",
        keeps="count and mean of each class",
        trains="nothing",
    )
