"""Learning some tasks without files, for tests that look inside a method."""

from collections.abc import Callable
from typing import Any

import pytest

from gatf.config import RunConfig
from gatf.data.loader import TaskData
from gatf.experiment import Experiment
from gatf.training.loop import Position, train_phase
from gatf.training.phase import Phase


def _ignore(*told: Any) -> None:
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
