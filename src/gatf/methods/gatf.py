"""GATF (Xu & Krawczyk, "Geometry-Anchored Transport Framework for EFCIL", ECCV 2026): the paper's method.

Backbone, heads, rotation, warm-up, Gaussians and classifier are AdaGauss's; GATF adds the transport. `parts/mapped.py`
has what surrounds the equations: the map A_t, its phases, the refresh of the anchor every K epochs.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gatf.geometry import anchor
from gatf.geometry.moments import PairedMoments
from gatf.methods.base import Batch, TaskData, TaskInfo
from gatf.methods.parts.anchor import AnchorConfig
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.losses import task_batch
from gatf.methods.parts.mapped import AnchoredConfig, AnchoredMap
from gatf.nets.mlp import feature_mlp, zero_residual
from gatf.settings import AffectsLaterTasksOnly, AffectsReadoutOnly, NotNegative


class GATFConfig(AnchoredConfig):
    name: str = "gatf"
    preset: AffectsReadoutOnly[Literal["paper", "plus"]] = "paper"
    """The paper's settings, or those that did best on validation images with equal memory per class."""
    anchor: AffectsLaterTasksOnly[AnchorConfig] = AnchorConfig()
    """The Analytic Geometric Anchor."""
    top_aware: AffectsLaterTasksOnly[bool] = True
    """Train the map old → new and its inverse together with the backbone. Off: AdaGauss's distillation."""
    distill: AffectsLaterTasksOnly[NotNegative] = 10.0
    """Weight of the distillation when `top_aware` is off."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "plus": {"method": {"topology": 1.0, "anchor": {"kind": "identity", "final_refresh": True}, "readout": "rda"}}
    }

    def first_training(self) -> dict[str, Any]:
        """Task 0 is trained as in AdaGauss."""
        return super().first_training() | {"name": "adagauss"}

    @model_validator(mode="after")
    def _map_is_trained(self) -> "GATFConfig":
        if not (self.top_aware or self.anchor.kind != "none" or self.refine):
            raise ValueError("nothing trains the map with top_aware=false and anchor.kind=none; set refine=true")
        return self


class GATF(AnchoredMap[GATFConfig]):
    """The map A_t = anchor + residual is trained together with the backbone; a distiller maps back."""

    name = "gatf"
    Config = GATFConfig

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """L = L_CE + λ_top·(L_forward + L_backward) + α·L_AC(z_new); squares are means over batch and coordinates."""
        config = self.config
        images, labels = task_batch(batch, task, self.rotates(task))
        new = self.features(batch, images)  # [B, S]
        terms = {"ce": cross_entropy(self.head(new), labels)}
        if task.index > 0:
            old = frozen_features(self.teacher, images)  # [B, S]
            # L_backward = ‖D(z_new) − z_old‖²: trains the distiller and the backbone
            backward = mse_loss(self.distiller(new), old)
            if config.top_aware:
                # L_forward = ‖g(z_old) − sg(z_new − Ā_lin(z_old))‖²: trains the residual g alone
                terms["forward"] = config.topology * mse_loss(self.map(old), new.detach())
                terms["backward"] = config.topology * backward
            else:
                terms["distill"] = config.distill * backward
        return terms | self.collapse_term(new, batch)

    def anchor_settings(self) -> AnchorConfig | None:
        return None if self.config.anchor.kind == "none" else self.config.anchor

    def fit_anchor(self, pairs: PairedMoments) -> anchor.Affine:
        """P Σ_o + ρ Σ_n P = Cov(z_new, z_old), b = μ_n − P μ_o (Eq. 5, Theorem 1)."""
        kind: Literal["sylvester", "identity"] = "identity" if self.config.anchor.kind == "identity" else "sylvester"
        return anchor.fit_anchor(pairs, self.config.anchor.ridge, kind=kind)

    def build_residual(self) -> nn.Module:
        """g, which starts at zero on an anchor and takes its place without one."""
        build = feature_mlp if self.anchor_settings() is None else zero_residual
        return build(self.feature_dim, self.config.map.expansion)

    def trained_maps(self) -> dict[str, nn.Module]:
        return {"distiller": self.distiller} | ({"residual": self.residual} if self.config.top_aware else {})

    def transport(self, data: TaskData) -> None:
        """Push the old Gaussians through A_t, with a last estimate of the anchor if the config asks for it."""
        if self.config.anchor.final_refresh and self.anchor is not None:
            self.anchor.update(self.estimate_anchor(data, 0, "final anchor", self.residual), restart=True)
        super().transport(data)

    def transported(self, old: Tensor, phase: str) -> Tensor | None:
        trained = self.config.top_aware or self.config.anchor.kind != "none" or phase == "adapter"
        return self.map(old) if trained else None
