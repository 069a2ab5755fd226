"""ACIL and DS-AL against the authors' code (acil.md)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gatf.methods import METHODS
from gatf.methods.base import TaskInfo
from gatf.methods.parts.closed_form import ClosedForm
from gatf.settings import OptimisationConfig

from .conftest import Recorded

SIZES = (3, 2, 2)


class Unused(nn.Module):
    """A backbone for a method that receives features."""

    feature_dim = 10

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.fixture
def learnt(recorded: Recorded) -> Callable[[str], Any]:
    """`learnt(name)`: yields the method after each task."""
    given = recorded("acil", "input/")

    def tasks(name: str) -> Any:
        method: Any = METHODS[name](METHODS[name].Config(projections=24), Unused(), OptimisationConfig(), 0)
        assert isinstance(method, ClosedForm)
        method.buffer.weight = given["weight"].T
        seen = 0
        for index, new in enumerate(SIZES):
            own = (given["labels"] >= seen) & (given["labels"] < seen + new)
            method.learn(given["features"][own], given["labels"][own], TaskInfo(index, seen, new, int(own.sum())))
            seen += new
            yield method

    return tasks


@pytest.mark.parametrize("name", ["acil", "ds-al"])
def test_scores_after_each_task(name: str, recorded: Recorded, learnt: Callable[[str], Any]) -> None:
    expected, test = recorded("acil", f"expected/{name}/"), recorded("acil", "input/")["test"]
    for task, method in enumerate(learnt(name)):
        close(method.feature_scores(test), expected[f"scores {task}"])


def test_weights_of_acil(recorded: Recorded, learnt: Callable[[str], Any]) -> None:
    *_, last = learnt("acil")
    close(last.rule.weight.T, recorded("acil", "expected/acil/")["weight"])


def test_both_streams_of_ds_al(recorded: Recorded, learnt: Callable[[str], Any]) -> None:
    expected = recorded("acil", "expected/ds-al/")
    for task, method in enumerate(learnt("ds-al")):
        close(method.main.weight.T, expected[f"main {task}"])
        close(method.compensation.weight.T, expected[f"compensation {task}"])
