"""Batch-norm over a batch that is shared: threads stand in for processes, and one of them waits for the other."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from gatf import distributed
from gatf.nets.shared_norm import SharedBatchNorm2d

SIZES = (5, 3)
"""Images of each process."""


Threads = tuple[Callable[[int], None], list[int]]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """What tells a thread which process it is, and how many numbers processes sent, an entry for each exchange."""
    sent: list[int] = []
    own, barrier = threading.local(), threading.Barrier(len(SIZES))
    box: list[Tensor | None] = [None] * len(SIZES)

    def total(value: Tensor) -> Tensor:
        box[own.rank] = value
        barrier.wait(30)
        added = torch.stack([each for each in box if each is not None]).sum(0)
        barrier.wait(30)
        if own.rank == 0:
            sent.append(value.numel())
        return added

    def rank() -> int:
        return int(own.rank)

    monkeypatch.setattr(distributed, "world", lambda: len(SIZES))
    monkeypatch.setattr(distributed, "rank", rank)
    monkeypatch.setattr(distributed, "total", total)
    return lambda number: setattr(own, "rank", number), sent


def layers(kind: Callable[[int], nn.BatchNorm2d]) -> nn.BatchNorm2d:
    layer = kind(4).double()
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(4, generator=draws))
    return layer


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_parts_of_a_batch_are_normalised_as_the_whole(threads: Threads, layout: torch.memory_format) -> None:
    become, exchanges = threads
    draws = torch.Generator().manual_seed(1)
    images, wanted = (torch.randn(sum(SIZES), 4, 3, 3, generator=draws, dtype=torch.float64) for _ in range(2))
    images = (3 + images).contiguous(memory_format=layout)
    whole = layers(nn.BatchNorm2d)
    inputs = images.clone().requires_grad_()
    expected = whole(inputs)
    expected.backward(wanted)

    def process(number: int) -> tuple[SharedBatchNorm2d, Tensor, Tensor]:
        become(number)
        layer = layers(SharedBatchNorm2d)
        own = images.split(SIZES)[number].clone().requires_grad_()
        out = layer(own)
        out.backward(wanted.split(SIZES)[number])
        assert own.grad is not None
        assert isinstance(layer, SharedBatchNorm2d)
        return layer, out.detach(), own.grad

    with ThreadPoolExecutor(len(SIZES)) as pool:
        found = list(pool.map(process, range(len(SIZES))))
    torch.testing.assert_close(torch.cat([out for _, out, _ in found]), expected.detach())
    torch.testing.assert_close(torch.cat([gradient for *_, gradient in found]), inputs.grad)
    for name, parameter in whole.named_parameters():  # which averaging afterwards makes the whole's, weighed alike
        of_parts = [layer.get_parameter(name).grad for layer, *_ in found]
        torch.testing.assert_close(sum(gradient for gradient in of_parts if gradient is not None), parameter.grad)
    for layer, *_ in found:
        for name, buffer in whole.named_buffers():
            torch.testing.assert_close(layer.get_buffer(name), buffer)
    assert exchanges == [len(SIZES) * (1 + 2 * 4), 2 * 4]  # one on the way forwards, one on the way back
