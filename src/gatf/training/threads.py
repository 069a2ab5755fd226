"""The number of threads of a network. With little work per thread, threads mostly wait for each other."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

LIGHT = 10**8
"""Multiplications of a batch's forward pass. Below it a second thread gains almost nothing on an idle machine and costs
time on a busy one."""


def multiplications(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiplications of one image's forward pass, in convolutions and linear layers."""
    total = 0

    def add(layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        nonlocal total
        places = out.numel() // out.shape[1 if isinstance(layer, nn.Conv2d) else -1]
        weight = layer.weight  # a parameter, or computed from some
        assert isinstance(weight, Tensor)
        total += places * weight.numel()

    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    training = net.training
    net.eval()
    try:
        with torch.no_grad():
            net(torch.zeros(1, *shape).to(next(net.parameters(), torch.zeros(()))))
    finally:
        net.train(training)
        for hook in hooks:
            hook.remove()
    return total


def free_threads() -> int:
    """Cores that this process may use and no other program does, at least one.

    Both the mean load of the last minute and the number of processes that run now must be high: either of them alone
    can be past.
    """
    cores, running = len(os.sched_getaffinity(0)), Path("/proc/loadavg").read_text(encoding="ascii").split()[3]
    busy = min(os.getloadavg()[0], int(running.partition("/")[0]) - 1) / (os.cpu_count() or 1)
    return max(round(cores * (1 - busy)), 1)


@contextmanager
def on_free_cores(say: Callable[[str], None]) -> Iterator[None]:
    """Use no more threads of torch than cores are free, and say so once, unless OMP_NUM_THREADS is set. A step waits
    for its slowest thread, so a thread on a busy core delays all others."""
    before = torch.get_num_threads()
    known = "OMP_NUM_THREADS" not in os.environ and hasattr(os, "sched_getaffinity") and Path("/proc/loadavg").exists()
    free = free_threads() if known else before
    if free < before:
        torch.set_num_threads(free)
        say(
            f"other programs use the cores: training uses at most {free} of {before} threads (OMP_NUM_THREADS={before} "
            "overrides this)"
        )
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread_if(light: bool) -> Iterator[None]:
    """Use one thread of torch if the work is light, unless OMP_NUM_THREADS is set.

    The choice depends only on the work, not on timings, because the last bits of training depend on it.
    """
    before = torch.get_num_threads()
    if light and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
