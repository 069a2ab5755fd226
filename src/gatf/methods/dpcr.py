"""DPCR (He et al., "Semantic Shift Estimation via Dual-Projection and Classifier Reconstruction for Exemplar-Free
Class-Incremental Learning", ICML 2025). Features are rows; maps act from the right."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from gatf.geometry import gaussians, spd
from gatf.geometry.moments import class_moments
from gatf.methods.base import Method, Phase, TaskData, TaskInfo, shuffled
from gatf.methods.parts.distillation import LwfBase, LwfBaseConfig
from gatf.methods.parts.extraction import Growing
from gatf.methods.parts.stages import LWF_OPTIMISATION
from gatf.settings import MethodConfig, NotNegative, Positive

NORM_GUARD = 1e-12
CHUNK_ELEMENTS = 8 * 2**20
"""Float64 elements of one [classes, S, S] block (64 MB)."""


class DPCRConfig(MethodConfig):
    name: str = "dpcr"
    ridge: Positive = 200.0
    """γ of the ridge regression that solves the classifier (2000 on TinyImageNet and ImageNet)."""
    shift_ridge: NotNegative = 1e-9
    """ε of the regression old → new features."""
    relative_shift_ridge: bool = False
    """Take ε as a fraction of the old features' mean square sum tr(G)/S."""
    distill: NotNegative = 10.0
    """Weight λ of the logit distillation."""
    temperature: Positive = 2.0
    """τ of the logit distillation."""
    rank_tolerance: NotNegative | None = 0.0
    """Singular values of a class's Gram matrix up to this fraction of the largest count as zero (release: 0). null: the
    paper's rank, at most the number of images of the class."""
    tssp: bool = True
    """Move old statistics through the regression old → new (task-wise shift projection)."""
    cip: bool = True
    """Restrict that map to each class's own row space (category information projection)."""
    cn: bool = True
    """Divide each class's weights by their norm (category normalisation)."""
    stats_transform: Literal["mixed", "train", "test"] = "mixed"
    """Images of the statistics: plain for stored ones and augmented for the regressions (release), or all alike."""

    @property
    def base(self) -> LwfBaseConfig:
        """How the backbone is trained, as that of `adc` and `ldc` is."""
        return LwfBaseConfig(distill=self.distill, temperature=self.temperature)

    def training(self) -> dict[str, Any]:
        return {"base": self.base.model_dump(mode="json")}


def shift_projection(gram: Tensor, cross: Tensor, ridge: float) -> tuple[Tensor, dict[str, float]]:
    """TSSP: P = (G + εI)⁻¹D for G = Σ x_oᵀx_o and D = Σ x_oᵀx_n, [S, S] each; and the rank and condition of G.

    Solved in G's eigenvectors; directions in which G is zero to rounding, as when there are fewer images than
    dimensions, map to zero, which is the limit ε → 0 and not the noise a factorisation would make of them.
    """
    values, vectors = torch.linalg.eigh(spd.symmetrise(gram))  # ascending
    zero = len(values) * torch.finfo(values.dtype).eps * values[-1].clamp_min(0)
    kept = values > zero
    inverse = torch.where(kept, 1 / torch.where(kept, values + ridge, 1.0), 0.0)
    projection = (vectors * inverse) @ (vectors.T @ cross)
    rank = int(kept.sum())
    smallest = values[len(values) - rank] if rank else values[-1]
    return projection, {"rank": float(rank), "condition": float(values[-1] / smallest) if rank else float("inf")}


def row_space(grams: Tensor, counts: Tensor, tolerance: float | None = None) -> Tensor:
    """CIP: Π_c = U_c U_cᵀ of the singular vectors of Φ_c whose values are not zero, [..., S, S], [...] → [..., S, S].

    Without a tolerance as many as Φ_c had images, `counts`: stored in float32, zero eigenvalues are no longer zero, and
    those of a trained network's features fall below what a tolerance for that rounding would have to cut. With one, the
    release's float32 decomposition, since what rounding leaves of a zero is part of the comparison: in hundreds of
    dimensions it is positive even where no image activates a feature, while eigenvalues are exactly zero for some.
    """
    if tolerance is None:
        values, vectors = torch.linalg.eigh(spd.symmetrise(grams))
        sizes = values.abs()  # the singular values
        place = sizes.argsort(dim=-1, descending=True).argsort(dim=-1)
        zero = sizes.shape[-1] * torch.finfo(sizes.dtype).eps * sizes.amax(-1, keepdim=True)
        kept = (place < counts[..., None]) & (sizes > zero)
    else:
        vectors, sizes, _ = torch.linalg.svd(grams.float())  # descending
        kept = sizes > tolerance * sizes[..., :1]
    basis = vectors.to(grams) * kept[..., None, :]
    everything = torch.eye(grams.shape[-1], dtype=grams.dtype, device=grams.device)
    return torch.where(kept.all(-1)[..., None, None], everything, basis @ basis.mT)


