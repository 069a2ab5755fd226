"""ADC against its authors' code (adc.md). Both train in float64; prototypes and images are in float32 here."""

from collections.abc import Callable

import pytest
import torch
from torch.testing import assert_close

from gatf.data.loader import TaskData
from gatf.methods.adc import ADC, ADCConfig, attack
from gatf.methods.base import Phase

from .conftest import LWF_STAGES as OPTIMISATION
from .conftest import Net, Recorded, Tasks, check_lwf_task, under


def test_three_tasks(
    recorded: Recorded, exact_net: Net, toy_tasks: Tasks, train: Callable[[Phase, TaskData], None]
) -> None:
    """Weights of backbone and head, successful attacks, compensated prototypes and distances of unit vectors."""
    given, expected = recorded("adc", "input/"), recorded("adc", "expected/")
    config = ADCConfig(candidates=6, steps=3, step_size=1.5, inplace=True)
    method = ADC(config, exact_net(under(given, "backbone.")), OPTIMISATION, 0)
    method.double()
    for data in toy_tasks(given["images"], torch.arange(7).repeat_interleave(8), [3, 2, 2]):
        task = data.info
        method.begin_task(task)
        with torch.no_grad():
            method.base.heads.weight[task.old :] = given[f"rows{task.index}"]
        (phase,) = method.phases(task)
        train(phase, data)
        method.end_task(data)
        check_lwf_task(method, task.index, expected, given["test"][: 2 * task.seen], atol=2e-6)
    reports = [notice.values for notice in method.notices if notice.name == "adc"]
    for report, successes in zip(reports, (expected["successes1"], expected["successes2"]), strict=True):
        assert report["successes_mean"] == successes.double().mean()
        assert report["fallbacks"] == (successes == 0).sum()
    assert reports[1]["fallbacks"] == 1  # the case has a class that no image was made to look like


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_steps_of_the_attack(steps: int, recorded: Recorded, exact_net: Net) -> None:
    """The images nearest to a prototype after each step; some pixels reach the limits."""
    given, old = recorded("adc", "attack/input/"), exact_net(recorded("adc", "expected/trained1/backbone."))
    config = ADCConfig(candidates=6, steps=steps, step_size=1.5)
    low, high = given["limits"]
    found = attack(config, old, given["images"][None], given["target"][None], (low, high))
    expected = recorded("adc", "attack/expected/")[f"images{steps}"]
    assert_close(found[0], expected, rtol=1e-11, atol=1e-13)
    assert ((expected == low) | (expected == high)).any()
