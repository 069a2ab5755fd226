"""Optimisers and learning rates of a phase."""

import math

import torch

from gatf.settings import StageConfig
from gatf.training.phase import Phase


def build_optimiser(phase: Phase) -> torch.optim.Optimizer:
    """SGD or Adam over the phase's parameter groups; each group remembers its rate at the start."""
    stage = phase.stage
    groups = [{"lr": stage.lr, "weight_decay": stage.weight_decay, **group} for group in phase.parameter_groups()]
    for group in groups:
        group["initial_lr"] = group["lr"]
    if stage.optimiser == "adam":
        return torch.optim.Adam(groups, lr=stage.lr, foreach=True)
    return torch.optim.SGD(groups, lr=stage.lr, momentum=stage.momentum, foreach=True)


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
