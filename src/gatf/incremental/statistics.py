"""Numbers an update needs: normalisation, Gaussians of classes that came back, the accuracy to expect."""

from collections.abc import Iterable

import torch
from torch import Tensor

from gatf.data.base import ImageSet
from gatf.geometry.gaussians import Gaussians, white_noise
from gatf.geometry.moments import Moments
from gatf.geometry.spd import cholesky
from gatf.methods.parts.gaussian import GaussianClassifier
from gatf.seeding import generator

DRAWS_PER_CLASS = 200
"""Points drawn from each stored Gaussian to foretell the accuracy of old classes."""


def normalisation(images: ImageSet, most: int = 2000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of pixels in [0, 1], over at most so many images."""
    chosen = torch.linspace(0, len(images) - 1, min(len(images), most)).long()
    total = Moments.zeros(1, (images.image_shape[0],))
    for pixels in images.stream(chosen.split(256)):
        total = total.merge(Moments.of(pixels.transpose(0, 1).flatten(1)[:, :, None].double() / 255))
    std = total.covariance(unbiased=False)[:, 0, 0].sqrt().clamp_min(1e-3)
    return tuple(total.mean[:, 0].tolist()), tuple(std.tolist())


def merge(carried: Gaussians, carried_images: Tensor, new: Gaussians, new_images: Tensor) -> Gaussians:
    """Gaussians of classes that came back: the moments of both lots of images together (each image counts twice, for
    its mirror image is stored with it), [k, S]."""

    def moments(gaussians: Gaussians, images: Tensor) -> Moments:
        count = 2.0 * images.to(gaussians.means)
        return Moments(count, gaussians.means, gaussians.covs * (count - 1).clamp_min(0)[:, None, None])

    both = moments(carried, carried_images).merge(moments(new, new_images))
    return Gaussians(both.mean, both.covariance())


@torch.no_grad()
def expected_accuracy(method: GaussianClassifier, seed: int) -> Tensor:
    """Percent of points drawn from each stored Gaussian that are answered with its class, [C]: what the accuracy on
    images would be if features were Gaussian and the transport without error."""
    stored = method.stored()
    draws = generator(seed, "expected accuracy")
    noise = white_noise(DRAWS_PER_CLASS, stored.means.shape[1], generator=draws, matched=False)
    lowers = cholesky(stored.covs if stored.common is None else stored.common[None]).lower  # [C or 1, S, S]
    deviations = (noise.to(lowers) @ lowers.mT).expand(len(stored), -1, -1)  # [C, N, S]
    right = [
        100 * (method.feature_scores(mean + deviation).argmax(1) == number).double().mean()
        for number, (mean, deviation) in enumerate(zip(stored.means, deviations, strict=True))
    ]
    return torch.stack(right).cpu()


Seen = tuple[int, float | None, float | None]
"""Of an update: images kept back, percent of them answered rightly, and what `expected_accuracy` says of their
classes; None where it was not measured."""


def forecast_old(drawn: float, updates: Iterable[Seen], kept: float) -> tuple[float, float, float]:
    """Percent of images of older classes that should be answered rightly, and a range: (about, low, high).

    `drawn` is what points drawn from their Gaussians say, which is too much: features are not Gaussian. By how much,
    the images kept back in all updates show, whose classes are measured both ways. Carrying loses some more. Of added
    classes that are carried, a share `kept` is left, but the old network was not made to tell them apart, so that older
    ones should lose less: they lose something between nothing and that, and the middle is the guess. The range is that
    and what chance allows, two standard errors of the images kept back (Wilson's interval).
    """
    seen = [(count, right, told) for count, right, told in updates if right is not None and told is not None]
    total = sum(count for count, _, _ in seen)
    if total == 0:
        return drawn * (1 + kept) / 2, 0.0, drawn
    right = sum(count * right for count, right, _ in seen) / total / 100
    told = max(sum(count * told for count, _, told in seen) / total / 100, 1e-9)
    middle, half = _wilson(right, total)
    about = drawn * min(1.0, right / told) * (1 + kept) / 2
    low = drawn * min(1.0, (middle - half) / told) * kept
    high = drawn * min(1.0, (middle + half) / told)
    return about, low, high


def _wilson(share: float, count: int, z: float = 2.0) -> tuple[float, float]:
    """Middle and half width of Wilson's interval for a share seen in so many cases."""
    scale = 1 + z * z / count
    half = z * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    return (share + z * z / (2 * count)) / scale, half / scale
