"""Task-agnostic metrics. a[t][k] is the accuracy on the test images of task k after learning task t, predicting over
all classes seen so far; all accuracies are in percent."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Evaluation:
    """How a learner does after task t on the test images of all classes seen so far."""

    by_task: list[float]
    """a[t][0..t]."""
    seen: float
    """acc_t: share of all these images that is right (image-weighted)."""
    task_aware: list[float]
    """As `by_task`, when told which task an image belongs to."""
    by_class: list[float]
    old_to_new: float | None
    """Share of old-class images taken for a class of the newest task; None at task 0."""
    answered: Tensor
    """int64 [pairs, 3]: class, answer and how many images, for the pairs that came up."""


def choose(scores: Tensor, labels: Tensor, task_of_class: Tensor) -> Tensor:
    """The best class of all, and the best of the image's own task, [N, 2]: scores [N, classes seen], labels [N]."""
    other_task = task_of_class[None, :] != task_of_class[labels][:, None]  # [N, classes]
    aware = scores.masked_fill(other_task, -torch.inf)
    return torch.stack([scores.argmax(dim=1), aware.argmax(dim=1)], dim=1)


def evaluate(chosen: Tensor, labels: Tensor, task_of_class: Tensor) -> Evaluation:
    """From what `choose` gave of all images [N, 2] and labels [N]; task_of_class [classes seen] must be sorted."""
    predicted, aware = chosen.T
    tasks = task_of_class[labels]  # [N]
    newest = int(task_of_class.max())
    right = (predicted == labels).double()
    old = tasks < newest
    confused = (task_of_class[predicted[old]] == newest).double()
    return Evaluation(
        by_task=_group_means(right, tasks, newest + 1),
        seen=100 * float(right.mean()),
        task_aware=_group_means((aware == labels).double(), tasks, newest + 1),
        by_class=_group_means(right, labels, len(task_of_class)),
        old_to_new=100 * float(confused.mean()) if newest > 0 else None,
        answered=_pairs(labels, predicted),
    )


def _pairs(labels: Tensor, predicted: Tensor) -> Tensor:
    """How often each class was answered as each: no more pairs than images, while a table would grow with the square of
    the classes."""
    pairs, counts = torch.stack([labels, predicted], dim=1).unique(dim=0, return_counts=True)
    return torch.cat([pairs, counts[:, None]], dim=1)


def _group_means(values: Tensor, groups: Tensor, count: int) -> list[float]:
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, groups, values)
    return (100 * sums / torch.bincount(groups, minlength=count)).tolist()


def task_weighted(matrix: list[list[float]]) -> list[float]:
    """Mean over k ≤ t of a[t][k], for every t: acc_t if each task weighs the same, however many test images it has.

    FACIL averages so, and with it AdaGauss and GATF. With tasks of equal size it is the image-weighted acc_t.
    """
    return [sum(row) / len(row) for row in matrix]


def last_accuracy(accuracy_seen: list[float]) -> float:
    """A_last = acc_{T−1}."""
    return accuracy_seen[-1]


def incremental_accuracy(accuracy_seen: list[float]) -> float:
    """A_inc = mean of acc_0 .. acc_{T−1}."""
    return sum(accuracy_seen) / len(accuracy_seen)


def forgetting(matrix: list[list[float]]) -> float | None:
    """Mean over k < T−1 of max_{t<T−1} a[t][k] − a[T−1][k]; positive is worse, None with a single task."""
    last = len(matrix) - 1
    if last < 1:
        return None
    drops = [max(matrix[t][k] for t in range(k, last)) - matrix[last][k] for k in range(last)]
    return sum(drops) / last
