"""Bayes scoring: seconds and peak memory of `gatf.geometry.readout` against the usual broadcast, and 10 000 classes.

    python benchmarks/scoring.py [--quick] [--out benchmarks/results/scoring.json]

200 classes, S = 64. Two references: the broadcast that one finds in research code, in batches of 256, because 10 000
features in one piece would copy every inverse covariance for every feature (33 GB); and scikit-learn's quadratic
discriminant analysis, which is what one would pick instead. Then 1 000 features are scored against up to 10 000
classes. Times are of the processor, which a busy machine changes little.
"""

import math
import time

import torch
from harness import Call, Report, options, peak_memory, seconds, take_turns
from reference import mahalanobis
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from torch import Tensor

from gatf.geometry import Gaussians, QuadraticReadout, bayes_readout, cholesky, rda_readout
from gatf.geometry.moments import class_moments

DIM = 64
CLASSES, FEATURES = 200, 2_000
IMAGES = 130
"""Per class, that scikit-learn fits its covariances to."""
MANY_CLASSES, FEW_FEATURES = (1_250, 2_500, 5_000, 10_000), 1_000


def make_gaussians(classes: int) -> Gaussians:
    """Random means, and covariances of 2S samples each."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(classes, DIM, generator=generator)
    covs = torch.empty(classes, DIM, DIM, dtype=torch.float64)
    for cov in covs:  # one by one, so that memory holds the covariances and little else
        root = torch.randn(DIM, 2 * DIM, generator=generator, dtype=torch.float64)
        torch.matmul(root, root.mT / (2 * DIM), out=cov)
    return Gaussians(means, covs)


def make_features(count: int) -> Tensor:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(1))


def usual(classes: int, features: int) -> tuple[Call, Call]:
    """The reference's scoring: a small call and the whole."""
    gaussians, inputs = make_gaussians(classes), make_features(features)
    means, inverses = gaussians.means.float(), mahalanobis.invert(gaussians.covs)
    del gaussians
    return lambda: mahalanobis.score(inputs[:1], means, inverses), lambda: mahalanobis.score(inputs, means, inverses)


def ours(classes: int, features: int) -> tuple[Call, Call]:
    """Scoring with a readout that is there already."""
    readout, inputs = bayes_readout(make_gaussians(classes)), make_features(features)
    readout.scores(inputs[:1])
    return lambda: readout.scores(inputs[:1]), lambda: readout.scores(inputs)


def build_and_score(classes: int, features: int) -> tuple[Call, Call]:
    """All of it, with the Gaussians made in the call, too."""

    def call() -> tuple[Gaussians, QuadraticReadout, Tensor]:
        gaussians = make_gaussians(classes)
        readout = bayes_readout(gaussians)
        return gaussians, readout, readout.scores(make_features(features))

    return lambda: bayes_readout(make_gaussians(50)).scores(make_features(2)), call


def against_scikit_learn(report: Report, repeats: int) -> None:
    """Quadratic discriminant analysis of the same images, by which answers are the same; processor time."""
    draws = torch.Generator().manual_seed(2)
    gaussians, labels = make_gaussians(CLASSES), torch.arange(CLASSES).repeat_interleave(IMAGES)
    noise = torch.randn(len(labels), DIM, generator=draws)
    lowers = cholesky(gaussians.covs).lower.float()
    images = gaussians.means.float()[labels] + (lowers[labels] @ noise[:, :, None])[:, :, 0]
    theirs = QuadraticDiscriminantAnalysis().fit(images.numpy(), labels.numpy())
    moments = class_moments(images, labels, classes=CLASSES)
    readout = rda_readout(Gaussians(moments.mean, moments.covariance()), 0.0, 0.0)
    for count, calls in ((1_000, 1), (1, 20)):
        points = images[torch.randperm(len(images), generator=draws)[:count]]
        array = points.double().numpy()
        same = float((readout.scores(points).argmax(1).numpy() == theirs.predict(array)).mean())
        turns = take_turns(
            lambda array=array: theirs.predict(array), lambda points=points: readout.scores(points).argmax(1),
            repeats=5 * repeats, calls=calls, clock=time.process_time,
        )  # fmt: skip
        what = f"scoring {count} feature{'s' if count > 1 else ''}, {CLASSES} classes, against scikit-learn's QDA"
        report.add(what, **turns, target=2.5, same_answers=same)


def growth(sizes: tuple[int, ...], times: list[float]) -> float:
    """Exponent p of time ~ sizeᵖ, by least squares on logarithms."""
    x, y = ([math.log(each) for each in series] for series in (sizes, times))
    centre_x, centre_y = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - centre_x) * (b - centre_y) for a, b in zip(x, y, strict=True))
    return products / sum((a - centre_x) ** 2 for a in x)


def main() -> None:
    arguments = options("scoring", __doc__, threads=1)
    report = Report(arguments, {"reference_batch": mahalanobis.BATCH, "dim": DIM})
    repeats = 1 if arguments.quick else 2

    gaussians, features = make_gaussians(CLASSES), make_features(FEATURES)
    readout, means, inverses = bayes_readout(gaussians), gaussians.means.float(), mahalanobis.invert(gaussians.covs)
    some = features[:1000]
    difference = float((-readout.scores(some) - mahalanobis.score(some, means, inverses)).abs().max())
    turns = take_turns(
        lambda: mahalanobis.score(features, means, inverses),
        lambda: readout.scores(features),
        repeats=repeats,
        warm_up=False,
        clock=time.process_time,
    )
    size = f"{FEATURES} features, {CLASSES} classes"
    report.add(f"scoring {size}, against a broadcast", **turns, target=20, largest_difference=difference)
    against_scikit_learn(report, repeats)
    turns = take_turns(
        lambda: mahalanobis.invert(gaussians.covs),
        lambda: bayes_readout(gaussians),
        repeats=10 * repeats,
        clock=time.process_time,
    )
    report.add(f"building the readout of {CLASSES} classes", **turns, note="ours in float64, the reference in float32")

    used, needed = (peak_memory(setup, CLASSES, FEATURES) / 2**20 for setup in (ours, usual))
    report.add(f"peak memory of {size}", ours=used, reference=needed, ratio=needed / used, unit="MB", target=20)

    times = []
    for classes in MANY_CLASSES:
        _, call = ours(classes, FEW_FEATURES)
        call()
        times.append(min(seconds(call, time.process_time) for _ in range(repeats)))
    by_classes = dict(zip(MANY_CLASSES, times, strict=True))
    most = MANY_CLASSES[-1]
    size = f"{FEW_FEATURES} features, {most} classes"
    exponent = growth(MANY_CLASSES, times)
    report.add(f"scoring {size}", ours=times[-1], reference=None, ratio=None, seconds_by_classes=by_classes)
    report.add("exponent of that time in classes", ours=exponent, reference=None, ratio=None, unit="", at_most=1.1)
    used = peak_memory(build_and_score, most, FEW_FEATURES) / 2**20
    what = f"peak memory of {size}, readout built in it"
    report.add(what, ours=used, reference=None, ratio=None, unit="MB", at_most=2048)
    report.write()


if __name__ == "__main__":
    main()
