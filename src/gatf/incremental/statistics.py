"""Statistics of an update: normalisation, merged Gaussians of revisited classes, the expected accuracy."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gatf.data.base import ImageSet
from gatf.geometry.gaussians import Gaussians, white_noise
from gatf.geometry.moments import Moments
from gatf.geometry.spd import cholesky
from gatf.seeding import generator

DRAWS_PER_CLASS = 200
"""Points drawn from each stored Gaussian to forecast the accuracy of its class, at most."""
POINTS = 2000
"""Points drawn from all of them: a standard error of at most 1.1 percent, and 0.7 at an accuracy of 90 %."""
SCORED_AT_ONCE = 500
"""Points per batch, which bounds the memory of their scores."""
LOSS_TO_REPORT = 15.0
"""Points of forecast accuracy that an old class must lose in an update to be named in a warning."""
SPREADS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Factors on the distance of points from their class means: images lie farther out than their Gaussians predict."""


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


@dataclass(frozen=True)
class Forecast:
    """Percent of points that are classified correctly, and its standard error."""

    percent: float
    error: float


class Draws:
    """Points drawn from the stored Gaussians of some classes, and how a readout classifies them.

    All classes have the same weight. Many classes share `POINTS`, and of more classes than that a sample is drawn, so
    the time grows no faster than the time to score one point.
    """

    def __init__(self, stored: Gaussians, scores: Callable[[Tensor], Tensor], classes: range, *, seed: int) -> None:
        draws = generator(seed, "expected accuracy", classes.start)
        self._scores = scores
        self.classes = torch.arange(classes.start, classes.stop)
        if len(self.classes) > POINTS:
            self.classes = self.classes[torch.randperm(len(self.classes), generator=draws)[:POINTS].sort().values]
        each = max(1, min(DRAWS_PER_CLASS, POINTS // len(self.classes)))
        stored = stored[self.classes.to(stored.means.device)] if len(self.classes) < len(stored) else stored
        lowers = cholesky(stored.covs if stored.common is None else stored.common[None]).lower  # [k or 1, S, S]
        noise = white_noise(len(self.classes) * each, stored.means.shape[1], generator=draws, matched=False)
        self._deviations = noise.to(lowers).unflatten(0, (len(self.classes), each)) @ lowers.mT  # [k, each, S]
        self._means = stored.means[:, None]

    @torch.no_grad()
    def predicted(self, spread: float = 1.0) -> Tensor:
        """Predicted classes of the points, [k, each]. `spread` scales the points' distances from their means."""
        points = (self._means + spread * self._deviations).flatten(0, 1)
        found = torch.cat([self._scores(some).argmax(1) for some in points.split(SCORED_AT_ONCE)])
        return found.cpu().unflatten(0, (len(self.classes), self._deviations.shape[1]))

    def accuracy(self, spread: float = 1.0) -> Forecast:
        """Percent of points that are classified correctly: the accuracy on images if features were Gaussian and the
        transport without error."""
        chosen, each = self.classes, self._deviations.shape[1]
        right = (self.predicted(spread) == chosen[:, None]).double().mean(1)  # [k]
        mean = right.mean()
        within = (
            right * (1 - right) / (each - 1) if each > 1 else mean * (1 - mean)
        )  # which includes the variance between classes
        error = (within.mean() / len(chosen)).sqrt()
        return Forecast(100 * float(mean), 100 * float(error))


def accuracy_by_class(predicted: Tensor, labels: Tensor) -> tuple[float, float]:
    """Mean of the class accuracies of images [N] in percent, and the effective number of images: with this number,
    equally distributed over classes, the mean would have the same standard error."""
    _, places, counts = labels.unique(return_inverse=True, return_counts=True)
    right = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, places, (predicted == labels).double())
    return 100 * float((right / counts).mean()), len(counts) ** 2 / float((1 / counts.double()).sum())


Seen = tuple[float, float | None, tuple[float, ...] | None]
"""Of an update: held-out images, their accuracy in percent (mean over classes), and the accuracy of `Draws` of their
classes at each of `SPREADS`; None where it was not measured."""


def fitted_spreads(updates: Iterable[Seen]) -> tuple[float, float, float] | None:
    """The spread at which points drawn from Gaussians are classified as badly as the held-out images of all updates:
    (best, least, most likely ones at two units of log-likelihood); None where no update held images out."""
    measured = [
        (count, correct / 100, forecast)
        for count, correct, forecast in updates
        if correct is not None and forecast and count
    ]
    if not measured:
        return None
    logs = torch.linspace(0, len(SPREADS) - 1, 121, dtype=torch.float64)
    likelihood = torch.zeros_like(logs)
    for number, (count, correct, forecast) in enumerate(measured, 1):
        curve = torch.tensor(forecast, dtype=torch.float64) / 100
        below = logs.floor().long().clamp_max(len(SPREADS) - 2)
        chance = torch.lerp(curve[below], curve[below + 1], logs - below).clamp(1e-3, 1 - 1e-3)
        doubt = float(number == len(measured))  # one image more of each kind, so that few and all correct prove little
        likelihood += (count * correct + doubt) * chance.log() + (count * (1 - correct) + doubt) * (1 - chance).log()
    likely = torch.nonzero(likelihood >= likelihood.max() - 2)[:, 0]
    best, least, most = (
        SPREADS[0] * (SPREADS[-1] / SPREADS[0]) ** (float(logs[place]) / (len(SPREADS) - 1))
        for place in (likelihood.argmax(), likely[0], likely[-1])
    )
    return best, least, most


def lost_classes(before: Draws, after: Draws, spread: float) -> list[tuple[int, float, float, int]]:
    """Classes whose forecast accuracy falls by at least `LOSS_TO_REPORT` points: (class, percent before, percent after,
    the class that most of the lost points are predicted as), the largest loss first. Both draw the same old classes."""
    classes = after.classes[:, None]
    earlier, later = (each.predicted(spread) for each in (before, after))
    percents = [100 * (found == classes).double().mean(1) for found in (earlier, later)]  # [k] each
    losses = percents[0] - percents[1]
    found = []
    for place in torch.nonzero(losses >= LOSS_TO_REPORT).squeeze(1).tolist():
        wrong = later[place][later[place] != classes[place]]
        found.append((int(classes[place]), float(percents[0][place]), float(percents[1][place]), int(wrong.mode()[0])))
    return sorted(found, key=lambda each: each[2] - each[1])


def forecast_old(
    drawn: Callable[[float], Forecast], updates: Iterable[Seen], kept: float
) -> tuple[float, float, float] | None:
    """Forecast of the accuracy on older classes in percent, with a range: (about, low, high); None where no update held
    images out.

    Features are not Gaussian: in many dimensions all points drawn from Gaussians are classified correctly, and images
    are not. But there is a spread at which an update's points are classified as badly as its held-out images, and this
    spread hardly changes from update to update, whatever the number of classes. It is fitted to all updates
    (`fitted_spreads`), and `drawn` gives the accuracy of older classes with it. Transport loses more: of transported
    added classes a share `kept` stays correct. The old network was not trained on these classes, so older ones should
    lose less; the forecast takes half of the loss. The range includes the whole loss, two units of log-likelihood and
    two standard errors of the points.
    """
    spreads = fitted_spreads(updates)
    if spreads is None:
        return None
    best, least, most = spreads
    about, low, high = (drawn(spread) for spread in (best, most, least))
    return (
        about.percent * (1 + kept) / 2,
        max(0.0, low.percent - 2 * low.error) * kept,
        min(100.0, high.percent + 2 * high.error),
    )
