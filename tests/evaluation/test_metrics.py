import pytest
import torch
from torch import Tensor

from gatf.evaluation.metrics import (
    Evaluation,
    choose,
    evaluate,
    few_shot_balance,
    forgetting,
    incremental_accuracy,
    last_accuracy,
    task_weighted,
)


def judged(scores: Tensor, labels: Tensor, task_of_class: Tensor) -> Evaluation:
    return evaluate(choose(scores, labels, task_of_class), labels, task_of_class)


def test_evaluation_by_hand() -> None:
    """Classes 0, 1 are task 0; 2, 3, 4 are task 1. Six images, predictions 0, 2, 1, 2, 2, 0."""
    labels = torch.tensor([0, 0, 1, 2, 3, 4])
    scores = torch.tensor(
        [
            [9.0, 0, 1, 0, 0],  # 0: right
            [5.0, 0, 9, 0, 0],  # 0 taken for 2 (a new class); within task 0 it would be right
            [0.0, 9, 1, 0, 0],  # 1: right
            [0.0, 0, 9, 0, 0],  # 2: right
            [0.0, 0, 9, 5, 0],  # 3 taken for 2
            [9.0, 0, 0, 0, 5],  # 4 taken for 0; within task 1 right
        ]
    )
    result = judged(scores, labels, torch.tensor([0, 0, 1, 1, 1]))
    assert result.by_task == pytest.approx([200 / 3, 100 / 3])
    assert result.seen == pytest.approx(50)
    assert result.task_aware == pytest.approx([100, 200 / 3])
    assert result.by_class == pytest.approx([50, 100, 100, 0, 0])
    assert result.old_to_new == pytest.approx(100 / 3)  # one of the three old-class images
    assert result.predictions.tolist() == [[0, 0, 1], [0, 2, 1], [1, 1, 1], [2, 2, 1], [3, 2, 1], [4, 0, 1]]
    twice = judged(scores[[0, 0, 5]], labels[[0, 0, 5]], torch.tensor([0, 0, 1, 1, 1]))
    assert twice.predictions.tolist() == [[0, 0, 2], [4, 0, 1]]


def test_seen_is_weighted_by_images_not_by_tasks() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    scores = torch.eye(2)[torch.tensor([0, 0, 0, 0])]
    result = judged(scores, labels, torch.tensor([0, 1]))
    assert result.by_task == [100.0, 0.0]
    assert result.seen == 75.0


def test_tasks_can_weigh_equally() -> None:
    """As FACIL averages: each task's accuracy counts the same, however many test images it has."""
    each = task_weighted([[90.0], [80.0, 50.0], [70.0, 40.0, 10.0]])
    assert each == pytest.approx([90, 65, 40])
    assert last_accuracy(each) == pytest.approx(40)
    assert incremental_accuracy(each) == pytest.approx(65)
    # three images right of the three of task 0, none of the one of task 1: 75 by images, 50 by tasks
    assert task_weighted([[100.0], [100.0, 0.0]])[-1] == 50


def test_first_task_has_no_old_classes() -> None:
    assert judged(torch.eye(2), torch.tensor([0, 1]), torch.tensor([0, 0])).old_to_new is None


def test_all_classes_in_every_task() -> None:
    """Two domains with two images each: accuracies are grouped by domain, and no class is of the newest task alone."""
    chosen = torch.tensor([[0, 0], [1, 1], [0, 0], [0, 0]])
    labels, no_other_task, domain = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0]), torch.tensor([0, 0, 1, 1])
    found = evaluate(chosen, labels, no_other_task, domain)
    assert (found.by_task, found.seen, found.by_class) == ([100.0, 50.0], 75.0, [100.0, 50.0])
    assert found.old_to_new is None


def test_headline_numbers_by_hand() -> None:
    seen = [90.0, 70.0, 50.0]
    assert last_accuracy(seen) == 50
    assert incremental_accuracy(seen) == 70
    # task 0: best of 90, 95 minus 40; task 1: 60 minus 70 (it gained)
    assert forgetting([[90.0], [95.0, 60.0], [40.0, 70.0, 80.0]]) == pytest.approx((55 - 10) / 2)
    assert forgetting([[90.0]]) is None


def test_few_shot_balance_by_hand() -> None:
    """Three classes at 90, 60 and 60 % and two at 20 and 40 %: 2·70·30/100 = 42."""
    assert few_shot_balance([90.0, 60.0, 60.0, 20.0, 40.0], 3) == pytest.approx((70.0, 30.0, 42.0))
    assert few_shot_balance([0.0, 0.0], 1) == (0.0, 0.0, 0.0)
