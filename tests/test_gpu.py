"""On a real GPU: no method waits within a step, results are the CPU's, two devices train one model."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatf.config import RunConfig
from gatf.experiment import Experiment
from gatf.io.events import Event, Step
from gatf.methods import METHODS
from gatf.training.context import RunContext

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.filterwarnings("default"),  # torch warns of its own sync debug mode, and of some drivers
]


def refuse_waits_within_epochs() -> Callable[[Event], None]:
    """A listener: between two steps of one epoch a wait is an error, elsewhere it is allowed."""
    last: list[Any] = [None]

    def heard(event: Event) -> None:
        if isinstance(event, Step):
            here = (event.task, event.phase, event.epoch)
            torch.cuda.set_sync_debug_mode("error" if here != last[0] else "default")
            last[0] = here

    return heard


@pytest.mark.parametrize("method", METHODS)
def test_three_steps_without_a_wait(method: str, tiny_config: Callable[..., RunConfig]) -> None:
    """Three steps per epoch: the listener allows waits before the first and after the second."""
    experiment = Experiment(
        tiny_config(method, **{"device": "cuda", "data.max_per_class": 80, "checkpoint_every": None})
    )
    try:
        for task in range(2):
            experiment.session.learn_task(experiment.task_data(task), RunContext(refuse_waits_within_epochs()))
            torch.cuda.set_sync_debug_mode("default")
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("method", ["gatf", "adagauss", "efc", "pass"])
def test_class_means_are_the_cpus(method: str, tiny_config: Callable[..., RunConfig]) -> None:
    """After a few steps: differences of rounding grow with every step, and decide about the accuracy after many."""
    short = {
        f"optimisation.{stage}.{name}": value
        for stage in ("first", "next")
        for name, value in (("epochs", 1), ("batch_size", 80))
    }
    means = []
    for device in ("cuda", "cpu"):
        experiment = Experiment(tiny_config(method, **short, device=device))
        for task in range(2):
            experiment.session.learn_task(experiment.task_data(task), RunContext())
        state = experiment.method.state_dict()
        means += [value.double().cpu() for name, value in state.items() if name.endswith(".means")]
    assert (means[0] - means[1]).norm() < 1e-2 * means[1].norm()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices here")
def test_two_devices_train_one_model(tmp_path: Path) -> None:
    settings = ["scenario.stop_after=2", "optimisation.first.epochs=2", "optimisation.next.epochs=2", "device=cuda"]
    chosen = [part for setting in settings for part in ("--set", setting)]
    command = [
        sys.executable,
        "-m",
        "gatf",
        "run",
        "--recipe",
        "digits",
        *chosen,
        "--devices",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
