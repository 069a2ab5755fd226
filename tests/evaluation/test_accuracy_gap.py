"""Where the points go, on features so simple that every accuracy is known."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gatf.config import RunConfig
from gatf.evaluation.accuracy_gap import Explained, explain_task
from gatf.evaluation.observer import DiagnosticsData
from gatf.experiment import Experiment, reopen, start
from gatf.geometry.readout import nearest_mean_distances

Tiny = Callable[..., RunConfig]
PLACES = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
"""One-dimensional features of four classes in two tasks."""


class Door:
    """Ten training and four test images of each class, all of them exactly at its place."""

    def task_of_class(self, last: int) -> Tensor:
        return torch.tensor([0, 0, 1, 1])[: 2 * (last + 1)]

    def test(self, see: Callable[[Tensor], Tensor], last: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(2 * (last + 1)).repeat_interleave(4)
        return see(PLACES[labels]), labels

    def train(
        self, see: Callable[[Tensor], Tensor], last: int, per_class: int, *, mirror: bool
    ) -> tuple[Tensor, Tensor]:
        assert mirror
        labels = torch.arange(2 * (last + 1)).repeat_interleave(10)
        return see(torch.cat([PLACES[labels]] * 2)), torch.cat([labels, labels])


class NearestMean(nn.Module):
    """Believes that its classes are at `means`."""

    def __init__(self, means: list[float], *, measures: bool = True) -> None:
        super().__init__()
        self.backbone = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.backbone.weight)
        self.means, self.measures = torch.tensor(means)[:, None], measures

    @contextmanager
    def frozen(self) -> Iterator[None]:
        yield

    def scores(self, images: Tensor) -> Tensor:
        return -nearest_mean_distances(self.backbone(images), self.means)

    def reestimated(self, plain: Tensor, mirrored: Tensor, labels: Tensor) -> Any:
        if not self.measures:
            return None
        means = self.means.clone()
        for number in labels.unique().tolist():
            means[number] = plain[labels == number].mean(0)
        return lambda features: -nearest_mean_distances(features, means)


def explained(method: NearestMean, task: int = 1, joint: float | None = None) -> Explained:
    return explain_task(method, Door(), task, joint)  # type: ignore[arg-type]


def test_without_drift_transport_loses_nothing() -> None:
    found = explained(NearestMean([0, 1, 2, 3]), joint=100.0)
    assert found == Explained(after_task=1, own=100, stored=100, reestimated=100, probe=100, joint=100)
    assert (found.transport, found.readout, found.representation) == (0, 0, 0)


def test_a_class_believed_elsewhere_is_transports_loss() -> None:
    """Class 0, a quarter of the images, is believed at 9: its images go to class 1. Re-estimated, all
    are right."""
    found = explained(NearestMean([9, 1, 2, 3]))
    assert (found.own, found.stored, found.reestimated, found.probe) == (75, 75, 100, 100)
    assert found.transport == 25
    assert found.representation is None


def test_new_classes_are_not_re_estimated() -> None:
    """Class 3, of the newest task, is believed at 9: that is not transport's fault."""
    found = explained(NearestMean([0, 1, 2, 9]))
    assert (found.own, found.reestimated, found.probe) == (75, 75, 100)
    assert (found.transport, found.readout) == (0, 25)


def test_a_method_that_measures_nothing_has_no_transport() -> None:
    found = explained(NearestMean([9, 1, 2, 3], measures=False), joint=90.0)
    assert (found.stored, found.reestimated, found.transport) == (None, None, None)
    assert (found.readout, found.representation) == (25, -10)


def test_sentences_say_which_way() -> None:
    found = Explained(after_task=9, own=26.3, stored=26.3, reestimated=26.5, probe=28.0, joint=27.0)
    transport, readout, representation = found.sentences()
    assert transport.startswith("Transport loses 0.2 points")
    assert readout.startswith("The readout loses 1.5 points")
    assert representation.startswith("The representation gains 1.0 points")
    other = Explained(after_task=9, own=60.0, stored=61.0, reestimated=61.0, probe=61.0, joint=None)
    assert [sentence.split(":")[0] for sentence in other.sentences()] == [
        "Transport loses nothing", "The method itself has 60.0 %", "The readout loses nothing",
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["gatf", "adagauss", "dpcr", "sdc"])
def test_measuring_again_what_was_just_measured_changes_nothing(method: str, tmp_path: Path, tiny_config: Tiny) -> None:
    """After the first task: its classes' statistics are taken from the images that they are measured on here. The
    method keeps what it had."""
    small = {"scenario.stop_after": 1} | ({"method.stats_transform": "test"} if method == "dpcr" else {})
    start(tiny_config(method, **small), tmp_path / "run")
    experiment = reopen(tmp_path / "run")
    experiment.go_to(tmp_path / "run", 0)
    learner, door = experiment.method, door_of(experiment)
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    with torch.no_grad(), learner.frozen():
        seen, labels = door.train(learner.backbone, 0, 1000, mirror=True)
        test, _ = door.test(learner.backbone, 0)
        scores, _ = door.test(learner.scores, 0)
        half = len(seen) // 2
        again = learner.reestimated(seen[:half], seen[half:], labels[:half])
        assert again is not None
        assert torch.allclose(again(test).double(), scores.double(), rtol=1e-3, atol=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in learner.state_dict().items())


def test_statistics_that_are_wrong_are_put_right(tmp_path: Path, tiny_config: Tiny) -> None:
    """What is stored of old classes is spoilt; re-estimated they are as they were."""
    start(tiny_config("gatf"), tmp_path / "run")
    experiment = reopen(tmp_path / "run")
    experiment.go_to(tmp_path / "run", 2)
    plain = explain_task(experiment.method, door_of(experiment), 2)
    stored = experiment.method.stored()
    stored.means[:4] *= -1
    experiment.method.keep(stored)
    found = explain_task(experiment.method, door_of(experiment), 2)
    assert found.own < plain.own
    assert (found.reestimated, found.probe) == (plain.reestimated, plain.probe)


def door_of(experiment: Experiment) -> DiagnosticsData:
    return DiagnosticsData(experiment.scenario, experiment.session.pipeline, experiment.session.device)
