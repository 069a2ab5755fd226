"""Optimisers and learning rates of a phase."""

import math
from collections.abc import Iterable
from typing import Any

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
    if stage.lookahead is not None:
        look_ahead(optimiser, every=stage.lookahead, rate=stage.lookahead_rate)
    return optimiser


def look_ahead(optimiser: torch.optim.Optimizer, *, every: int, rate: float) -> None:
    """Lookahead (Zhang et al., NeurIPS 2019) as a hook after each step; momentum is left alone.

    Every `every` steps slow ← slow + rate·(weights − slow), and the weights continue from there. The slow weights and
    the steps taken since lie in the optimiser's state, as tensors, so that a checkpoint has them.
    """
    parameters = all_parameters(optimiser)
    begun_at = [parameter.detach().clone() for parameter in parameters]  # Adam must find its state empty once

    @torch.no_grad()
    def after_step(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        states = [stepped.state[parameter] for parameter in parameters]
        if "slow" not in states[0]:
            for state, begun in zip(states, begun_at, strict=True):
                state["slow"] = begun
            states[0]["taken"] = torch.zeros(())
        begun_at.clear()
        taken = int(states[0]["taken"]) + 1  # on the CPU, but for once after a checkpoint was loaded
        states[0]["taken"] = torch.tensor(float(taken % every))
        if taken == every:
            slow = [state["slow"] for state in states]
            torch._foreach_lerp_(slow, parameters, rate)
            torch._foreach_copy_(parameters, slow)

    optimiser.register_step_post_hook(after_step)


@torch.no_grad()
def add_to_average(optimiser: torch.optim.Optimizer) -> None:
    """Count the weights as they are into their running mean, which lies in the optimiser's state, as tensors, so that a
    checkpoint has it."""
    parameters = all_parameters(optimiser)
    states = [optimiser.state[parameter] for parameter in parameters]
    count = int(states[0].get("averaged", 0)) + 1
    states[0]["averaged"] = torch.tensor(float(count))
    for parameter, state in zip(parameters, states, strict=True):
        if "mean" not in state:
            state["mean"] = parameter.clone()
    torch._foreach_lerp_([state["mean"] for state in states], parameters, 1 / count)


@torch.no_grad()
def take_average(optimiser: torch.optim.Optimizer) -> None:
    """Put the running mean of the weights in their place."""
    parameters = all_parameters(optimiser)
    torch._foreach_copy_(parameters, [optimiser.state[parameter]["mean"] for parameter in parameters])


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
    milestones = [round(fraction * stage.epochs) for fraction in stage.milestones]
    if stage.schedule == "dips":
        return stage.decay if epoch in milestones else 1.0
    passed = sum(epoch >= milestone for milestone in milestones)
    return float(stage.decay**passed)


def set_rates(optimiser: torch.optim.Optimizer, stage: StageConfig, epoch: int) -> None:
    for group in optimiser.param_groups:
        group["lr"] = group["initial_lr"] * rate_factor(stage, epoch)
