"""LDC against its authors' code (ldc.md). Both run in float64; class means are rounded to float32 here."""

from collections.abc import Callable

import torch
from torch.testing import assert_close

from gatf.data.loader import TaskData
from gatf.methods.base import Phase
from gatf.methods.ldc import LDC, LDCConfig

from .conftest import LWF_STAGES as OPTIMISATION
from .conftest import Net, Recorded, Tasks, check_lwf_task, under


def test_three_tasks(
    recorded: Recorded, exact_net: Net, toy_tasks: Tasks, train: Callable[[Phase, TaskData], None]
) -> None:
    """Weights of backbone and head, the projector after its epochs, carried prototypes, distances of unit vectors."""
    given, expected = recorded("ldc", "input/"), recorded("ldc", "expected/")
    method = LDC(LDCConfig(), exact_net(under(given, "backbone.")), OPTIMISATION, 0)
    method.double()
    for data in toy_tasks(given["images"], torch.arange(7).repeat_interleave(8), [3, 2, 2]):
        task = data.info
        method.begin_task(task)
        with torch.no_grad():
            method.base.heads.weight[task.old :] = given[f"rows{task.index}"]
            if task.index > 0:
                method.projector.weight.copy_(given[f"projector{task.index}"])
        for phase in method.phases(task):
            train(phase, data)
        if task.index > 0:
            projector = method.projector.weight.detach()
            assert_close(projector, expected[f"projector{task.index}"], rtol=1e-11, atol=1e-13)
        method.end_task(data)
        check_lwf_task(method, task.index, expected, given["test"][: 2 * task.seen], atol=5e-7)
