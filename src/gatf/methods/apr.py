"""APR (Honda, "Adversarial Pseudo-replay for Exemplar-free Class-incremental Learning", WACV 2026). Where paper and
release differ, the release is the default."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from gatf.devices import upload
from gatf.geometry import gaussians, moments, spd
from gatf.geometry.readout import nearest_mean_distances
from gatf.methods.base import Batch, Phase, TaskData, TaskInfo
from gatf.methods.fecam import FeCAMConfig, TukeyMemory
from gatf.methods.parts.attack import (
    Limits,
    candidate_images,
    embed,
    nearest_images,
    perturb,
    pool_features,
    pool_images,
)
from gatf.methods.parts.distillation import LwfBase, LwfBaseConfig
from gatf.methods.parts.extraction import extract
from gatf.methods.parts.features import FeatureMethod
from gatf.methods.parts.prototypes import finite
from gatf.methods.parts.stages import FIRST_TASK_OPTIMISATION
from gatf.seeding import generator
from gatf.settings import AffectsLaterTasksOnly, AffectsReadoutOnly, MethodConfig, NotNegative, Positive

POOL, TRANSPORTED = "apr pool", "apr transport"
TOGETHER, COUNTED = 64, 1000
"""Images attacked together in the transport, and the number that the length of a step is counted over."""
ATTEMPTS = 11
"""Attacks on images none of which succeeded, after which they are left out (the release raises an error)."""
PAIRS = 16
"""Pairs of features in a step of the transfer matrix."""


class APRConfig(MethodConfig):
    name: str = "apr"
    preset: Literal["cifar100", "tinyimagenet", "imagenet"] = "cifar100"
    """The release's settings for CIFAR-100, TinyImageNet or ImageNet-100."""
    distill: AffectsLaterTasksOnly[NotNegative] = 10.0
    """Weight of the distillation of old logits, from new and from pseudo-replay images."""
    temperature: AffectsLaterTasksOnly[Positive] = 2.0
    """T of the softened logits."""
    pseudo_batch: AffectsLaterTasksOnly[PositiveInt] = 64
    """Pseudo-replay images per step, beside the batch."""
    candidates: AffectsLaterTasksOnly[PositiveInt] = 200
    """Images of the new task nearest to an old prototype that its pseudo-replay images are made from."""
    steps: AffectsLaterTasksOnly[NonNegativeInt] = 4
    """Steps of the attack during training."""
    step_size: AffectsLaterTasksOnly[NotNegative] = 64.0
    """Length of a step over all pseudo-replay images of a batch together."""
    noise: AffectsLaterTasksOnly[NotNegative] = 1.0
    """Noise on the prototypes that the attack aims at, in root mean variances of the stored classes."""
    transport_candidates: AffectsLaterTasksOnly[PositiveInt] = 1000
    """Images nearest to an old prototype that are attacked after training, to measure its drift."""
    transport_steps: AffectsLaterTasksOnly[NonNegativeInt] = 9
    """Steps of that attack; repeated while no image of 64 succeeds."""
    transport_step_size: AffectsLaterTasksOnly[NotNegative] = 25.0
    """Length of a step over 1 000 images; √(64/1000) of it over the 64 attacked together."""
    transfer_epochs: AffectsLaterTasksOnly[NonNegativeInt] = 64
    """Epochs of the transfer matrix of each class's covariance, over its attacked images."""
    transfer_lr: AffectsLaterTasksOnly[Positive] = 1e-4
    """Adam's learning rate of the transfer matrices."""
    shrinkage: AffectsReadoutOnly[NotNegative] = 24.0
    """γ₁ = γ₂: mean variances and covariances added to a class covariance in the classifier."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tinyimagenet": {"method": {"steps": 6, "transport_steps": 6, "shrinkage": 40.0}},
        "imagenet": {
            "method": {"steps": 2, "transport_steps": 3, "pseudo_batch": 32, "step_size": 90.5, "shrinkage": 40.0}
        },
    }


def drawn(candidates: int, count: int, dim: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Which candidates a step uses, [P], and the noise of their aims, [P, S]."""
    return torch.randperm(candidates, generator=draws)[:count], torch.randn(count, dim, generator=draws)


def transfer_matrix(before: Tensor, after: Tensor, *, epochs: int, lr: float, draws: torch.Generator) -> Tensor:
    """W of the affine map, started at the identity, that Adam fits to pairs of features [N, S] by their mean distance,
    [S, S]."""
    with torch.enable_grad():
        weight = torch.eye(before.shape[1]).to(before).requires_grad_()
        bias = before.new_zeros(before.shape[1]).requires_grad_()
        optimiser = torch.optim.Adam([weight, bias], lr=lr)
        for _ in range(epochs):
            for rows in upload(torch.randperm(len(before), generator=draws), before.device).split(PAIRS):
                optimiser.zero_grad()
                mapped = nn.functional.linear(before[rows], weight, bias)
                (after[rows] - mapped).norm(dim=1).mean().backward()
                optimiser.step()
    return weight.detach()