def ridge_classifier(gram: Tensor, targets: Tensor, ridge: float, *, normalise: bool = True) -> Tensor:
    """W = (R + γI)⁻¹Q, [S, S] and [S, C] → [S, C]; with `normalise` (CN) columns of unit length."""
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    weight = torch.cholesky_solve(targets, spd.cholesky(gram + ridge * identity).lower)
    return normalize(weight, dim=0, eps=NORM_GUARD) if normalise else weight


class GramMemory(Growing):
    """Of every class the sum Φ_c of xᵀx as a packed triangle, the mean and the count; float32."""

    triangles: Tensor
    means: Tensor
    counts: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("triangles", torch.zeros(0, dim * (dim + 1) // 2))
        self.register_buffer("means", torch.zeros(0, dim))
        self.register_buffer("counts", torch.zeros(0))

    def __len__(self) -> int:
        return len(self.means)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """The Gram matrices in float64, a block of classes at a time."""
        at_once = max(1, CHUNK_ELEMENTS // self.dim**2)
        for start in range(0, len(self), at_once):
            classes = slice(start, start + at_once)
            yield classes, spd.unpack(self.triangles[classes].double(), self.dim)

    def move(self, projection: Tensor, *, cip: bool, tolerance: float | None) -> float:
        """Φ_c ← W_cᵀΦ_cW_c and μ_c ← μ_cW_c, W_c = P·Π_c: first the map, then the class's own row space, which is
        that of Φ_c before. Returns the mean rank of the row spaces."""
        triangles, means, ranks = [], [], [projection.new_zeros(0)]
        for classes, grams in self.chunks():
            maps = projection.expand_as(grams)
            if cip:
                spaces = row_space(grams, self.counts[classes], tolerance)
                ranks.append(spaces.diagonal(dim1=-2, dim2=-1).sum(-1))
                maps = projection @ spaces
            triangles.append(spd.pack(spd.symmetrise(maps.mT @ grams @ maps)).float())
            means.append((self.means[classes, None].double() @ maps)[:, 0].float())
        self.triangles, self.means = torch.cat(triangles), torch.cat(means)
        return float(torch.cat(ranks).mean()) if cip else float(self.dim)

    def learn(self, net: nn.Module, data: TaskData, view: Literal["train", "test"]) -> None:
        """Append the classes of a task: images as in `view`, `net` in eval mode."""
        passed = [(net(batch.images), batch.labels) for batch in data.batches(view, purpose="gram")]
        features, labels = (torch.cat(part) for part in zip(*passed, strict=True))
        new = class_moments(features, labels - data.info.old, classes=data.info.new)
        grams = new.scatter + new.count[:, None, None] * new.mean[:, :, None] * new.mean[:, None, :]
        self.triangles = torch.cat([self.triangles, spd.pack(grams).float()])
        self.means = torch.cat([self.means, new.mean.float()])
        self.counts = torch.cat([self.counts, new.count.float()])

    def reestimated(self, features: Tensor, labels: Tensor) -> "GramMemory":
        """A copy in which the classes of these features [N, S], [N] are what `learn` would have made of them."""
        copy = deepcopy(self)
        for number in labels.unique().tolist():
            own = features[labels == number].to(self.means.device).double()
            copy.triangles[number] = spd.pack(own.T @ own)
            copy.means[number], copy.counts[number] = own.mean(0), len(own)
        return copy

    def targets(self) -> Tensor:
        """n_c·μ_c of every class, [S, C]."""
        return (self.counts[:, None].double() * self.means.double()).T

    def total(self) -> Tensor:
        """Σ_c Φ_c, [S, S]."""
        zero = torch.zeros(self.dim, self.dim, dtype=torch.float64, device=self.means.device)
        return sum((grams.sum(0) for _, grams in self.chunks()), zero)

    def as_gaussians(self) -> gaussians.Gaussians:
        """Mean and covariance Φ_c/n_c − μ_cμ_cᵀ of every class."""
        means = self.means.double()
        covs = spd.unpack(self.triangles.double(), self.dim) / self.counts.double()[:, None, None]
        return gaussians.Gaussians(means, covs - means[:, :, None] * means[:, None, :])

    def bytes_per_class(self) -> int:
        return self.means.element_size() * (self.dim * (self.dim + 1) // 2 + self.dim + 1)


class Weights(Growing):
    """The classifier, [S, C], rebuilt after every task."""

    weight: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(dim, 0))


class DPCR(Method[DPCRConfig]):
    """LwF trains the backbone; Gram matrices and means of old classes follow it through two projections, and a ridge
    regression on them is the classifier."""

    name = "dpcr"
    Config = DPCRConfig
    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}, "optimisation": LWF_OPTIMISATION}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.base = LwfBase(self.feature_dim, self.config.base)
        self.memory = GramMemory(self.feature_dim)
        self.readout = Weights(self.feature_dim)

    def begin_task(self, task: TaskInfo) -> None:
        self.base.begin(self, task)

    def phases(self, task: TaskInfo) -> list[Phase]:
        return self.base.phases(self, task)

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        """Without back-propagation: move the old statistics, rebuild the classifier, then store the new classes'."""
        self.backbone.eval()
        config, task = self.config, data.info
        grams, targets = self._task_statistics(data)
        if task.index > 0 and config.tssp:
            ridge = config.shift_ridge
            ridge *= float(grams["old"].diagonal().mean()) if config.relative_shift_ridge else 1.0
            projection, report = shift_projection(grams["old"], grams["cross"], ridge)
            report["class_rank"] = self.memory.move(projection, cip=config.cip, tolerance=config.rank_tolerance)
            self.note("shift", **report)
        # Q: sums of the new classes' features, n_c·μ_c of the old ones
        targets[:, : task.old] = self.memory.targets()
        gram = self.memory.total() + grams["new"]
        solved = ridge_classifier(gram, targets, config.ridge, normalise=config.cn)
        self.readout.weight = solved.float().contiguous()  # as it is when loaded: the last bits depend on the layout
        self.memory.learn(self.backbone, data, "train" if config.stats_transform == "train" else "test")
        self.base.end(self, data)

    def _task_statistics(self, data: TaskData) -> tuple[dict[str, Tensor], Tensor]:
        """One pass: G = Σ x_oᵀx_o, D = Σ x_oᵀx_n (after task 0), A = Σ x_nᵀx_n, [S, S], and H = Σ x_nᵀ·onehot(y),
        [S, C]; float64."""
        names = ("old", "cross", "new")
        zero = torch.zeros(self.feature_dim, self.feature_dim, dtype=torch.float64, device=self.device)
        grams = {name: zero.clone() for name in names}
        targets = zero.new_zeros(self.feature_dim, data.info.seen)
        view: Literal["train", "test"] = "test" if self.config.stats_transform == "test" else "train"
        for batch in data.batches(view, purpose="shift", order=shuffled):
            new = self.backbone(batch.images).double()
            grams["new"] += new.T @ new
            targets += new.T @ one_hot(batch.labels, data.info.seen).double()
            if data.info.index > 0:
                old = self.base.teacher(batch.images).double()
                grams["old"] += old.T @ old
                grams["cross"] += old.T @ new
        return grams, targets

    def scores(self, images: Tensor) -> Tensor:
        """x·w_c on raw features, no bias."""
        return self.backbone(images) @ self.readout.weight

    def reestimated(self, plain: Tensor, mirrored: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
        """Of plain images all of it, where the classifier that `end_task` builds may take augmented ones of the newest
        classes: even with no re-estimated class it may differ a little from that one."""
        memory, config = self.memory.reestimated(plain, labels), self.config
        weight = ridge_classifier(memory.total(), memory.targets(), config.ridge, normalise=config.cn).float()
        return lambda features: features.to(weight) @ weight

    def stored(self) -> gaussians.Gaussians:
        return self.memory.as_gaussians()

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()
