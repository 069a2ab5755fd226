"""Images of the current task, perturbed until the old network embeds them near old classes (ADC, APR)."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gatf.geometry.readout import nearest_mean_distances
from gatf.methods.base import Batch, TaskData

PIXELS = 2**27
"""Pixel values of candidate images held at once (512 MB); the rest is made again from its augmentation key."""
NETWORK_BATCH = 128
"""Candidate images sent through a network at once."""

Limits = tuple[Tensor, Tensor]
"""Smallest and largest pixel value."""


def pool(data: TaskData, purpose: str) -> Iterator[Batch]:
    """The task's images under one fixed draw of the training augmentation: every call gives the same pixels."""
    return data.batches("train", purpose=purpose)


@torch.no_grad()
def pool_features(data: TaskData, purpose: str, *nets: nn.Module) -> tuple[list[Tensor], Limits]:
    """Features [N, D] of the pool in each network, and the limits of its pixels."""
    rows, lows, highs = [], [], []
    for batch in pool(data, purpose):
        rows.append([net(batch.images) for net in nets])
        low, high = batch.images.aminmax()
        lows.append(low)
        highs.append(high)
    limits = torch.stack(lows).amin(), torch.stack(highs).amax()
    return [torch.cat(parts) for parts in zip(*rows, strict=True)], limits


def nearest_images(features: Tensor, prototypes: Tensor, count: int) -> Tensor:
    """Numbers [K, m] of the images, at [N, D], that are nearest to each prototype [K, D], nearest first."""
    distances = nearest_mean_distances(features, prototypes)  # [N, K]
    return distances.topk(min(count, len(features)), dim=0, largest=False).indices.T


def pool_images(data: TaskData, purpose: str, wanted: Tensor) -> Tensor:
    """The pool's images at ascending indices."""
    found, start = [], 0
    for batch in pool(data, purpose):
        stop = start + len(batch.images)
        inside = wanted[(wanted >= start) & (wanted < stop)]
        found.append(batch.images[inside - start])
        start = stop
    return torch.cat(found)


def candidate_images(data: TaskData, purpose: str, chosen: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The pool's images at [K, m], of as many classes as fit into memory: which classes, and [k, m, C, H, W]."""
    pixels = next(data.batches("test", batch_size=1)).images.numel()
    classes = max(1, PIXELS // (pixels * chosen.shape[1]))
    for start in range(0, len(chosen), classes):
        group = slice(start, start + classes)
        wanted, where = chosen[group].unique(return_inverse=True)
        yield group, pool_images(data, purpose, wanted)[where]


def perturb(
    net: nn.Module, images: Tensor, targets: Tensor, *, steps: int, size: float, over: tuple[int, ...] = (1, 2, 3, 4),
    limits: Limits | None = None,
) -> Tensor:  # fmt: skip
    """Move images [k, m, C, H, W] towards where the network embeds at targets [k, D], or [k, m, D] for single images.

    Each step goes `size` along the gradient of the mean squared distance, divided by its norm over the dimensions
    `over`: all images of a class together, or (2, 3, 4) each image. Pixels stay within `limits`.
    """
    for _ in range(steps):
        gradient = _distance_gradient(net, images, targets)
        norm = gradient.square().sum(dim=over, keepdim=True).sqrt().clamp_min(1e-12)
        images = images - size * gradient / norm
        if limits is not None:
            images = images.clamp(*limits)
    return images


def successes(prototypes: Tensor, landed: Tensor) -> Tensor:
    """Which perturbed images, at [K, m, D] in the old network, are nearest to their own prototype, bool [K, m]."""
    nearest = nearest_mean_distances(landed.flatten(0, 1), prototypes).argmin(dim=1)
    return nearest.view(landed.shape[:2]) == torch.arange(len(prototypes), device=prototypes.device)[:, None]


@torch.no_grad()
def embed(net: nn.Module, images: Tensor) -> Tensor:
    """[k, m, C, H, W] → [k, m, D]."""
    features = torch.cat([net(_packed(part)) for part in images.flatten(0, 1).split(NETWORK_BATCH)])
    return features.unflatten(0, images.shape[:2])


def _distance_gradient(net: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """Gradient by images [k, m, C, H, W] of Σ_k (1/mD)·Σ_j ‖net(x_kj) − target_kj‖², in full precision."""
    flat = images.flatten(0, 1).detach()
    each = targets if targets.ndim == 3 else targets[:, None].expand(-1, images.shape[1], -1)
    parts = []
    with torch.enable_grad(), torch.autocast(images.device.type, enabled=False):
        for part, aim in zip(flat.split(NETWORK_BATCH), each.flatten(0, 1).split(NETWORK_BATCH), strict=True):
            pixels = _packed(part).requires_grad_()
            loss = (net(pixels) - aim).square().sum() / (images.shape[1] * targets.shape[-1])
            parts.append(torch.autograd.grad(loss, pixels)[0])
    return torch.cat(parts).unflatten(0, images.shape[:2])


def _packed(images: Tensor) -> Tensor:
    """A copy in the memory layout the backbone is fastest with."""
    return images.clone(memory_format=torch.channels_last)
