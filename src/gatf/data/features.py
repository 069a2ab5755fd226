"""Features of a scenario's images from a backbone that no task trains: computed once, without augmentation, and cached
for all methods."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gatf import __version__
from gatf.data import cache
from gatf.data.augment import Pipeline
from gatf.data.base import ImageSet
from gatf.data.loader import views
from gatf.data.scenario import Scenario
from gatf.devices import numerics


@dataclass(frozen=True)
class SourceFeatures:
    """Features of a scenario's images, by their number in the source; zeros for classes outside the scenario."""

    train: Tensor
    """[N, S]."""
    test: Tensor


def cached_features(
    scenario: Scenario, net: Callable[[Tensor], Tensor], identity: str, pipeline: Pipeline, device: torch.device
) -> SourceFeatures:
    """The features, from the cache or computed. `identity` comes from `network_identity`."""

    def of(images: ImageSet) -> Tensor:
        members, _ = scenario.members(images, 0, len(scenario) - 1)
        if len(members) == len(images):
            return _of(images, net, identity, pipeline, device)
        features = _of(images.take(members), net, identity, pipeline, device)
        return features.new_zeros(len(images), features.shape[1]).index_copy_(0, members, features)

    return SourceFeatures(*map(of, scenario.parts))


@torch.no_grad()
def _of(
    images: ImageSet, net: Callable[[Tensor], Tensor], identity: str, pipeline: Pipeline, device: torch.device
) -> Tensor:
    def make() -> dict[str, Tensor]:
        batches = views(images, torch.arange(len(images)), pipeline, device)
        return {"features": torch.cat([net(batch).float().cpu() for batch in batches])}

    seen = (str(pipeline.mean), str(pipeline.std), str(pipeline.test_crop), str(images.image_shape))
    key = cache.digest(__version__, identity, images.identity(), *seen, numerics(device))
    return cache.cached_tensors("features", key, make)["features"]


def network_identity(architecture: str, weights: Mapping[str, Tensor]) -> str:
    """A digest of a network's architecture, as text, and of every weight."""
    total = hashlib.blake2b(architecture.encode(), digest_size=16)
    for name, weight in weights.items():
        total.update(f"{name} {weight.dtype} {list(weight.shape)}".encode())
        total.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
