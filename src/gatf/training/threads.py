"""The number of threads of a network. With little work per thread, threads mostly wait for each other."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

LIGHT = 10**8
"""Multiplications of a batch's forward pass. Below it a second thread gains almost nothing on an idle machine and costs
time on a busy one."""


def multiplications(net: nn.Module, shape: tuple[int, int, int]) -> int:
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
