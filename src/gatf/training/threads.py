"""How many threads a network is worth: threads that share too little work wait for each other most of the time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

LIGHT = 10**8
"""Multiplications of a batch's pass through the network. Below it a second thread gains next to nothing on a machine
that does nothing else, and where another process wants a core too, both threads spend the step waiting."""


def multiplications(net: nn.Module, shape: tuple[int, int, int]) -> int:
    """Of one image's pass through the convolutions and linear layers of a network."""
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
    """Inside, torch uses one thread if the work is light, unless OMP_NUM_THREADS says how many are wanted.

    It goes by the work alone and never by a clock: the last bits of training depend on the number of threads.
    """
    before = torch.get_num_threads()
    if light and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
