"""Several processes that train one model: opened as the launcher's environment says, stopped together."""

import atexit
import gc
import logging
import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gatf import distributed
from gatf.devices import available_device
from gatf.errors import LostProcess

if TYPE_CHECKING:
    from lightning_fabric import Fabric

STEPS_BETWEEN_QUESTIONS = 10
"""Steps after which processes ask each other whether one was told to stop."""

SECONDS_TO_LET_GO = 0.2
"""How long a process waits, at its end, for threads that served an exchange."""


def open_alone(device: str, precision: Any) -> "Fabric":
    """The engine of a process that trains alone, whatever launched it."""
    from lightning_fabric import Fabric  # it takes a second to import, which a prediction need not wait for

    return Fabric(accelerator=available_device(device), devices=1, precision=precision)


def open_fabric(device: str, precision: Any) -> "Fabric":
    """The engine of this process; joined with the others where a launcher (torchrun, `gatf run --devices`) made some.

    Parameters that have no gradient in a step (a backbone that warms up) are allowed for, and buffers are not sent
    along each step: batch-norm statistics are those of the whole batch in every process already.
    """
    if distributed.launched() == 1:
        return open_alone(device, precision)
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it introduces the processes at length
    on_this_node = int(os.environ["LOCAL_WORLD_SIZE"])
    fabric = Fabric(
        accelerator=available_device(device),
        devices=on_this_node,
        num_nodes=distributed.launched() // on_this_node,
        strategy=DDPStrategy(find_unused_parameters=True, forward_sync_buffers=False),
        plugins=[TorchElasticEnvironment()],
        precision=precision,
    )
    fabric.launch()
    atexit.register(leave)
    return fabric


def leave() -> None:
    """Part from the other processes before the interpreter ends.

    A thread that served an exchange lets go of its tensor a moment later, for which it needs the interpreter; one that
    finds it gone aborts the process after all its work was done. Collecting what still holds the group ends its
    threads; where something else holds it, the pause lets them finish.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()
        time.sleep(SECONDS_TO_LET_GO)


class AgreedStop:
    """Whether any process was told to stop: asked by all at the same steps, so that all stop at the same one."""

    def __init__(self, told: Callable[[], bool], device: torch.device) -> None:
        self._told, self._device = told, device
        self._asked = 0
        self._agreed = False

    def __call__(self) -> bool:
        self._asked += 1
        if not self._agreed and self._asked % STEPS_BETWEEN_QUESTIONS == 0:
            self._agreed = distributed.any_of(self._told(), self._device)
        return self._agreed


@contextmanager
def losing_a_process(folder: Path) -> Iterator[None]:
    """Inside, a failed exchange with another process is one sentence that says how to go on."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if distributed.launched() == 1 or not (
            isinstance(error, dist.DistError) or "gloo" in text or "Connection" in text
        ):
            raise
        raise LostProcess(
            f"another process of this run ended, and this one stopped too; go on with: gatf run --resume "
            f"{shlex.quote(str(folder))}"
        ) from None
