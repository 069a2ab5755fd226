"""How fast classifiers of embeddings learn, and how time and memory grow with the vectors and their dimension.

    python benchmarks/vectors.py [--quick] [--out benchmarks/results/vectors.json]

Processor seconds with one thread. The vectors are made on the fly, which is not counted, and never lie in memory
together. `learn` is what `gatf learn` does with a file, without reading it. It is compared with scikit-learn's
classifiers on the same vectors, and with the rate at which the machine can read vectors from memory at all.
"""

import time
from collections.abc import Iterator

import numpy as np
import torch
from harness import Report, measured, options
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import SGDClassifier

from gatf import EmbeddingClassifier
from gatf.data.vectors import VectorBatch, VectorInput
from gatf.training.context import RunContext

CLASSES, DIM = 1000, 256
COUNTS, DIMS = (100_000, 1_000_000, 10_000_000), (64, 768, 1536)
COMPARED, COMPARED_CLASSES, TEST = 200_000, 100, 20_000
NOISE = 4.0
"""Spread around class means of variance 1: the classes overlap."""
POOL, ROWS = 2**16, 2**13


class Generated(VectorInput):
    """Vectors of random classes: a pool of noise, with another sign per column in every pass, around class means."""

    def __init__(self, count: int, dim: int, classes: int, *, first: int = 0) -> None:
        super().__init__(np.zeros((1, dim), np.float32))
        self.count, self.classes, self.first, self.seconds = count, classes, first, 0.0
        draws = np.random.default_rng(0)
        self.means = draws.standard_normal((classes, dim), dtype=np.float32)
        self.noise = np.float32(NOISE) * draws.standard_normal((min(POOL, count), dim), dtype=np.float32)

    def batches(self, rows: int = ROWS) -> Iterator[VectorBatch]:
        for place in range(0, self.count, ROWS):
            started = time.process_time()
            draws = np.random.default_rng((self.first, place))
            chosen = np.arange(place, min(place + ROWS, self.count)) % len(self.noise)
            labels = draws.integers(self.classes, size=len(chosen))
            signs = draws.choice(np.array([-1, 1], np.float32), self.noise.shape[1])
            vectors = torch.from_numpy(self.means[labels] + signs * self.noise[chosen])
            self.seconds += time.process_time() - started
            yield VectorBatch(vectors, labels)

    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        parts = list(self.batches())
        return np.concatenate([each.vectors.numpy() for each in parts]), np.concatenate([each.labels for each in parts])


def learn(given: Generated) -> float:
    """Processor seconds to learn these vectors."""
    given.seconds, started = 0.0, time.process_time()
    EmbeddingClassifier(normalize=False).updated(None, given, RunContext())
    return time.process_time() - started - given.seconds


def bandwidth() -> float:
    """Bytes per second that a sum of an array far larger than the caches reads."""
    array = np.ones(2**26, np.float32)
    started = time.process_time()
    for _ in range(5):
        array.sum()
    return 5 * array.nbytes / (time.process_time() - started)


def main() -> None:
    arguments = options("vectors", __doc__, threads=1)
    quick = arguments.quick
    rate = bandwidth()
    report = Report(arguments, {"classes": CLASSES, "bytes_per_second": rate, "clock": "processor time"})
    for count in COUNTS[: 1 if quick else None]:
        grown(report, count, DIM)
    for dim in DIMS[: 2 if quick else None]:
        grown(report, COUNTS[0], dim)
    compared(report, COMPARED // (10 if quick else 1))
    report.write("scikit-learn")


def grown(report: Report, count: int, dim: int) -> None:
    given = Generated(count, dim, CLASSES)
    found: list[float] = []
    peak = measured(lambda: found.append(learn(given)), time.process_time)[1]
    limit = report.about["bytes_per_second"] / (4 * dim)
    report.add(
        f"learn {count} vectors of {dim} numbers", ours=count / found[0], reference=limit,
        ratio=count / found[0] / limit, unit="vectors/s", count=count, dim=dim, seconds=found[0], peak_bytes=peak,
    )  # fmt: skip


def compared(report: Report, count: int) -> None:
    """The same vectors for scikit-learn; accuracy on others."""
    given = Generated(count, DIM, COMPARED_CLASSES)
    test, truth = Generated(TEST, DIM, COMPARED_CLASSES, first=1).whole()
    x, y = given.whole()
    stream = SGDClassifier(loss="log_loss", random_state=0)

    def one_pass() -> SGDClassifier:
        for place in range(0, count, ROWS):
            stream.partial_fit(x[place : place + ROWS], y[place : place + ROWS], classes=np.arange(COMPARED_CLASSES))
        return stream

    fits = {
        "ours": lambda: EmbeddingClassifier(normalize=False).fit(x, y),
        "LinearDiscriminantAnalysis": lambda: LinearDiscriminantAnalysis().fit(x, y),
        "LinearDiscriminantAnalysis, shrinkage": lambda: LinearDiscriminantAnalysis("lsqr", shrinkage="auto").fit(x, y),
        "SGDClassifier.partial_fit": one_pass,
    }
    times, accuracies = {}, {}
    for name, fit in fits.items():
        started = time.process_time()
        fitted = fit()
        times[name] = time.process_time() - started
        accuracies[name] = 100 * float(np.mean(fitted.predict(test) == truth))
    for name in list(fits)[1:]:
        report.add(
            f"learn {count} vectors, against {name}", ours=count / times["ours"], reference=count / times[name],
            ratio=times[name] / times["ours"], unit="vectors/s", count=count, classifier=name,
            accuracy=accuracies["ours"], accuracy_reference=accuracies[name],
        )  # fmt: skip


if __name__ == "__main__":
    main()
