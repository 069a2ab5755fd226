"""Training that leaves the finite numbers: noticed within its epoch, told in one sentence, never saved.

The device is asked once per epoch and once after a task's statistics, not in every step. That is soon enough: what is
not finite in a gradient is not finite in the weights from then on, and what is not finite in a loss is not in its sum.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from gatf.errors import Diverged, NotFinite, UserError
from gatf.settings import StageConfig


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every number is finite; waits for the device once where they are.

    A sum is finite only if all its terms are, and takes a tenth of the time of asking each; where it is not, the terms
    are asked, for their sum may just be too large."""
    asked = [tensor.detach() for tensor in tensors if tensor.is_floating_point()]
    if not asked or bool(torch.stack([tensor.sum() for tensor in asked]).isfinite().all()):
        return True
    return bool(torch.stack([tensor.isfinite().all() for tensor in asked]).all())


def diverged(
    task: int, where: str, what: str, stage: StageConfig, *, rate: str | None = None,
    also: Mapping[str, float] | None = None,
) -> Diverged:  # fmt: skip
    """The sentence: where it happened, what was not finite, and what to change: the setting `rate` that the stage's
    learning rate comes from, if that is not the task's own, and those in `also`."""
    section = f"optimisation.{'first' if task == 0 else 'next'}"
    if rate is not None and rate.startswith("optimisation."):
        section, rate = rate.removesuffix(".lr"), None
    rates = {**(also or {}), rate or f"{section}.lr": stage.lr}
    advice = []
    if rate is None and isinstance(stage.lr_backbone, float):
        rates[f"{section}.lr_backbone"] = stage.lr_backbone
    advice += [f"lower {path}, now {value:g}" for path, value in rates.items()]
    if stage.clip is not None:
        advice.append(f"lower {section}.clip, now {stage.clip:g}")
    elif rate is None:
        advice.append(f"set {section}.clip, e.g. to 1")
    setting, value = next(iter(rates.items()))
    return Diverged(f"training diverged in task {task + 1}, {where} ({what}): {', or '.join(advice)}", setting, value)


@contextmanager
def noticing(tell: Callable[[str], Diverged], suspects: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
    """Inside, an error that comes of numbers that are not finite is the one that `tell` makes of what it says: one that
    says so itself, or any that is raised while `suspects` (weights, statistics) are not finite."""
    try:
        yield
    except UserError:
        raise
    except (NotFinite, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
        raise tell(_first_line(error)) from error
    except (ValueError, RuntimeError, ArithmeticError) as error:
        if all_finite(suspects()):
            raise
        raise tell(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def check_finite(state: Mapping[str, Tensor]) -> None:
    """`NotFinite` with the names, if some of the tensors have values that are not finite."""
    if not all_finite(state.values()):
        names = [name for name, tensor in state.items() if not all_finite([tensor])]
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        raise NotFinite(f"{', '.join(names[:2])}{more}: not finite")
