"""FeCAM (Goswami, Liu, Twardowski, van de Weijer: "Exploiting the Heterogeneity of Class Distributions in Exemplar-Free
Continual Learning", NeurIPS 2023)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor
from torch.nn.functional import normalize

from gatf.errors import UserError
from gatf.geometry import moments, readout, spd
from gatf.methods.base import Phase, TaskData, TaskInfo
from gatf.methods.parts.extraction import Growing, class_means, extract
from gatf.methods.parts.features import FeatureMethod
from gatf.methods.parts.stages import FIRST_TASK_OPTIMISATION
from gatf.nets.heads import CosineHeads
from gatf.settings import MethodConfig, NotNegative

NORM_GUARD, LOG_GUARD = 1e-12, 1e-6
Covariance = Literal["per_class", "common", "diag", "identity"]


class FeCAMConfig(MethodConfig):
    name: str = "fecam"
    preset: Literal["resnet", "vit"] = "resnet"
    """For non-negative features, or the release's settings for a pretrained ViT."""
    tukey: NotNegative | None = 0.5
    """Power β of the features (0: logarithm); null for features that can be negative."""
    shrink_diagonal: NotNegative = 1.0
    """γ₁: mean variances added to the diagonal in one pass of shrinkage."""
    shrink_off_diagonal: NotNegative = 1.0
    """γ₂: mean covariances added off the diagonal in one pass of shrinkage."""
    shrink_passes: PositiveInt = 2
    """Passes of shrinkage: two in the release, one in the paper."""
    mask_zeros: bool = False
    """Average only covariances that are not exactly zero, as the release does; dead features can break that."""
    correlation: bool = True
    """Normalise covariances to correlation matrices, except for `common`."""
    covariance: Covariance = "per_class"
    """One covariance per class, one for all, variances only, or none (nearest mean)."""
    first_task_rule: Literal["head", "maha"] = "head"
    """Classifier after task 0: the trained cosine head (release), or as in later tasks (paper)."""
    unit_features: bool = False
    """Divide features by their norm first, and not again in the distance (ViT)."""
    task0_rotation: bool = False
    """Train four rotations of every class at task 0 (the protocol of EFC and AdaGauss)."""
    train_network: bool = True
    """Train the network at task 0; off: use a frozen pretrained one, with `first_task_rule=maha`."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "vit": {
            "method": {
                "tukey": None, "shrink_off_diagonal": 0.0, "shrink_passes": 1, "unit_features": True,
                "train_network": False, "first_task_rule": "maha",
            }
        }
    }  # fmt: skip

    @model_validator(mode="after")
    def _a_head_is_trained(self) -> Self:
        if not self.train_network and self.first_task_rule == "head":
            raise ValueError("without train_network there is no trained head: set method.first_task_rule=maha")
        return self


def tukey(features: Tensor, power: float | None) -> Tensor:
    """x^β element-wise, log(x) for β = 0: less skew in non-negative features. None leaves them alone."""
    if power is None:
        return features
    features = features.clamp_min(0)  # non-negative already; a NaN would hide for ever
    return (features + LOG_GUARD).log() if power == 0 else features.pow(power)


def shrink(cov: Tensor, diagonal: float, off_diagonal: float, *, passes: int = 1, mask_zeros: bool = False) -> Tensor:
    """Σ + γ₁·V₁·I + γ₂·V₂·(J − I), several times over: [..., S, S] → [..., S, S].

    V₂ is the mean over all entries off the diagonal, or with `mask_zeros` over those that are not exactly zero.
    """
    for _ in range(passes):
        if not mask_zeros:
            cov = spd.shrink(cov, diagonal, off_diagonal=off_diagonal)
            continue
        hollow = 1.0 - torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
        live = hollow * (cov != 0)
        mean = (cov * live).sum((-2, -1)) / live.sum((-2, -1)).clamp_min(1)
        cov = spd.shrink(cov, diagonal) + off_diagonal * mean[..., None, None] * hollow
    return cov


class TukeyMemory(Growing):
    """Mean of the raw features of every class, and the covariance of the transformed ones: a packed triangle a class,
    one for all (`common`), variances (`diag`) or nothing (`identity`); float32."""

    means: Tensor
    spreads: Tensor

    def __init__(self, dim: int, config: FeCAMConfig) -> None:
        super().__init__()
        self.dim, self.config = dim, config
        entries = {"diag": dim, "identity": 0}.get(config.covariance, dim * (dim + 1) // 2)
        self.register_buffer("means", torch.zeros(0, dim))
        self.register_buffer("spreads", torch.zeros(0, entries))
        self._readout: readout.QuadraticReadout | None = None

    def set(self, means: Tensor, spreads: Tensor) -> None:
        """Replace all classes: means [C, S]; spreads as stored."""
        self.means, self.spreads, self._readout = means.float(), spreads.float(), None

    def add(self, means: Tensor, spreads: Tensor) -> None:
        """Append classes: means [K, S]; spreads as stored, or the one that replaces the common triangle."""
        old = self.spreads[:0] if self.config.covariance == "common" else self.spreads
        self.set(torch.cat([self.means, means.float()]), torch.cat([old, spreads.float()]))

    def matrices(self, spreads: Tensor) -> Tensor:
        """What the distance inverts, from what is stored of some classes, [c, S, S]: shrunk, then made a correlation
        matrix."""
        config = self.config
        if config.covariance == "identity":
            return torch.eye(self.dim, dtype=torch.float64, device=spreads.device).expand(len(spreads), -1, -1)
        if config.covariance == "common":
            return spd.unpack(spreads.double(), self.dim)
        if config.covariance == "diag":
            factor = (1 + config.shrink_diagonal) ** config.shrink_passes - 1  # all passes at once
            variances = spreads.double()
            shrunk = variances + factor * variances.mean(-1, keepdim=True)
            return torch.diag_embed(normalize(shrunk, dim=-1, eps=NORM_GUARD))
        covs = spd.unpack(spreads.double(), self.dim)
        covs = shrink(
            covs, config.shrink_diagonal, config.shrink_off_diagonal,
            passes=config.shrink_passes, mask_zeros=config.mask_zeros,
        )  # fmt: skip
        return spd.correlation(covs) if config.correlation else covs

    def build(self) -> readout.QuadraticReadout:
        """The factorised distance; v_c is the transform of the mean, not the mean of the transform. Matrices are made a
        few at a time: of 200 classes with 1 280 features all of them, and what shrinking takes, would be 13 GB."""
        if self._readout is None:
            centres = tukey(self.means.double(), self.config.tukey)
            spreads = self.spreads.expand(len(centres), -1) if self.config.covariance == "common" else self.spreads
            normalise = not self.config.unit_features
            self._readout = readout.QuadraticReadout.of(centres, spreads, normalise=normalise, prepare=self.matrices)
        return self._readout

    def distances(self, features: Tensor) -> Tensor:
        """(u − v_c)ᵀ K_c (u − v_c), u and v_c of unit norm: [B, S] → [B, C]; no determinant, no prior."""
        return self.build().distances(self._transformed(features))

    def scores(self, features: Tensor) -> Tensor:
        """Minus these distances."""
        return self.build().scores(self._transformed(features))

    def _transformed(self, features: Tensor) -> Tensor:
        return tukey(prepare(features.double(), self.config), self.config.tukey)

    def bytes_per_class(self) -> int:
        entries = 0 if self.config.covariance == "common" else self.spreads.shape[1]
        return self.means.element_size() * (self.dim + entries)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        self._readout = None
        super()._load_from_state_dict(state_dict, prefix, *args)


def prepare(features: Tensor, config: FeCAMConfig) -> Tensor:
    return normalize(features, dim=-1, eps=NORM_GUARD) if config.unit_features else features


class FeCAM(FeatureMethod[FeCAMConfig]):
    """A backbone frozen after task 0 and a Mahalanobis distance of every class's own."""

    name = "fecam"
    Config = FeCAMConfig
    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}, "optimisation": FIRST_TASK_OPTIMISATION}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.head = CosineHeads(self.feature_dim)  # of task 0
        self.memory = TukeyMemory(self.feature_dim, self.config)
        self.views = 4 if self.config.task0_rotation else 1

    @property
    def network_is_fixed(self) -> bool:
        return not self.config.train_network

    def begin_task(self, task: TaskInfo) -> None:
        if task.index == 0:
            self.make(lambda: self.head.grow(self.views * task.new), "head", 0)

    def phases(self, task: TaskInfo) -> list[Phase]:
        """Task 0 only: nothing is trained later."""
        if task.index > 0 or self.network_is_fixed:
            return []
        return self.first_task(self.head, task, rotate=self.views == 4)

    @torch.no_grad()
    def end_task(self, data: TaskData) -> None:
        config, task = self.config, data.info
        features, labels = extract(self.backbone, data)
        if config.tukey is not None and bool((features < 0).any()):
            raise UserError(
                "FeCAM's power transform needs features without a negative sign: "
                "set backbone.bottleneck=null, or method.tukey=null"
            )
        features = prepare(features.double(), config)
        means = class_means(features, labels - task.old, classes=task.new)
        self.memory.add(means, self._spreads(features, labels - task.old, data))
        repaired = self.memory.build().repaired
        self.note("covariances", repaired=float(repaired.sum()) if repaired is not None else 0.0)

    def _spreads(self, features: Tensor, labels: Tensor, data: TaskData) -> Tensor:
        """What is stored of the transformed features of a task: [K, entries], or [1, entries] for `common`."""
        config, task = self.config, data.info
        if config.covariance == "identity":
            return features.new_zeros(task.new, 0)
        if config.covariance == "common":
            return spd.pack(self._common(data)[None])
        transformed = tukey(features, config.tukey)
        covs = moments.class_moments(transformed, labels, classes=task.new).covariance()
        return covs.diagonal(dim1=-2, dim2=-1) if config.covariance == "diag" else spd.pack(covs)

    def _common(self, data: TaskData) -> Tensor:
        """Σ ← ρ·Σ + (1 − ρ)·Σ⁽ᵗ⁾, ρ = old classes/all; Σ⁽ᵗ⁾ of all augmented features of a task together, shrunk once
        after task 0 (release)."""
        config, task = self.config, data.info
        total = moments.Moments.zeros(self.feature_dim, device=self.device)
        for batch in data.batches("train", purpose="common covariance"):
            features = prepare(self.backbone(batch.images).double(), config)
            total = total.merge(moments.Moments.of(tukey(features, config.tukey)))
        new = total.covariance()
        if task.index == 0:
            return new
        new = shrink(new, config.shrink_diagonal, config.shrink_off_diagonal, mask_zeros=config.mask_zeros)
        share = task.old / task.seen
        return share * spd.unpack(self.memory.spreads.double(), self.feature_dim)[0] + (1 - share) * new

    def feature_scores(self, features: Tensor) -> Tensor:
        classes = len(self.memory.means)
        only_task0 = len(self.head.weight) == self.views * classes
        if self.config.first_task_rule == "head" and only_task0:
            return self.head(features)[:, :classes]
        return self.memory.scores(features)

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()
