"""SDC (Yu et al., "Semantic Drift Compensation for Class-Incremental Learning", CVPR 2020).

On the LwF-trained backbone of later comparisons (ADC, LDC and DPCR papers), on feature distillation, or on the paper's
embedding networks.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gatf.geometry.readout import nearest_mean_distances
from gatf.methods.base import Method, Phase, TaskData, TaskInfo
from gatf.methods.parts.compensation import PrototypeConfig, Report
from gatf.methods.parts.embedding import UnitLength
from gatf.methods.parts.prototypes import Prototypes
from gatf.methods.parts.stages import LWF_OPTIMISATION
from gatf.settings import NotNegative, Positive

KERNEL_ELEMENTS = 4 * 2**20
"""Weights [prototypes, samples] computed at once (32 MB)."""


class SDCConfig(PrototypeConfig):
    name: Literal["sdc"] = "sdc"
    preset: Literal["comparison", "paper", "paper_pretrained"] = "comparison"
    """As in later comparisons, on LwF; or as in the paper, on a triplet loss: for networks trained from nothing
    (CIFAR-100, ImageNet-Subset), or from ImageNet's weights (CUB; Flowers and Cars differ in rate and epochs)."""
    sigma: Positive = 0.3
    """Width σ of the kernel around a prototype, in units of the features (the paper: 0.2 for CIFAR-100, 0.3 else)."""
    floor: NotNegative = 1e-5
    """ε, added to every kernel weight: far from all samples a prototype follows their mean drift (0: the nearest's).
    Triplet: 0, as in the paper."""
    normalise: bool = False
    """Divide features by their length before prototypes, kernel and drift are computed (embeddings always are)."""

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        def trained(lr: float) -> dict[str, Any]:
            stage = {
                "optimiser": "adam", "lr": lr, "weight_decay": 2e-4, "schedule": "constant", "epochs": 51,
                "batch_size": 32, "clip": None, "warmup": 0.0, "drop_last": True,
            }  # fmt: skip
            return {"optimisation": {"first": stage, "next": stage}}

        pretrained = {"base": "triplet", "embedding_init": "fan_out", "triplets": "hard", "fix_bn": False}
        return {
            "paper": {"method": {"base": "triplet", "softmax_epochs": 200}, **trained(1e-6)},
            "paper_pretrained": {"method": pretrained, **trained(1e-5)},
        }


def sdc_shift(old: Tensor, new: Tensor, prototypes: Tensor, *, sigma: float, floor: float) -> tuple[Tensor, Tensor]:
    """Semantic drift at each prototype (Yu et al., CVPR 2020): Δ_c = Σ_i w_ci δ_i / Σ_i w_ci, δ = new − old,
    w_ci = exp(−‖old_i − μ_c‖²/2σ²) + floor.

    Features [N, D] of the same images in the same order, prototypes [C, D] → Δ [C, D] and the effective sample size
    1/Σŵ² [C], in float64. Without floor the weights are a softmax, so that far prototypes do not give 0/0.
    """
    old, new, prototypes = old.double(), new.double(), prototypes.double()
    drift = new - old
    shifts, sizes = [], []
    for chunk in prototypes.split(max(1, KERNEL_ELEMENTS // max(1, len(old)))):
        exponents = -nearest_mean_distances(old, chunk).T / (2 * sigma**2)  # [c, N]
        if floor == 0:
            weights = exponents.softmax(dim=1)
        else:
            weights = exponents.exp() + floor
            weights = weights / weights.sum(dim=1, keepdim=True)
        shifts.append(weights @ drift)
        sizes.append(1 / weights.square().sum(dim=1))
    return torch.cat(shifts), torch.cat(sizes)


@dataclass(frozen=True)
class SemanticDrift:
    """SDC: the drift of current images, interpolated at the prototypes."""

    sigma: float
    floor: float

    @torch.no_grad()
    def transport(self, prototypes: Tensor, old: nn.Module, new: nn.Module, data: TaskData) -> tuple[Tensor, Report]:
        old.eval()
        new.eval()
        pairs = [(old(batch.images), new(batch.images)) for batch in data.batches("test")]
        before, after = (torch.cat(features) for features in zip(*pairs, strict=True))
        shift, sizes = sdc_shift(before, after, prototypes, sigma=self.sigma, floor=self.floor)
        report = {
            "samples": float(len(before)),
            "effective_min": float(sizes.min()),
            "effective_median": float(sizes.median()),
            "effective_max": float(sizes.max()),
            "shift": float(shift.norm(dim=1).mean()),
        }
        return (prototypes.double() + shift).float(), report


class SDC(Method):
    """Nearest class mean; old prototypes move by the drift of current images around them."""

    name = "sdc"
    Config = SDCConfig
    summary = "prototypes moved by the drift of nearby current images (CVPR 2020)"
    paper = "Yu et al., Semantic Drift Compensation for Class-Incremental Learning, CVPR 2020"
    keeps = "a prototype of each class"
    trains = "backbone and cosine head (LwF)"
    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}, "optimisation": LWF_OPTIMISATION}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.base = self.config.build_base(self)
        self.prototypes = Prototypes(self.config.dim(self.feature_dim), self.config.metric)
        self.compensator = SemanticDrift(self.config.sigma, self.config.floor)

    def begin_task(self, task: TaskInfo) -> None:
        self.base.begin(self, task)

    def phases(self, task: TaskInfo) -> list[Phase]:
        return self.base.phases(self, task)

    def end_task(self, data: TaskData) -> None:
        """Compensate while the old network is there, then learn the new classes' means."""
        if data.info.index > 0 and self.config.compensate:
            old, new = self._features(self.base.teacher), self._features(self.base.network(self))
            self.prototypes.means, report = self.compensator.transport(self.prototypes.means, old, new, data)
            self.note("sdc", **report)
        self.prototypes.learn(self._features(self.base.network(self)), data)
        self.base.end(self, data)

    def scores(self, images: Tensor) -> Tensor:
        return self.prototypes.scores(self._features(self.base.network(self))(images))

    def _features(self, net: nn.Module) -> nn.Module:
        return nn.Sequential(net, UnitLength()) if self.config.normalise else net

    def centres(self) -> Tensor | None:
        own_space = self.config.in_backbone_space and not self.config.normalise
        return self.prototypes.means if own_space else None

    def bytes_per_class(self) -> int:
        return self.prototypes.bytes_per_class()
