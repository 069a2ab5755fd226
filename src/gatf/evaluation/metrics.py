"""Task-agnostic metrics. a[t][k] is the accuracy on the test images of task k after learning task t, predicting over
all seen classes; accuracies are in percent."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Evaluation:
    """Results after task t on the test images of all seen classes."""

    by_task: list[float]
    """a[t][0..t]."""
    seen: float
    """acc_t: accuracy over all these images (image-weighted)."""
    task_aware: list[float]
    """As `by_task`, with the task of each image known."""
    by_class: list[float]
    old_to_new: float | None
    """Share of old-class images predicted as a class of the newest task; None at task 0."""
    predictions: Tensor
    """int64 [pairs, 3]: true class, predicted class and number of images, for the pairs that occur."""


def choose(scores: Tensor, labels: Tensor, task_of_class: Tensor) -> Tensor:
    """The best of all classes, and of the image's own task, [N, 2], from scores [N, seen classes] and labels [N]."""
    other_task = task_of_class[None, :] != task_of_class[labels][:, None]  # [N, classes]
    aware = scores.masked_fill(other_task, -torch.inf)
    return torch.stack([scores.argmax(dim=1), aware.argmax(dim=1)], dim=1)


def evaluate(chosen: Tensor, labels: Tensor, task_of_class: Tensor, tasks: Tensor | None = None) -> Evaluation:
    """From the choices of `choose` [N, 2] and labels [N]; task_of_class [seen classes] must be sorted. `tasks` [N] is
    the task of each image where its class does not determine it."""
    predicted, aware = chosen.T
    tasks = task_of_class[labels] if tasks is None else tasks
    newest = int(tasks.max())
    right = (predicted == labels).double()
    old = tasks < newest
    confused = (task_of_class[predicted[old]] == newest).double()
    return Evaluation(
        by_task=_group_means(right, tasks, newest + 1),
        seen=100 * float(right.mean()),
        task_aware=_group_means((aware == labels).double(), tasks, newest + 1),
        by_class=_group_means(right, labels, len(task_of_class)),
        old_to_new=100 * float(confused.mean()) if newest > 0 and bool((task_of_class == newest).any()) else None,
        predictions=_pairs(labels, predicted),
    )


def _pairs(labels: Tensor, predicted: Tensor) -> Tensor:
    """Counts of (true, predicted) pairs. Unlike a matrix they do not grow with the square of the classes."""
    pairs, counts = torch.stack([labels, predicted], dim=1).unique(dim=0, return_counts=True)
    return torch.cat([pairs, counts[:, None]], dim=1)


def _group_means(values: Tensor, groups: Tensor, count: int) -> list[float]:
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, groups, values)
    return (100 * sums / torch.bincount(groups, minlength=count)).tolist()


def task_weighted(matrix: list[list[float]]) -> list[float]:
    """Mean over k ≤ t of a[t][k], for every t: acc_t with equal weights for tasks of any size.

    FACIL, AdaGauss and GATF average like this. With tasks of equal size it equals the image-weighted acc_t.
    """
    return [sum(row) / len(row) for row in matrix]


def last_accuracy(accuracy_seen: list[float]) -> float:
    """A_last = acc_{T−1}."""
    return accuracy_seen[-1]


def incremental_accuracy(accuracy_seen: list[float]) -> float:
    """A_inc = mean of acc_0 .. acc_{T−1}."""
    return sum(accuracy_seen) / len(accuracy_seen)


def few_shot_balance(by_class: list[float], first: int) -> tuple[float, float, float]:
    """Mean accuracy of the first task's classes, of later classes, and the harmonic mean of both, which is low where
    either is: the usual metrics of few-shot class-incremental learning."""
    old, new = by_class[:first], by_class[first:]
    base, later = sum(old) / len(old), sum(new) / len(new)
    return base, later, 2 * base * later / (base + later) if base + later else 0.0


def forgetting(matrix: list[list[float]]) -> float | None:
    """Mean over k < T−1 of max_{t<T−1} a[t][k] − a[T−1][k]; positive is worse, None with a single task."""
    last = len(matrix) - 1
    if last < 1:
        return None
    drops = [max(matrix[t][k] for t in range(k, last)) - matrix[last][k] for k in range(last)]
    return sum(drops) / last
