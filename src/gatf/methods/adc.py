"""ADC (Goswami et al., "Resurrecting Old Classes with New Data for Exemplar-Free Continual Learning", CVPR 2024)."""

from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from gatf.geometry.readout import nearest_mean_distances
from gatf.methods.base import TaskData
from gatf.methods.parts.attack import Limits, candidate_images, embed, nearest_images, perturb, pool_features, successes
from gatf.methods.parts.compensation import DriftCompensated, DriftConfig, Report
from gatf.methods.parts.prototypes import finite
from gatf.settings import NotNegative

POOL = "adc pool"


class ADCConfig(DriftConfig):
    name: str = "adc"
    candidates: PositiveInt = 100
    """m: images nearest to an old prototype that are perturbed towards it."""
    steps: NonNegativeInt = 3
    """i: steps of the attack."""
    step_size: NotNegative = 25.0
    """α: length of a step over all candidates of a class together (2.5 with `grad_norm=sample`)."""
    grad_norm: Literal["batch", "sample"] = "batch"
    """Normalise the gradient over all candidates of a class (release), or per image (Algorithm 1)."""
    inplace: bool = False
    """Test success against prototypes that have partly moved already, as the release does."""


def resurrect(
    config: ADCConfig, prototypes: Tensor, old: nn.Module, new: nn.Module, data: TaskData
) -> tuple[Tensor, Tensor, Tensor]:
    """Features [K, m, D] of the perturbed candidates of each class in both networks, and the mean drift [K, D] of the
    candidates as they were."""
    (before, after), limits = pool_features(data, POOL, old, new)
    chosen = nearest_images(before, finite(prototypes), config.candidates)  # [K, m]
    landed, moved = [], []
    for group, images in candidate_images(data, POOL, chosen):
        images = attack(config, old, images, prototypes[group], limits)
        landed.append(embed(old, images))
        moved.append(embed(new, images))
    return torch.cat(landed), torch.cat(moved), (after - before)[chosen].double().mean(dim=1)


def attack(config: ADCConfig, old: nn.Module, images: Tensor, targets: Tensor, limits: Limits) -> Tensor:
    """Perturb images [k, m, C, H, W] towards targets [k, D]; steps are normalised over a class's m images together
    ("batch", the release) or over each image ("sample", Algorithm 1)."""
    over: tuple[int, ...] = (2, 3, 4)
    size = config.step_size
    if config.grad_norm == "batch":
        over, size = (1, 2, 3, 4), size * (images.shape[1] / config.candidates) ** 0.5
    return perturb(old, images, targets, steps=config.steps, size=size, over=over, limits=limits)


def resolve(
    config: ADCConfig, prototypes: Tensor, landed: Tensor, drift: Tensor, fallback: Tensor
) -> tuple[Tensor, Report]:
    """Prototypes [K, D] plus the mean drift of the images that landed nearest to their own prototype; where none did,
    plus `fallback` [K, D]. `landed` and `drift` are [K, m, D]. With `inplace` the test of a class sees the classes
    before it already moved, as the release has it."""
    moved = prototypes.double()
    success = successes(prototypes, landed)
    if not config.inplace:
        moved = moved + _mean_drift(drift, success, fallback)
    for index in range(len(prototypes)) if config.inplace else ():
        success[index] = nearest_mean_distances(landed[index], moved).argmin(dim=1) == index
        row = slice(index, index + 1)
        moved[row] = moved[row] + _mean_drift(drift[row], success[row], fallback[row])
    counts = success.sum(dim=1).double()
    report = {
        "successes_mean": float(counts.mean()),
        "successes_min": float(counts.min()),
        "fallbacks": float((counts == 0).sum()),
        "classes": float(len(prototypes)),
    }
    return finite(moved.float()), report


def _mean_drift(drift: Tensor, success: Tensor, fallback: Tensor) -> Tensor:
    """Mean of drift [K, m, D] over the successes [K, m], or the fallback [K, D] where there are none."""
    counts = success.sum(dim=1, keepdim=True)  # [K, 1]
    total = (drift.double() * success[..., None]).sum(dim=1)
    return torch.where(counts > 0, total / counts.clamp_min(1), fallback.double())


class ADC(DriftCompensated[ADCConfig]):
    """Nearest class mean; current images are perturbed until the old network assigns them to an old class, and its
    prototype moves by their drift (Goswami et al., CVPR 2024, Algorithm 1)."""

    name = "adc"
    Config = ADCConfig

    def moved(self, prototypes: Tensor, old: nn.Module, new: nn.Module, data: TaskData) -> tuple[Tensor, Report]:
        at, to, unmoved = resurrect(self.config, prototypes, old, new, data)
        return resolve(self.config, prototypes, at, to - at, unmoved)
