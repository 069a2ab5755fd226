"""ADC (Goswami et al., "Resurrecting Old Classes with New Data for Exemplar-Free Continual Learning", CVPR 2024)."""

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from gatf.geometry.readout import nearest_mean_distances
from gatf.methods.base import Batch, TaskData
from gatf.methods.parts.compensation import DriftCompensated, DriftConfig, Report
from gatf.methods.parts.prototypes import finite
from gatf.settings import NotNegative

PIXELS = 2**27
"""Pixel values of candidate images held at once (512 MB); the rest is made again from its augmentation key."""
NETWORK_BATCH = 128
"""Candidate images sent through a network at once."""


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
    before, after, low, high = _pool_features(old, new, data)
    distances = nearest_mean_distances(before, finite(prototypes))  # [N, K]
    chosen = distances.topk(min(config.candidates, len(before)), dim=0, largest=False).indices.T  # [K, m]
    pixels = next(data.batches("test", batch_size=1)).images.numel()
    at_once = max(1, PIXELS // (pixels * chosen.shape[1]))  # classes whose candidates fit into memory together
    landed, moved = [], []
    for group, targets in zip(chosen.split(at_once), prototypes.split(at_once), strict=True):
        wanted, where = group.unique(return_inverse=True)
        images = _pool_images(data, wanted)[where]  # [k, m, C, H, W]
        images = attack(config, old, images, targets, (low, high))
        landed.append(_embed(old, images))
        moved.append(_embed(new, images))
    return torch.cat(landed), torch.cat(moved), (after - before)[chosen].double().mean(dim=1)


def attack(config: ADCConfig, old: nn.Module, images: Tensor, targets: Tensor, limits: tuple[Tensor, Tensor]) -> Tensor:
    """Walk images [k, m, C, H, W] towards where the old network embeds at targets [k, D], with pixels in `limits`.

    Each step goes `step_size` along the gradient of the mean squared distance, divided by its norm over a class's m
    images together ("batch", the release) or over each image ("sample", Algorithm 1).
    """
    together = config.grad_norm == "batch"
    over = (1, 2, 3, 4) if together else (2, 3, 4)
    share = images.shape[1] / config.candidates if together else 1.0
    size = config.step_size * share**0.5
    for _ in range(config.steps):
        gradient = _distance_gradient(old, images, targets)
        norm = gradient.square().sum(dim=over, keepdim=True).sqrt().clamp_min(1e-12)
        images = (images - size * gradient / norm).clamp(*limits)
    return images


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


def successes(prototypes: Tensor, landed: Tensor) -> Tensor:
    """Which perturbed images, at [K, m, D] in the old network, are nearest to their own prototype, bool [K, m]."""
    nearest = nearest_mean_distances(landed.flatten(0, 1), prototypes).argmin(dim=1)
    return nearest.view(landed.shape[:2]) == torch.arange(len(prototypes), device=prototypes.device)[:, None]


def _mean_drift(drift: Tensor, success: Tensor, fallback: Tensor) -> Tensor:
    """Mean of drift [K, m, D] over the successes [K, m], or the fallback [K, D] where there are none."""
    counts = success.sum(dim=1, keepdim=True)  # [K, 1]
    total = (drift.double() * success[..., None]).sum(dim=1)
    return torch.where(counts > 0, total / counts.clamp_min(1), fallback.double())


def _pool(data: TaskData) -> Iterator[Batch]:
    """The task's images under one fixed draw of the training augmentation: every call gives the same pixels."""
    return data.batches("train", purpose="adc pool")


@torch.no_grad()
def _pool_features(old: nn.Module, new: nn.Module, data: TaskData) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features [N, D] of the pool in both networks, smallest and largest pixel value."""
    before, after, lows, highs = [], [], [], []
    for batch in _pool(data):
        before.append(old(batch.images))
        after.append(new(batch.images))
        low, high = batch.images.aminmax()
        lows.append(low)
        highs.append(high)
    return torch.cat(before), torch.cat(after), torch.stack(lows).amin(), torch.stack(highs).amax()


def _pool_images(data: TaskData, wanted: Tensor) -> Tensor:
    """The pool's images at ascending indices."""
    found, start = [], 0
    for batch in _pool(data):
        stop = start + len(batch.images)
        inside = wanted[(wanted >= start) & (wanted < stop)]
        found.append(batch.images[inside - start])
        start = stop
    return torch.cat(found)


@torch.no_grad()
def _embed(net: nn.Module, images: Tensor) -> Tensor:
    """[k, m, C, H, W] → [k, m, D]."""
    features = torch.cat([net(_packed(part)) for part in images.flatten(0, 1).split(NETWORK_BATCH)])
    return features.unflatten(0, images.shape[:2])


def _distance_gradient(net: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """Gradient by images [k, m, C, H, W] of Σ_k (1/mD)·Σ_j ‖net(x_kj) − target_k‖², in full precision."""
    flat = images.flatten(0, 1).detach()
    aims = targets.repeat_interleave(images.shape[1], dim=0)
    parts = []
    with torch.enable_grad(), torch.autocast(images.device.type, enabled=False):
        for part, aim in zip(flat.split(NETWORK_BATCH), aims.split(NETWORK_BATCH), strict=True):
            pixels = _packed(part).requires_grad_()
            loss = (net(pixels) - aim).square().sum() / (images.shape[1] * targets.shape[1])
            parts.append(torch.autograd.grad(loss, pixels)[0])
    return torch.cat(parts).unflatten(0, images.shape[:2])


def _packed(images: Tensor) -> Tensor:
    """A copy in the memory layout the backbone is fastest with."""
    return images.clone(memory_format=torch.channels_last)


class ADC(DriftCompensated[ADCConfig]):
    """Nearest class mean; current images are perturbed until the old network assigns them to an old class, and its
    prototype moves by their drift (Goswami et al., CVPR 2024, Algorithm 1)."""

    name = "adc"
    Config = ADCConfig

    def moved(self, prototypes: Tensor, old: nn.Module, new: nn.Module, data: TaskData) -> tuple[Tensor, Report]:
        at, to, unmoved = resurrect(self.config, prototypes, old, new, data)
        return resolve(self.config, prototypes, at, to - at, unmoved)
