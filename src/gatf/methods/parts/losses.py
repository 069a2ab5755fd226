"""Loss terms that several methods share, and what they ask of a batch."""

from functools import lru_cache

import torch
from torch import Tensor

from gatf import distributed
from gatf.data.augment import four_rotations, rotation_labels
from gatf.errors import UserError
from gatf.methods.base import Batch, TaskInfo
from gatf.settings import OptimisationConfig


def anti_collapse(features: Tensor, clamp: float = 1.0, jitter: float = 1e-6) -> Tensor:
    """AdaGauss's anti-collapse loss (NeurIPS 2024): −(1/S)·Σ_i min(A_ii, β).

    A is the Cholesky factor of the batch's unbiased covariance plus `jitter`·I; features [B, S] with B > S. A matrix
    that does not factorise gets ten, a hundred or a thousand times the jitter, whichever is the first to do; which one
    is chosen on the device, so that nothing waits for it.
    """
    with torch.autocast(features.device.type, enabled=False):
        precise = features if features.dtype == torch.float64 else features.float()
        covariance = _batch_covariance(precise)  # [S, S]
        identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
        rungs = _jitters(jitter, covariance.device)
        _, failed = torch.linalg.cholesky_ex(covariance.detach() + rungs[:, None, None] * identity)  # [4]
        chosen = rungs.index_select(0, (failed == 0).int().argmax(dim=0, keepdim=True))
        lower, _ = torch.linalg.cholesky_ex(covariance + chosen * identity)
        return -lower.diagonal().clamp(max=clamp).mean()


@lru_cache(maxsize=32)
def _jitters(least: float, device: torch.device) -> Tensor:
    """What `anti_collapse` adds to the diagonal, in the order in which it is tried, [4]; made once per device."""
    return least * torch.tensor([1.0, 10.0, 100.0, 1000.0], device=device)


def _batch_covariance(features: Tensor) -> Tensor:
    """Unbiased covariance of a batch [B, S], of which other processes may hold other rows; differentiable."""
    count = distributed.total(features.new_full((), len(features)))
    centred = features - distributed.total(features.sum(dim=0)) / count
    return distributed.total(centred.T @ centred) / (count - 1)


def whole_rows(features: Tensor, batch: Batch) -> int:
    """Rows of features of the batch over all processes; an image turned four times has four."""
    return len(features) // len(batch.images) * batch.whole


def has_covariance(features: Tensor, batch: Batch) -> bool:
    """Whether the batch, over all processes, has more rows than features have dimensions."""
    return whole_rows(features, batch) > features.shape[1]


def check_batches(config: OptimisationConfig, dim: int) -> None:
    """The anti-collapse loss factorises the batch's covariance, which needs more rows than dimensions."""
    for name, stage in (("first", config.first), ("next", config.next)):
        if stage.batch_size <= dim:
            raise UserError(
                f"optimisation.{name}.batch_size is {stage.batch_size}, but the anti-collapse loss needs more images a "
                f"batch than feature dimensions ({dim}): raise --batch-size, lower backbone.bottleneck, or set "
                "method.anti_collapse=0"
            )


def task_batch(batch: Batch, task: TaskInfo, rotate: bool) -> tuple[Tensor, Tensor]:
    """Images and task-local labels 0..n−1; with `rotate` four turned copies and 4·n labels (AdaGauss, task 0)."""
    labels = batch.labels - task.old if task.old else batch.labels  # one launch fewer in the first task
    if not rotate:
        return batch.images, labels
    return four_rotations(batch.images), rotation_labels(labels, task.new)
