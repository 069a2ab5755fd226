"""The processes that share a run: which one this is, and what they tell each other.

In a process alone every function gives back what it was given. Collectives must be called by all processes alike.
"""

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def launched() -> int:
    """Processes that were started for this run, as the launcher says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def world() -> int:
    """Processes that take part."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world() > 1 else 0


def is_first() -> bool:
    """Whether this is the process that writes and prints."""
    return rank() == 0


def part(count: int) -> slice:
    """This process's part of `count` rows: contiguous, and each row is in the part of one process only."""
    return slice(count * rank() // world(), count * (rank() + 1) // world())


def part_of_step(count: int) -> slice:
    """`part` of a batch that is trained on, which nobody can do with no images: fewer than processes go to all."""
    return slice(0, count) if count < world() else part(count)


class _Total(torch.autograd.Function):
    """Each process's gradient is the sum of what all of them ask for, because each got the same sum."""

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
