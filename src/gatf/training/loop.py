"""The epoch loop. It trains phases and does not depend on the method."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gatf import distributed
from gatf.data.loader import Batch, TaskData, shuffled
from gatf.errors import NotFinite
from gatf.io.events import Epoch, Listener, Step
from gatf.training.divergence import all_finite
from gatf.training.optim import all_parameters, build_optimiser, clip_gradients, set_rates
from gatf.training.phase import Phase

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Interrupted(Exception):
    """A stop was requested; the current step is finished and saved."""


@dataclass
class Position:
    """The position in a phase: the next step, and the epoch's loss sums before it."""

    epoch: int = 0
    step: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)


class _LossModule(nn.Module):
    """The phase as one module whose forward pass is the loss, so that Fabric can wrap it for any strategy."""

    def __init__(self, phase: Phase) -> None:
        super().__init__()
        self.trained = nn.ModuleDict(phase.modules)
        self._loss = phase.loss

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return self._loss(batch)


Save = Callable[[Position, torch.optim.Optimizer], None]


def train_phase(
    phase: Phase, data: TaskData, fabric: "Fabric", *, listener: Listener, position: Position, save: Save,
    restore: Callable[[torch.optim.Optimizer], None] | None, stop: Callable[[], bool], save_every: int | None,
) -> None:  # fmt: skip
    """Train one phase from `position` to its end; raises `NotFinite` in the epoch of a non-finite loss or weight.

    `save` is called every `save_every` epochs and after a requested `stop`, before `Interrupted` is raised. Losses are
    summed on the device and read once per epoch. Non-finite values are neither reported nor saved.
    """
    module, optimiser = fabric.setup(_LossModule(phase), build_optimiser(phase))
    if restore is not None:
        restore(optimiser)
    stage = phase.stage
    steps = data.steps(phase.loaded, stage.drop_last, phase.order)
    if phase.on_resume is not None and (position.epoch, position.step) != (0, 0):
        within = position.step > 0
        epoch, step = (position.epoch, position.step - 1) if within else (position.epoch - 1, steps - 1)
        phase.on_resume(next(_batches(phase, data, purpose=phase.name, epoch=epoch, start=step)), data)
    while position.epoch < stage.epochs:
        started = time.monotonic()
        if position.step == 0 and phase.on_epoch_start is not None:
            phase.on_epoch_start(position.epoch, data)
        _enter_training(phase)
        set_rates(optimiser, stage, position.epoch)
        for batch in _batches(phase, data, purpose=phase.name, epoch=position.epoch, start=position.step):
            batch.warming_up = position.epoch < stage.warmup_epochs
            terms = module(batch)
            if batch.weight != 1:
                terms = {name: batch.weight * term for name, term in terms.items()}
            fabric.backward(sum(terms.values()))
            if stage.clip is not None:
                fabric.strategy.precision.unscale_gradients(optimiser.optimizer)
                clip_gradients(all_parameters(optimiser), stage.clip)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            for name, term in terms.items():
                position.sums[name] = position.sums.get(name, 0.0) + term.detach()
            position.step = batch.step + 1
            listener(Step(task=data.info.index, phase=phase.name, epoch=position.epoch, epochs=stage.epochs))
            if stop():
                _finish_epoch(data.info.index, position, steps, phase, optimiser, listener, started)
                position.sums = {name: distributed.mean(value) for name, value in position.sums.items()}
                check_finite({name: float(value) for name, value in position.sums.items()}, phase)
                save(position, optimiser)
                raise Interrupted
        _finish_epoch(data.info.index, position, steps, phase, optimiser, listener, started)
        if save_every is not None and position.epoch % save_every == 0 and position.epoch < stage.epochs:
            save(position, optimiser)


def _batches(phase: Phase, data: TaskData, *, purpose: str, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
    """The batches of an epoch of the phase, from a step on."""
    return data.batches(
        "train", batch_size=phase.loaded, purpose=purpose, epoch=epoch, start=start, order=phase.order or shuffled,
        drop_last=phase.stage.drop_last, part=distributed.part_of_step,
    )  # fmt: skip


def _enter_training(phase: Phase) -> None:
    if phase.set_mode is not None:
        phase.set_mode()
        return
    for module in phase.modules.values():
        module.train()


def _finish_epoch(
    task: int, position: Position, steps: int, phase: Phase, optimiser: Any, listener: Listener, started: float
) -> None:
    """After an epoch's last step, report its mean losses and move to the next epoch."""
    if position.step < steps:
        return
    losses = {name: float(distributed.mean(total)) / steps for name, total in position.sums.items()}
    check_finite(losses, phase)
    event = Epoch(
        task=task, phase=phase.name, epoch=position.epoch, losses=losses, lr=optimiser.param_groups[-1]["lr"],
        seconds=round(time.monotonic() - started, 4),
    )  # fmt: skip
    listener(event)
    position.epoch, position.step, position.sums = position.epoch + 1, 0, {}


def weights(phase: Phase) -> Iterator[Tensor]:
    """Parameters and buffers that a phase trains."""
    for module in phase.modules.values():
        yield from module.parameters()
        yield from module.buffers()


def check_finite(losses: dict[str, float], phase: Phase) -> None:
    """Raise `NotFinite` with all losses if one of them or a weight is not finite. Waits for the device once."""
    sound = all_finite(weights(phase))
    if not sound or not all(map(math.isfinite, losses.values())):
        terms = [f"{name} {value:.4g}" for name, value in losses.items()]
        raise NotFinite(", ".join(terms if sound else [*terms, "weights not finite"]))
