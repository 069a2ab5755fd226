"""FeTrIL against the authors' code and PyCIL's (fetril.md)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gatf.data.loader import TaskData
from gatf.methods.fetril import FeTrIL, FeTrILConfig, choose_sources, imitations
from gatf.methods.parts.extraction import class_means, extract
from gatf.settings import OptimisationConfig

from .conftest import Recorded

Translated = Callable[[int, str], tuple[Tensor, Tensor]]
SIZES = [3, 2, 2]
close = torch.testing.assert_close


@pytest.fixture(scope="module")
def tasks(recorded: Recorded, toy_tasks: Callable[..., list[TaskData]]) -> list[TaskData]:
    given = recorded("fetril", "input/")
    return toy_tasks(given["train_images"], given["train_labels"], SIZES)


@pytest.fixture(scope="module")
def learn(recorded: Recorded, toy_net: Callable[..., Any], tasks: list[TaskData]) -> Callable[..., FeTrIL]:
    """`learn(1, similarity="euclidean")`: FeTrIL with the recorded network after task 1; the SVM solved to 1e-11."""

    def run(last: int, **settings: Any) -> FeTrIL:
        net = toy_net(recorded("fetril", "input/net/"))
        method = FeTrIL(FeTrILConfig(tolerance=1e-11, **settings), net, OptimisationConfig(), 0)
        for data in tasks[: last + 1]:
            method.begin_task(data.info)
            method.eval().end_task(data)
        return method

    return run


@pytest.fixture(scope="module")
def translated(recorded: Recorded, toy_net: Callable[..., Any], tasks: list[TaskData]) -> Translated:
    """`translated(2, "cosine")`: what the classifier of task 2 is fitted to, from means of all features so far."""

    def build(task: int, similarity: str) -> tuple[Tensor, Tensor]:
        net, old = toy_net(recorded("fetril", "input/net/")), torch.zeros(0, 8, dtype=torch.float64)
        for data in tasks[:task]:
            seen, labels = extract(net, data)
            old = torch.cat([old, class_means(seen, labels - data.info.old, classes=data.info.new)])
        features, labels = extract(net, tasks[task])
        new = class_means(features, labels - len(old), classes=tasks[task].info.new)
        sources = len(old) + choose_sources(old, new, similarity=similarity)
        return imitations(features, labels, torch.cat([old, new]), sources)

    return build


def in_order(rows: Tensor, labels: Tensor) -> Tensor:
    """Rows by class, and within a class by their first number, which no two of a class share."""
    by_value = rows[:, 0].argsort(stable=True)
    return rows[by_value][labels[by_value].argsort(stable=True)]


@pytest.mark.parametrize("task", [0, 1, 2])
@pytest.mark.parametrize(("source", "similarity"), [("official", "euclidean"), ("pycil", "cosine")])
def test_translated_features(
    recorded: Recorded, translated: Translated, task: int, source: str, similarity: str
) -> None:
    """Float32 features plus a float32 shift here; there eight decimals in a text file, or float32 all along."""
    expected = recorded("fetril", f"{source}/expected/task{task}/")
    features, labels = translated(task, similarity)
    assert torch.equal(labels, expected["labels"].sort(stable=True).values)
    found = in_order(features, labels).double()
    close(found, in_order(expected["features"], expected["labels"]).double(), rtol=1e-6, atol=1e-6)


def test_the_two_similarities_choose_differently(recorded: Recorded) -> None:
    """By angle as PyCIL; by distance another class of six."""
    expected = recorded("fetril", "pycil/expected/task2/")
    for task, old in ((1, 3), (2, 5)):
        means = expected["means"][: old + 2].double()
        by_angle = old + choose_sources(means[:old], means[old:], similarity="cosine")
        assert torch.equal(by_angle, recorded("fetril", f"pycil/expected/task{task}/")["sources"])
        assert not torch.equal(by_angle, old + choose_sources(means[:old], means[old:], similarity="euclidean"))


@pytest.mark.parametrize("task", [0, 1, 2])
def test_classifier_of_the_release(recorded: Recorded, learn: Callable[..., FeTrIL], task: int) -> None:
    """Both SVMs solved to 1e-11; features are normalised in float32 there, weights stored in float32 here."""
    expected = recorded("fetril", f"official/expected/task{task}/")
    method = learn(task, similarity="euclidean")
    close(method.memory.weight.double(), expected["weight"], rtol=1e-5, atol=1e-6)
    close(method.memory.bias.double(), expected["bias"], rtol=1e-5, atol=1e-6)
    images = recorded("fetril", "input/")["test_images"][: len(expected["scores"])] / 255
    with torch.no_grad():
        close(method.scores(images).double(), expected["scores"], rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("task", [0, 1, 2])
def test_classifier_of_pycil(recorded: Recorded, learn: Callable[..., FeTrIL], task: int) -> None:
    """Its SVM stops at liblinear's tolerance of 1e-4, which leaves three digits; ours is solved."""
    expected = recorded("fetril", f"pycil/expected/task{task}/")
    method = learn(task)
    close(method.memory.means, expected["means"], rtol=1e-6, atol=1e-6)
    close(method.memory.weight.double(), expected["svm_weight"], rtol=0, atol=3e-3)
    close(method.memory.bias.double(), expected["svm_bias"], rtol=0, atol=3e-3)
    images = recorded("fetril", "input/")["test_images"] / 255
    with torch.no_grad():
        close(method.scores(images).double(), expected["svm_scores"], rtol=0, atol=3e-3)
