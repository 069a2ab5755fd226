"""Multi-process training: setup from the launcher's environment, common stop, lost processes."""

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
"""Steps between exchanges of stop requests."""

SECONDS_TO_LET_GO = 0.2
"""Seconds that a process waits at its end for threads of collective operations."""


def open_alone(device: str, precision: Any) -> "Fabric":
    """The engine of a process that trains alone, even under a launcher."""
    from lightning_fabric import Fabric  # importing it takes a second, and predictions do not need it

    return Fabric(accelerator=available_device(device), devices=1, precision=precision)


def open_fabric(device: str, precision: Any) -> "Fabric":
    """The engine of this process, connected with the others that a launcher (torchrun, `gatf run --devices`) started.

    Parameters may have no gradient in a step (a frozen backbone during warm-up). Buffers are not synchronised, because
    batch-norm statistics already cover the whole batch in every process.
    """
    if distributed.launched() == 1:
        return open_alone(device, precision)
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it logs every process
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
    """Leave the process group before the interpreter ends.

    A thread of a collective operation frees its tensor a moment later and needs the interpreter for it; without one it
    aborts the finished process. Garbage collection ends the threads of the group; the pause lets remaining ones finish.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()
        time.sleep(SECONDS_TO_LET_GO)


class AgreedStop:
    """Whether a stop was requested in any process. All processes exchange this at the same steps and stop together."""

    def __init__(self, requested: Callable[[], bool], device: torch.device) -> None:
        self._requested, self._device = requested, device
        self._asked = 0
        self._agreed = False

    def __call__(self) -> bool:
        self._asked += 1
        if not self._agreed and self._asked % STEPS_BETWEEN_QUESTIONS == 0:
            self._agreed = distributed.any_of(self._requested(), self._device)
        return self._agreed


@contextmanager
def losing_a_process(folder: Path) -> Iterator[None]:
    """Convert a failed exchange with another process to one sentence with the command that continues the run."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if distributed.launched() == 1 or not (
            isinstance(error, dist.DistError) or "gloo" in text or "Connection" in text
        ):
            raise
        raise LostProcess(
            f"another process of this run ended, and this one stopped too; continue with: gatf run --resume "
            f"{shlex.quote(str(folder))}"
        ) from None
