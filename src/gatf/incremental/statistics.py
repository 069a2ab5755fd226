"""Statistics of an update: normalisation, merged Gaussians of revisited classes, the accuracy of classes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gatf.data.base import ImageSet
from gatf.geometry.gaussians import Gaussians, white_noise
from gatf.geometry.moments import Moments
from gatf.geometry.spd import cholesky
from gatf.model.calibration import calibration_sums
from gatf.model.record import FEWEST_TO_REPORT
from gatf.seeding import generator

TAKEN_FOR_ANOTHER = 40.0
"""Percent of a class's images that are classified as one other class, above which a warning names both."""
POINTS = 4000
"""Samples of all stored Gaussians together that show how often old classes are taken for new ones."""
SPREADS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Factors on the distance of these samples from their class means: images scatter more than Gaussians."""


def normalisation(images: ImageSet, most: int = 2000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of pixels in [0, 1], over at most `most` images."""
    chosen = torch.linspace(0, len(images) - 1, min(len(images), most)).long()
    total = Moments.zeros(1, (images.image_shape[0],))
    for pixels in images.stream(chosen.split(256)):
        total = total.merge(Moments.of(pixels.transpose(0, 1).flatten(1)[:, :, None].double() / 255))
    std = total.covariance(unbiased=False)[:, 0, 0].sqrt().clamp_min(1e-3)
    return tuple(total.mean[:, 0].tolist()), tuple(std.tolist())


def merge(transported: Gaussians, transported_images: Tensor, new: Gaussians, new_images: Tensor) -> Gaussians:
    """Gaussians of revisited classes: the moments of old and new images together, [k, S]. Each image counts twice,
    because its mirror image is stored with it."""

    def moments(gaussians: Gaussians, images: Tensor) -> Moments:
        count = 2.0 * images.to(gaussians.means)
        return Moments(count, gaussians.means, gaussians.covs * (count - 1).clamp_min(0)[:, None, None])

    both = moments(transported, transported_images).merge(moments(new, new_images))
    return Gaussians(both.mean, both.covariance())


def accuracy_by_class(predicted: Tensor, labels: Tensor) -> tuple[float, float]:
    """Mean of the class accuracies of images [N] in percent, and the effective number of images: with this number,
    equally distributed over classes, the mean would have the same standard error."""
    _, places, counts = labels.unique(return_inverse=True, return_counts=True)
    right = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, places, (predicted == labels).double())
    return 100 * float((right / counts).mean()), len(counts) ** 2 / float((1 / counts.double()).sum())


Measured = Tensor
"""Accuracy of every class, float64 [C, 3]: the share of its own images that was classified correctly when they were
learnt, times the declines since then; how many images that were; the variance of the logarithm of those declines."""


@dataclass(frozen=True)
class Forecast:
    """Accuracy in percent, its standard error, and the number of images behind it."""

    percent: float
    error: float
    images: int

    @property
    def range(self) -> tuple[float, float]:
        """Two standard errors to both sides."""
        return max(0.0, self.percent - 2 * self.error), min(100.0, self.percent + 2 * self.error)


def accuracy_of(measured: Measured) -> Forecast | None:
    """The mean accuracy of classes. None where fewer than `FEWEST_TO_REPORT` images or half of the classes were
    measured."""
    known = measured[measured[:, 1] > 0]
    shares, images, declines = known.unbind(1)
    if len(known) < max(1, len(measured) / 2) or images.sum() < FEWEST_TO_REPORT:
        return None
    likely = (shares * images + 1) / (images + 2)  # few correct predictions do not prove a class
    own = (likely * (1 - likely) / images).mean() / len(known)
    common = (shares * declines.sqrt()).mean().square()
    return Forecast(100 * float(shares.mean()), 100 * float((own + common).sqrt()), int(images.sum()))


def decline(scores: Tensor, numbers: Tensor, old: int) -> tuple[float, float]:
    """The factor by which this update's classes lower the accuracy of the `old` ones, and the variance of its
    logarithm; from scores [N, C] of images of new classes, which were not learnt or left out, and class numbers [N].

    Images of old classes are deleted. But two classes are confused as often one way as the other, so the harm that k
    new classes do to old ones is the harm that k old classes do to new ones: the accuracy of new images among all
    classes, over that without k random old ones. An image that b old classes beat, and no new one, is correct without
    them if they are among the k; the hypergeometric distribution gives the probability.
    """
    new = scores.shape[1] - old
    removed = min(new, old)
    numbers = numbers.to(scores.device)
    beaten = scores > scores.gather(1, numbers[:, None])  # [N, C]
    by_old, by_new = beaten[:, :old].sum(1), beaten[:, old:].sum(1)
    chance = torch.ones(old + 1, dtype=torch.float64)  # [b]
    steps = torch.arange(old, dtype=torch.float64)
    chance[1:] = ((removed - steps).clamp_min(0) / (old - steps)).cumprod(0)
    before = torch.where(by_new == 0, chance[by_old.cpu()].to(scores.device), 0.0).double()
    _, places, counts = numbers.unique(return_inverse=True, return_counts=True)
    weights = 1 / counts[places].double()
    weights = weights / (weights @ before).clamp_min(1e-9)
    lost = before - ((by_old + by_new) == 0).double()
    ratio = min(max(1 - float(weights @ lost), 0.05), 1.0)
    mean = (weights * lost).sum() / weights.sum()
    variance = float((weights.square() * (lost - mean).square()).sum()) + (1 / (len(lost) + 1)) ** 2 * removed / old
    power = new / removed
    return ratio**power, variance / ratio**2 * power**2


