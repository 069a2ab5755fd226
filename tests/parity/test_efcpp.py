"""EFC++ against its authors' code (efcpp.md)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gatf.data.loader import Batch, TaskData
from gatf.methods import efc
from gatf.methods.efc import EFC, EFCConfig
from gatf.settings import OptimisationConfig, StageConfig

from .conftest import Recorded

STAGES = OptimisationConfig(next=StageConfig(epochs=6))
close = torch.testing.assert_close


class Given(nn.Module):
    """A teacher whose features were recorded."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features

    def forward(self, images: Tensor) -> Tensor:
        return self.features


@pytest.fixture
def task(recorded: Recorded, toy_tasks: Callable[..., list[TaskData]]) -> TaskData:
    given = recorded("efcpp", "input/")
    return toy_tasks(given["images"], given["labels"], [2, 2, 2])[2]


@pytest.fixture
def method(recorded: Recorded, toy_net: Callable[..., Any], task: TaskData) -> EFC:
    """EFC++ with the recorded network and heads, in the third task."""
    given = recorded("efcpp", "input/")
    config = EFCConfig(rebalance=0.5, rebalance_lr=0.1, drift_width=None)
    built = EFC(config, toy_net(recorded("efcpp", "input/net/")), STAGES, 0)
    for new in (2, 2):
        built.heads.grow(new)
    built.begin_task(task.info)
    with torch.no_grad():
        for layer, rows in zip(built.heads.layers, given["heads"].split(2), strict=True):
            layer.weight.copy_(rows)  # type: ignore[operator, union-attr]
    return built


def heads(method: EFC) -> Tensor:
    return torch.cat([layer.weight.detach() for layer in method.heads.layers])  # type: ignore[misc]


def test_rebalanced_heads(
    method: EFC, task: TaskData, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, traced_steps: Callable[..., Any]
) -> None:
    given, asked = recorded("efcpp", "input/"), []

    def labels(old: int, batch: int, count: int, draws: torch.Generator) -> Tensor:
        asked.append(count)
        return given[f"sampled labels {len(asked) - 1}"]

    monkeypatch.setattr(efc, "prototype_labels", labels)
    monkeypatch.setattr(efc, "REBALANCED_AT_ONCE", 60)
    monkeypatch.setattr(EFC, "_sample", lambda *args: given[f"samples {len(asked) - 1}"])
    traced_steps(method.phases(task.info)[1], task)
    assert asked == [40, 40, 40]  # as many per old class as per new one
    close(heads(method), recorded("efcpp", "expected/")["heads"], rtol=1e-5, atol=1e-6)


def test_loss_of_the_backbone(method: EFC, task: TaskData, recorded: Recorded) -> None:
    given, expected = recorded("efcpp", "input/"), recorded("efcpp", "expected/")
    with torch.no_grad():  # the case has the loss after re-balancing
        for layer, rows in zip(method.heads.layers, expected["heads"].split(2), strict=True):
            layer.weight.copy_(rows)  # type: ignore[operator, union-attr]
    method.efm, method.teacher = given["efm"], Given(given["old features"])
    images = (given["images"].float() / 255).flip(3)
    terms = method.phases(task.info)[0].loss(Batch(images, given["labels"], 0, 0, torch.Generator()))
    close(terms["ce"].detach(), expected["ce"], rtol=1e-5, atol=1e-6)
    close(terms["drift"].detach(), expected["drift"], rtol=1e-5, atol=1e-6)
    assert terms.keys() == {"ce", "drift"}
