"""The processes that share a run: which one this is, and how they exchange values.

In a run of one process, every function returns its argument. In a run of several, all of them must call an exchange
(`total`, `gather_rows`, …) at the same point.
"""

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def launched() -> int:
    """How many processes the launcher started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def world() -> int:
    """How many processes take part now."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world() > 1 else 0


def is_first() -> bool:
    """Whether this is the process that writes and prints."""
    return rank() == 0


def part(count: int) -> slice:
    """This process's share of `count` rows. Shares are contiguous, and each row is in exactly one of them."""
    return slice(count * rank() // world(), count * (rank() + 1) // world())


def part_of_step(count: int) -> slice:
    """`part` of a training batch. A batch with fewer images than processes goes to all of them whole, because a process
    cannot train on no images."""
    return slice(0, count) if count < world() else part(count)


class _Total(torch.autograd.Function):
    """A sum over processes. All of them used its result, so its gradient is the sum of all their gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        value = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient


def total(value: Tensor) -> Tensor:
    """The sum over processes, differentiable. With gradients averaged over processes afterwards, as DDP does, a loss
    of such sums has the gradient it would have in one process."""
    if world() == 1:
        return value
    result: Tensor = _Total.apply(value)
    return result


def mean(value: Tensor) -> Tensor:
    """The mean over processes."""
    return total(value) / world()


@torch.no_grad()
def gather_rows(rows: Tensor) -> Tensor:
    """The rows [n, …] of all processes, in their order; n may differ."""
    if world() == 1:
        return rows
    counts = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(world())]
    dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    longest = max(int(count) for count in counts)
    padded = rows.new_zeros(longest, *rows.shape[1:])
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in range(world())]
    dist.all_gather(gathered, padded)
    return torch.cat([part[: int(count)] for part, count in zip(gathered, counts, strict=True)])


def gather_list(items: list[Any]) -> list[Any]:
    """The items of all processes, in their order; tensors among them on the CPU."""
    if world() == 1:
        return items
    gathered: list[Any] = [None] * world()
    dist.all_gather_object(gathered, items)
    return [item for items in gathered for item in items]


@torch.no_grad()
def take_from_first(tensors: Iterable[Tensor]) -> None:
    """Overwrite the tensors with those of the first process, so that rounding cannot let the processes drift apart."""
    if world() > 1:
        for tensor in tensors:
            sent = tensor.contiguous()
            dist.broadcast(sent, 0)
            tensor.copy_(sent)


def from_first(value: Any) -> Any:
    """What the first process holds, e.g. the name of a file."""
    if world() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, 0)
    return box[0]


def any_of(flag: bool, device: torch.device) -> bool:
    """Whether the flag is up in any process."""
    return flag if world() == 1 else bool(total(torch.tensor(float(flag), device=device)) > 0)