class APR(FeatureMethod[APRConfig]):
    """LwF whose distillation also sees images of the new task that an attack moves towards old prototypes. The same
    attack measures how prototypes and covariances drift; a Mahalanobis distance classifies."""

    name = "apr"
    Config = APRConfig
    defaults: ClassVar[dict[str, Any]] = {
        "backbone": {"bottleneck": None},
        "optimisation": FIRST_TASK_OPTIMISATION
        | {"next": FIRST_TASK_OPTIMISATION["first"] | {"lr": 0.01, "weight_decay": 2e-4}},
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        config = self.config
        self.base = LwfBase(self.feature_dim, LwfBaseConfig(distill=config.distill, temperature=config.temperature))
        readout = FeCAMConfig(
            tukey=None, shrink_diagonal=config.shrinkage, shrink_off_diagonal=config.shrinkage, shrink_passes=1
        )
        self.memory = TukeyMemory(self.feature_dim, readout)
        self._pool: tuple[Tensor, Tensor, Tensor] | None = None
        """Images of the new task, which of them are candidates of each old class, [K, m], and the root of the mean
        stored variance. Not part of the state: a checkpoint holds no pixels."""

    def begin_task(self, task: TaskInfo) -> None:
        self._pool = None
        self.base.begin(self, task)

    def phases(self, task: TaskInfo) -> list[Phase]:
        if task.index == 0:
            return self.base.phases(self, task)
        (phase,) = self.base.phases(self, task, self._pseudo_replay)
        phase.on_epoch_start = lambda epoch, data: self._choose(data)
        phase.on_resume = lambda batch, data: self._choose(data)
        return [phase]

    @torch.no_grad()
    def _choose(self, data: TaskData) -> None:
        """The images nearest to each old prototype, under one draw of the augmentation, in memory for the task."""
        if self._pool is None:
            (features,), _ = pool_features(data, POOL, self.base.teacher)
            chosen = nearest_images(features, finite(self.memory.means), self.config.candidates)
            wanted, where = chosen.unique(return_inverse=True)
            spread = self.stored().covs.diagonal(dim1=1, dim2=2).mean().sqrt().float()
            self._pool = pool_images(data, POOL, wanted), where, spread

    def _pseudo_replay(self, batch: Batch) -> Tensor:
        """Random candidates, moved towards their class's prototype under noise, [P, C, H, W]."""
        assert self._pool is not None  # chosen at the start of the epoch
        (pool, chosen, spread), config = self._pool, self.config
        asked = min(config.pseudo_batch, chosen.numel())
        count = -(-asked * len(batch.images) // batch.whole)  # this process's part
        rows, noise = drawn(chosen.numel(), count, self.feature_dim, batch.generator)
        rows, noise = upload(rows, self.device), upload(noise, self.device)
        aims = self.memory.means[rows // chosen.shape[1]] + config.noise * spread * noise
        images = pool[chosen.flatten()[rows]]
        size = config.step_size * (count / config.pseudo_batch) ** 0.5
        return perturb(self.base.teacher, images[None], aims[None], steps=config.steps, size=size)[0]

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        """Old classes follow the network, then means and covariances of the new classes."""
        task = data.info
        self._pool = None
        self.backbone.eval()
        if task.index > 0:
            self.memory.set(*self._transported(data))
        features, labels = extract(self.backbone, data)
        learnt = moments.class_moments(features, labels - task.old, classes=task.new)
        self.memory.add(finite(learnt.mean), spd.pack(learnt.covariance()))
        self.base.end(self, data)

    def _transported(self, data: TaskData) -> tuple[Tensor, Tensor]:
        """Means moved by the mean drift of their attacked images; covariances W Σ Wᵀ by the matrix fitted to them."""
        means, spreads, config, old = self.memory.means, self.memory.spreads, self.config, self.base.teacher
        (features,), limits = pool_features(data, TRANSPORTED, old)
        chosen = nearest_images(features, means, config.transport_candidates)
        draws = generator(self.seed, "transfer", data.info.index)
        moved, covariances, counts = [], [], []
        for group, images in candidate_images(data, TRANSPORTED, chosen):
            for number, candidates in enumerate(images, start=group.start):
                attacked = self._attacked(candidates, number, limits)
                counts.append(len(attacked))
                if not len(attacked):
                    attacked = candidates
                before, after = embed(old, attacked[None])[0], embed(self.backbone, attacked[None])[0]
                moved.append(means[number] + (after - before).mean(0))
                matrix = transfer_matrix(
                    before, after, epochs=config.transfer_epochs, lr=config.transfer_lr, draws=draws
                )
                cov = spd.unpack(spreads[number].double(), self.feature_dim)
                covariances.append(spd.pack(matrix.double() @ cov @ matrix.double().mT))
        found = torch.tensor(counts, dtype=torch.float64)
        self.note("apr", successes_mean=float(found.mean()), fallbacks=float((found == 0).sum()))
        return finite(torch.stack(moved)), torch.stack(covariances)

    def _attacked(self, candidates: Tensor, number: int, limits: Limits) -> Tensor:
        """The candidates [m, C, H, W] that an attack brings nearest to their own prototype, at most m."""
        old, means, config = self.base.teacher, self.memory.means, self.config
        size = config.transport_step_size * (TOGETHER / COUNTED) ** 0.5
        found = []
        for images in candidates[:, None].split(TOGETHER):  # [64, 1, C, H, W]
            images = images.transpose(0, 1)
            for _ in range(ATTEMPTS):
                images = perturb(
                    old, images, means[number][None], steps=config.transport_steps, size=size, limits=limits
                )
                landed = embed(old, images)[0]
                success = nearest_mean_distances(landed, means).argmin(1) == number
                if bool(success.any()):
                    break
            found.append(images[0][success])
        return torch.cat(found)

    def feature_scores(self, features: Tensor) -> Tensor:
        return self.memory.scores(features)

    def stored(self) -> gaussians.Gaussians:
        covs = spd.unpack(self.memory.spreads.double(), self.feature_dim)
        return gaussians.Gaussians(self.memory.means.double(), covs)

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()
