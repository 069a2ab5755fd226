"""What several methods are made of: losses, feature passes, buffers that grow."""

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gatf import distributed
from gatf.data.augment import four_rotations, rotation_labels
from gatf.errors import UserError
from gatf.geometry.moments import Moments, PairedMoments
from gatf.methods.base import Batch, Phase, TaskData, TaskInfo, shuffled
from gatf.nets.base import freeze_batch_norm
from gatf.nets.folding import folded
from gatf.settings import OptimisationConfig, StageConfig


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


def training_mode(*modules: nn.Module, fix_bn: bool) -> Callable[[], None]:
    """What a phase calls to put its networks into train mode, batch-norm left in eval mode if asked."""

    def enter() -> None:
        for module in modules:
            module.train()
            if fix_bn:
                freeze_batch_norm(module)

    return enter


def frozen_features(net: nn.Module, images: Tensor) -> Tensor:
    """What a frozen network makes of images, as a constant of the loss."""
    with torch.inference_mode():
        features = net(images)
    return features.clone()  # an ordinary tensor, which autograd may keep


def cosines(features: Tensor, rows: int = 128) -> Tensor:
    """Cosine Gram matrix of the first rows of a batch (GATF's release)."""
    unit = nn.functional.normalize(features[:rows], dim=1)
    return unit @ unit.T


def perturbation_terms(
    head: nn.Module, features: Tensor, labels: Tensor, *, step: float, rows: int
) -> dict[str, Tensor]:
    """Task-0 feature perturbation of GATF's released CUB script: the cross-entropy of features moved by `step` along
    its normalised gradient, and the mean norm of the gradient there, which is that of the mean over all `rows`.

    The moved features are constants, so that only the head learns from either.
    """
    start = features.detach().requires_grad_()
    (uphill,) = torch.autograd.grad(nn.functional.cross_entropy(head(start), labels, reduction="sum"), start)
    moved = (start + step * nn.functional.normalize(uphill, dim=1)).detach().requires_grad_()
    loss = nn.functional.cross_entropy(head(moved), labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, moved, create_graph=True)
    return {"adversarial": loss / len(labels), "gradient_norm": gradient.norm(dim=1).mean() / rows}


@torch.no_grad()
def own_features(net: nn.Module, data: TaskData, *, mirror: bool = False) -> tuple[Tensor, Tensor]:
    """Features [N, S] and labels [N] of this process's share of a task's images under the test transform, `net` in
    eval mode. With `mirror` the horizontally flipped images follow the plain ones. Features that the data knows,
    because no task trains the backbone, are not computed again."""
    known = None if mirror else data.known_features()
    if known is not None:
        return known
    net = folded(net.eval())
    features, labels = [], []
    flips = (False, True) if mirror else (False,)
    seen, images = 0, len(flips) * len(data)
    data.extracted(seen, images)
    for flip in flips:
        for batch in data.batches("test", batch_size=data.forward_batch_size, part=distributed.part):
            features.append(net(batch.images.flip(-1) if flip else batch.images))
            labels.append(batch.labels)
            seen += batch.whole
            data.extracted(seen, images)
    return torch.cat(features), torch.cat(labels)


AnyMoments = TypeVar("AnyMoments", Moments, PairedMoments)


def of_all_processes(own: AnyMoments) -> AnyMoments:
    """Moments of the vectors of all processes, from each one's own."""
    return own.over(distributed.total) if distributed.world() > 1 else own


def extract(net: nn.Module, data: TaskData, *, mirror: bool = False) -> tuple[Tensor, Tensor]:
    """`own_features` of all processes: every image of the task once (and once mirrored)."""
    features, labels = own_features(net, data, mirror=mirror)
    return distributed.gather_rows(features), distributed.gather_rows(labels)


