"""What refreshing the anchor costs: the part of a task's training time that it takes, at K=10 and γ=1.

    python benchmarks/refresh.py [--quick] [--out benchmarks/results/refresh.json]

A task after the first is trained for K epochs, as a run would train it; a refresh passes all its images (γ=1) through
teacher and student once, and solves. The paper's cost model (Xu & Krawczyk, ECCV 2026) says 6.7 %.
"""

import statistics
import time

from harness import Report, options
from training import BATCH, Ours

from gatf.data.loader import TaskData
from gatf.training.loop import Position, train_phase

K = 10
PAPER_MODEL = 6.7


def main() -> None:
    arguments = options("refresh", __doc__)
    count, repeats = (2 * BATCH, 1) if arguments.quick else (4 * BATCH, 2)
    epochs = {"optimisation.next.epochs": K, "method.refresh": K}
    ours = Ours(count, **epochs)
    shares = [100 * share(ours) for _ in range(repeats)]
    report = Report(arguments, {"batch": BATCH, "images": count, "epochs": K})
    report.add(
        f"anchor refresh, K={K}, γ=1, of a task's training time", ours=statistics.median(shares),
        reference=PAPER_MODEL, ratio=PAPER_MODEL / statistics.median(shares), unit="%", at_most=5.0, all=shares,
    )  # fmt: skip
    report.write()


def share(ours: Ours) -> float:
    """The refreshes' part of the time of K epochs."""
    refresh, spent = ours.phase.on_epoch_start, 0.0

    def timed(epoch: int, data: TaskData) -> None:
        nonlocal spent
        start = time.perf_counter()
        refresh(epoch, data)  # type: ignore[misc]
        spent += time.perf_counter() - start

    ours.phase.on_epoch_start = timed
    start = time.perf_counter()
    train_phase(
        ours.phase, ours.data, ours.fabric, listener=lambda event: None, position=Position(), save=lambda *a: None,
        restore=None, stop=lambda: False, save_every=None,
    )  # fmt: skip
    ours.phase.on_epoch_start = refresh
    return spent / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
