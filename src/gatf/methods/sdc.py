"""SDC (Yu et al., "Semantic Drift Compensation for Class-Incremental Learning", CVPR 2020).

On the LwF-trained backbone of later comparisons (ADC, LDC and DPCR papers), or on the paper's embedding networks.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gatf.geometry.readout import nearest_mean_distances
from gatf.methods.base import TaskData
from gatf.methods.parts.compensation import DriftCompensated, DriftConfig, Report
from gatf.settings import NotNegative, Positive

KERNEL_ELEMENTS = 4 * 2**20
"""Weights [prototypes, samples] computed at once (32 MB)."""
FLOOR = 1e-5
"""ε of the kernel on features that are no embeddings."""


def _adam(lr: float) -> dict[str, Any]:
    """The paper's optimiser for every task."""
    stage = {
        "optimiser": "adam", "lr": lr, "weight_decay": 2e-4, "schedule": "constant", "epochs": 51,
        "batch_size": 32, "clip": None, "warmup": 0.0, "drop_last": True,
    }  # fmt: skip
    return {"first": stage, "next": stage}


class SDCConfig(DriftConfig):
    name: str = "sdc"
    preset: Literal["comparison", "paper", "paper_pretrained"] = "comparison"
    """On LwF, as in later comparisons; or on a triplet loss as in the paper, for networks trained from scratch or from
    ImageNet's weights (CUB)."""
    sigma: Positive = 0.3
    """Width σ of the kernel around a prototype (paper: 0.2 for CIFAR-100, else 0.3)."""
    floor: NotNegative | None = None
    """ε, added to every kernel weight: a prototype far from all samples follows their mean drift. Default: 1e-5; for
    `base=triplet` 0, as in the paper."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"method": {"base": {"name": "triplet", "softmax_epochs": 200}}, "optimisation": _adam(1e-6)},
        "paper_pretrained": {
            "method": {"base": {"name": "triplet", "embedding_init": "fan_out", "triplets": "hard", "fix_bn": False}},
            "optimisation": _adam(1e-5),
        },
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


class SDC(DriftCompensated[SDCConfig]):
    """Nearest class mean; old prototypes move by the drift of current images around them."""

    name = "sdc"
    Config = SDCConfig

    @property
    def floor(self) -> float:
        usual = 0.0 if self.config.base.unit_length else FLOOR
        return usual if self.config.floor is None else self.config.floor

    @torch.no_grad()
    def moved(self, prototypes: Tensor, old: nn.Module, new: nn.Module, data: TaskData) -> tuple[Tensor, Report]:
        pairs = [(old(batch.images), new(batch.images)) for batch in data.batches("test")]
        before, after = (torch.cat(features) for features in zip(*pairs, strict=True))
        shift, sizes = sdc_shift(before, after, prototypes, sigma=self.config.sigma, floor=self.floor)
        report = {
            "samples": float(len(before)),
            "effective_min": float(sizes.min()),
            "effective_median": float(sizes.median()),
            "effective_max": float(sizes.max()),
            "shift": float(shift.norm(dim=1).mean()),
        }
        return (prototypes.double() + shift).float(), report
