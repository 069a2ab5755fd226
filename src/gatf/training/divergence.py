"""Detection of NaN and infinity in training: found within the epoch, reported in one sentence, never saved.

The check runs once per epoch and once after a task's statistics, not in every step, because it waits for the device. It
misses nothing: a non-finite gradient makes the weights non-finite, and a non-finite loss makes its sum non-finite.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from gatf.errors import Diverged, NotFinite, UserError
from gatf.settings import StageConfig


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every number is finite; waits for the device once if they are.

    A finite sum implies finite terms, and computing it takes a tenth of the time of a check per element. If the sum is
    not finite, the elements are checked, because the sum may have overflowed."""
    asked = [tensor.detach() for tensor in tensors if tensor.is_floating_point()]
    if not asked or bool(torch.stack([tensor.sum() for tensor in asked]).isfinite().all()):
        return True
    return bool(torch.stack([tensor.isfinite().all() for tensor in asked]).all())


def diverged(
    task: int, where: str, what: str, stage: StageConfig, *, rate: str | None = None,
    also: Mapping[str, float] | None = None,
) -> Diverged:  # fmt: skip
    """The error with place, cause and advice. `rate` is the setting of the learning rate if it is not the stage's `lr`;
    `also` has further settings to lower."""
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
def noticing(describe: Callable[[str], Diverged], suspects: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
    """Convert errors of non-finite numbers with `describe`: `NotFinite`, failed factorisations, and any error that
    occurs while `suspects` (weights, statistics) are not finite."""
    try:
        yield
    except UserError:
        raise
    except (NotFinite, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
        raise describe(_first_line(error)) from error
    except (ValueError, RuntimeError, ArithmeticError) as error:
        if all_finite(suspects()):
            raise
        raise describe(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def check_finite(state: Mapping[str, Tensor]) -> None:
    """`NotFinite` with the names, if some of the tensors have values that are not finite."""
    if not all_finite(state.values()):
        names = [name for name, tensor in state.items() if not all_finite([tensor])]
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        raise NotFinite(f"{', '.join(names[:2])}{more}: not finite")
