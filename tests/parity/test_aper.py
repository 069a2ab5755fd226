"""APER against its authors' code (aper.md). Both compute in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gatf.methods.aper import APER, APERConfig
from gatf.settings import OptimisationConfig, StageConfig

from .conftest import under

EXACT = {"rtol": 1e-9, "atol": 1e-11}
Recorded = Callable[..., dict[str, Tensor]]


@pytest.fixture(scope="module")
def tasks(recorded: Recorded, exact_net: Any, toy_tasks: Any, train: Any) -> list[tuple[dict[str, Tensor], Tensor]]:
    """After each of the two tasks: the method's state, and its scores of the test images."""
    given = recorded("aper", "input/")
    stage = StageConfig(
        epochs=8, batch_size=64, optimiser="sgd", lr=0.05, momentum=0.9, weight_decay=0.005, schedule="cosine",
        clip=None, warmup=0.0, drop_last=False,
    )  # fmt: skip
    method = APER(APERConfig(), exact_net(under(given, "backbone.")), OptimisationConfig(first=stage), 0)
    method.double()
    found = []
    for data in toy_tasks(given["images"], given["labels"], [2, 2]):
        method.begin_task(data.info)
        for phase in method.phases(data.info):
            with torch.no_grad():
                method.head.weight.copy_(given["head"])
            train(phase, data)
        method.eval()
        method.end_task(data)
        with torch.no_grad():
            scores = method.scores(given["test"] * (1 / 255))
        found.append(({name: value.clone() for name, value in method.state_dict().items()}, scores))
    return found


def test_the_adapted_network_and_the_one_before(tasks: Any, recorded: Recorded) -> None:
    given, trained = recorded("aper", "input/"), tasks[-1][0]
    for name, weights in under(recorded("aper", "expected/"), "backbone.").items():
        assert_close(trained[f"backbone.{name}"], weights, **EXACT)
        assert torch.equal(trained[f"original.{name}"], given[f"backbone.{name}"])


@pytest.mark.parametrize("task", [0, 1])
def test_means_and_cosines(task: int, tasks: Any, recorded: Recorded) -> None:
    """A squared distance between unit vectors is 2 − 2·cosine."""
    expected = recorded("aper", "expected/")
    state, scores = tasks[task]
    assert_close(state["memory.means"], expected[f"means{task}"], **EXACT)
    assert_close(scores, 2 * expected[f"cosines{task}"] - 2, rtol=1e-9, atol=1e-9)
