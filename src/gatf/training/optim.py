"""Optimisers and learning rates of a phase."""

import math
from collections.abc import Iterable

import torch

from gatf.settings import StageConfig
from gatf.training.phase import Phase


def build_optimiser(phase: Phase) -> torch.optim.Optimizer:
    """SGD or Adam over the phase's parameter groups; each group remembers its rate at the start."""
    stage = phase.stage
    groups = [{"lr": stage.lr, "weight_decay": stage.weight_decay, **group} for group in phase.parameter_groups()]
    for group in groups:
        group["initial_lr"] = group["lr"]
    optimiser: torch.optim.Optimizer
    if stage.optimiser == "adam":
        optimiser = torch.optim.Adam(groups, lr=stage.lr, foreach=True)
    else:
        optimiser = torch.optim.SGD(groups, lr=stage.lr, momentum=stage.momentum, foreach=True)
    return optimiser


@torch.no_grad()
def clip_gradients(parameters: Iterable[torch.Tensor], limit: float) -> None:
    """`torch.nn.utils.clip_grad_norm_` to the bit, for gradients of one kind on one device.

    On a CPU, where asking costs nothing, gradients within the limit are left alone instead of multiplied by one."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    factor = limit / (norm + 1e-6)
    if factor.device.type != "cpu" or not bool(factor >= 1):
        torch._foreach_mul_(gradients, factor.clamp(max=1.0))


def all_parameters(optimiser: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Of all groups."""
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def rate_factor(stage: StageConfig, epoch: int) -> float:
    """What the initial rate is multiplied by during an epoch: a function of the epoch alone, so nothing to save."""
    if stage.schedule == "constant":
        return 1.0
    if stage.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * epoch / stage.epochs))
    passed = sum(epoch >= round(fraction * stage.epochs) for fraction in stage.milestones)
    return float(stage.decay**passed)


def set_rates(optimiser: torch.optim.Optimizer, stage: StageConfig, epoch: int) -> None:
    for group in optimiser.param_groups:
        group["lr"] = group["initial_lr"] * rate_factor(stage, epoch)
