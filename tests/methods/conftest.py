"""Learning some tasks without files, for tests that look inside a method."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from gatf.config import RunConfig
from gatf.data.loader import TaskData, TaskInfo
from gatf.experiment import Experiment
from gatf.methods.base import Method
from gatf.training.loop import Position, train_phase
from gatf.training.phase import Phase

MethodT = TypeVar("MethodT", bound=Method[Any])


def begun_task_1(config: RunConfig, kind: type[MethodT]) -> tuple[Experiment, MethodT, TaskInfo]:
    """A method that has passed task 0 without training and begun task 1."""
    experiment = Experiment(config)
    method = experiment.method
    assert isinstance(method, kind)
    method.begin_task(experiment.task_info(0))
    method.end_task(experiment.task_data(0))
    task = experiment.task_info(1)
    method.begin_task(task)
    return experiment, method, task


def _ignore(*reported: Any) -> None:
    pass


@pytest.fixture(scope="session")
def train() -> Callable[[Experiment, Phase, TaskData], None]:
    """`train(experiment, phase, data)`: the loop, saving and telling nothing."""

    def run(experiment: Experiment, phase: Phase, data: TaskData) -> None:
        train_phase(
            phase, data, experiment.session.fabric, listener=_ignore, position=Position(), save=_ignore, restore=None,
            stop=lambda: False, save_every=None,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def learn(train: Callable[..., None]) -> Callable[..., Experiment]:
    """`learn(config, tasks=2)`: an experiment that has learnt so many tasks."""

    def run(config: RunConfig, *, tasks: int) -> Experiment:
        experiment = Experiment(config)
        for task in range(tasks):
            data = experiment.task_data(task)
            experiment.method.begin_task(data.info)
            for phase in experiment.method.phases(data.info):
                train(experiment, phase, data)
            experiment.method.eval()
            experiment.method.end_task(data)
            data.close()
        return experiment

    return run