class OldSamples:
    """Samples of the stored Gaussians in place of the deleted images of `old` classes.

    A network that was trained on the new classes recognises old and new ones differently well, so they are not confused
    as often one way as the other, and not predicted with the same confidence. Images scatter more than Gaussians: the
    samples are spread until those of new classes are classified as accurately as the images of new classes, by scores
    [N, C] and class numbers [N].
    """

    def __init__(
        self,
        stored: Gaussians,
        rule: Callable[[Tensor], Tensor],
        scores: Tensor,
        numbers: Tensor,
        old: int,
        *,
        seed: int,
    ) -> None:
        classes, dim = stored.means.shape
        each = max(1, POINTS // classes)
        noise = white_noise(each, dim, generator=generator(seed, "old classes"), matched=False)
        self._deviations = noise.to(stored.covs) @ cholesky(stored.covs).lower.mT  # [C, each, S]
        self._means, self._rule, self._old = stored.means[:, None], rule, old
        self._truth = torch.arange(classes, device=stored.means.device).repeat_interleave(each)
        first = self._truth < old
        curve = [(1.0, 1.0)]  # accuracy of new samples; factor by which new classes lower the accuracy of old ones
        for spread in SPREADS:
            found = self._scores(spread)
            right, among_old = found.argmax(1) == self._truth, found[first, :old].argmax(1) == self._truth[first]
            factor = float(right[first].double().mean() / among_old.double().mean().clamp_min(1e-9))
            curve.append((min(float(right[~first].double().mean()), curve[-1][0]), min(factor, curve[-1][1])))
        self._across, self._factors = np.array(curve[::-1]).T
        percent, images = accuracy_by_class(scores.argmax(1), numbers)
        self._accuracy, likely = percent / 100, (percent / 100 * images + 1) / (images + 2)
        self._error = (likely * (1 - likely) / images) ** 0.5

    @torch.no_grad()
    def _scores(self, spread: float) -> Tensor:
        return self._rule((self._means + spread * self._deviations).flatten(0, 1))

    def decline(self, *_: object) -> tuple[float, float]:
        """What the function `decline` returns."""
        near = [self._accuracy - self._error, self._accuracy, self._accuracy + self._error]
        low, ratio, high = np.interp(near, self._across, self._factors).clip(0.05).tolist()
        return ratio, ((high - low) / 2 / ratio) ** 2

    def calibration(self, images: int) -> Tensor:
        """`calibration_sums` of old classes, with the weight of this number of images."""
        spreads = np.log([*SPREADS[::-1], SPREADS[0]])  # the last one for an accuracy of 100 %
        spread = float(np.exp(np.interp(self._accuracy, self._across, spreads)))
        first = self._truth < self._old
        sums = calibration_sums(self._scores(spread)[first].cpu(), self._truth[first].cpu())
        return sums * (images / float(sums[0]))


Declines = Callable[[Tensor, Tensor, int], tuple[float, float]]


def measured_after(before: Measured, scores: Tensor, numbers: Tensor, declines: Declines = decline) -> Measured:
    """`Measured` of all classes after an update, from scores [N, C] of its images that were not learnt or left out, and
    their class numbers [N]."""
    old, classes = len(before), scores.shape[1]
    after = torch.zeros(classes, 3, dtype=torch.float64)
    after[:old] = before
    fresh = numbers >= old
    if old and bool(fresh.any()) and classes > old:
        ratio, variance = declines(scores[fresh], numbers[fresh], old)
        after[:old, 0] *= ratio
        after[:old, 2] += variance
    right = (scores.argmax(1) == numbers).double()
    images = torch.zeros(classes, dtype=torch.float64).index_add_(0, numbers, torch.ones_like(right))
    correct = torch.zeros(classes, dtype=torch.float64).index_add_(0, numbers, right)
    total = after[:, 1] + images
    after[:, 0] = torch.where(images > 0, (after[:, 0] * after[:, 1] + correct) / total.clamp_min(1), after[:, 0])
    after[:, 2] = torch.where(images > 0, after[:, 2] * after[:, 1] / total.clamp_min(1), after[:, 2])
    after[:, 1] = total
    return after


def taken_for(found: Tensor, numbers: Tensor, of: range | list[int]) -> list[tuple[int, int, float, int]]:
    """Classes whose images [N] are mostly found to be of one other class: (class, that class, percent, images).

    From `FEWEST_TO_REPORT` images of a class on."""
    rows = []
    for number in of:
        own = found[numbers == number]
        wrong = own[own != number]
        if len(own) >= FEWEST_TO_REPORT and len(wrong):
            other = int(wrong.mode()[0])
            percent = 100 * float((own == other).double().mean())
            if percent > TAKEN_FOR_ANOTHER:
                rows.append((number, other, percent, len(own)))
    return rows