@torch.no_grad()
def class_means(features: Tensor, labels: Tensor, *, classes: int) -> Tensor:
    """Mean feature of every class, float64 [classes, S]: features [N, S], labels [N] in 0..classes−1, none empty.

    A product with the one-hot labels, so that sums are added in the same order on every run and device.
    """
    members = nn.functional.one_hot(labels, classes).double()  # [N, classes]
    return members.T @ features.double() / members.sum(0)[:, None]


class Growing(nn.Module):
    """A module whose buffers take whatever shape a loaded state has."""

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        for name, buffer in self._buffers.items():
            loaded = state_dict.get(prefix + name)
            if buffer is not None and loaded is not None and loaded.shape != buffer.shape:
                self._buffers[name] = buffer.new_empty(loaded.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


@torch.no_grad()
def feature_pairs(
    teacher: nn.Module, student: nn.Module, data: TaskData, *, batch_size: int, purpose: str, epoch: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """(old, new) features of the same augmented images, both networks in eval mode; this process's part of an epoch."""
    student = folded(student.eval())
    for batch in data.batches(
        "train", batch_size=batch_size, purpose=purpose, epoch=epoch, order=shuffled, part=distributed.part
    ):
        yield teacher(batch.images), student(batch.images)


def task_batch(batch: Batch, task: TaskInfo, rotate: bool) -> tuple[Tensor, Tensor]:
    """Images and task-local labels 0..n−1; with `rotate` four turned copies and 4·n labels (AdaGauss, task 0)."""
    labels = batch.labels - task.old
    if not rotate:
        return batch.images, labels
    return four_rotations(batch.images), rotation_labels(labels, task.new)


def adapter_phase(
    adapter: nn.Module, mapping: Callable[[Tensor], Tensor], teacher: nn.Module, student: nn.Module, *,
    stage: StageConfig, anti_collapse_weight: float, clamp: float,
    on_epoch_start: Callable[[int, TaskData], None] | None = None,
) -> Phase:  # fmt: skip
    """AdaGauss's adapter stage: with both networks frozen, fit old → new features and keep the images full rank."""
    at_rest = cache(lambda: folded(student))  # made in the first step, when the student's training is over

    def loss(batch: Batch) -> dict[str, Tensor]:
        old, new = frozen_features(teacher, batch.images), frozen_features(at_rest(), batch.images)
        moved = mapping(old)
        terms = {"adapter": nn.functional.mse_loss(moved, new)}
        if anti_collapse_weight and has_covariance(moved, batch):
            terms["adapter_anti_collapse"] = anti_collapse_weight * anti_collapse(moved, clamp)
        return terms

    def set_mode() -> None:
        student.eval()
        adapter.train()

    return Phase(
        "adapter", {"adapter": adapter}, loss, stage, on_epoch_start=on_epoch_start, rate="method.adapter_lr",
        set_mode=set_mode,
    )  # fmt: skip


def adapter_stage(stage: StageConfig, lr: float, milestones: tuple[int, ...] = (30, 60, 90)) -> StageConfig:
    """How AdaGauss fits its adapter: half the epochs, SGD at its own rate, the last batch dropped.

    `milestones` are epochs of the adapter, not fractions of its length: one past its end has no effect, so that a short
    stage keeps its full rate to the end.
    """
    epochs = max(1, stage.epochs // 2)
    reached = tuple(milestone / epochs for milestone in milestones if milestone < epochs)
    changes = {"optimiser": "sgd", "epochs": epochs, "lr": lr, "milestones": reached}
    return stage.model_copy(update={**changes, "schedule": "steps", "decay": 0.1, "drop_last": True})


def check_batches(config: OptimisationConfig, dim: int) -> None:
    """The anti-collapse loss factorises the batch's covariance, which needs more rows than dimensions."""
    for name, stage in (("first", config.first), ("next", config.next)):
        if stage.batch_size <= dim:
            raise UserError(
                f"optimisation.{name}.batch_size is {stage.batch_size}, but the anti-collapse loss needs more images a "
                f"batch than feature dimensions ({dim}): raise --batch-size, lower backbone.bottleneck, or set "
                "method.anti_collapse=0"
            )
