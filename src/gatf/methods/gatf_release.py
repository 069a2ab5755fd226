"""GATF as the authors' released code runs it. It differs from the paper (`methods/gatf.py`) in several places:

- the residual starts with every layer zero, so only its output bias can learn;
- the anchor is a plain ridge regression, and its running average is not corrected for its start;
- the loss has cycle-consistency and pairwise cosine terms, and optionally a feature perturbation at task 0;
- the Gaussians are transported by plain samples, and a tenth of the training images is held out.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gatf.geometry import anchor
from gatf.geometry.moments import PairedMoments
from gatf.methods.base import Batch, TaskInfo
from gatf.methods.parts.anchor import RunningAnchorConfig
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.losses import task_batch, whole_rows
from gatf.methods.parts.mapped import AnchoredConfig, AnchoredMap
from gatf.nets.mlp import dead_residual
from gatf.settings import AffectsLaterTasksOnly, AffectsReadoutOnly, NotNegative

PAIRWISE_ROWS = 128
"""Rows of a batch that the pairwise term compares."""


class GATFReleaseConfig(AnchoredConfig):
    name: str = "gatf-release"
    anchor: AffectsLaterTasksOnly[RunningAnchorConfig] = RunningAnchorConfig()
    """The anchor, a ridge regression from old to new features."""
    cycle: AffectsLaterTasksOnly[NotNegative] = 2.0
    """Weight of the cycle-consistency terms."""
    pairwise: AffectsLaterTasksOnly[NotNegative] = 0.05
    """Weight of the pairwise cosine terms."""
    perturb: NotNegative = 0.0
    """Step of the feature perturbation that trains the head at task 0 (0.5 in the CUB-200 script)."""
    matched_noise: AffectsReadoutOnly[bool] = False
    """Draw mirrored pairs; the release draws independent samples."""

    def first_training(self) -> dict[str, Any]:
        """Task 0 is trained as in AdaGauss, unless features are perturbed."""
        own = super().first_training()
        if not self.perturb:
            del own["perturb"]
            own["name"] = "adagauss"
        return own


def cosines(features: Tensor) -> Tensor:
    """Cosine similarities of the first rows of a batch, [B, S] → [rows, rows]."""
    unit = nn.functional.normalize(features[:PAIRWISE_ROWS], dim=1)
    return unit @ unit.T


def perturbation_terms(
    head: nn.Module, features: Tensor, labels: Tensor, *, step: float, rows: int
) -> dict[str, Tensor]:
    """Task-0 feature perturbation of the CUB-200 script: the cross-entropy of features moved by `step` along its
    normalised gradient, and the mean norm of the gradient there, for a loss that is the mean over all `rows`.

    The moved features are constants, so only the head learns from either term.
    """
    start = features.detach().requires_grad_()
    (uphill,) = torch.autograd.grad(cross_entropy(head(start), labels, reduction="sum"), start)
    moved = (start + step * nn.functional.normalize(uphill, dim=1)).detach().requires_grad_()
    loss = cross_entropy(head(moved), labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, moved, create_graph=True)
    return {"adversarial": loss / len(labels), "gradient_norm": gradient.norm(dim=1).mean() / rows}


class GATFRelease(AnchoredMap[GATFReleaseConfig]):
    """GATF with the deviations of the authors' release."""

    name = "gatf-release"
    Config = GATFReleaseConfig
    bias_correct = False
    defaults: ClassVar[dict[str, Any]] = {"data": {"val_fraction": 0.1}}

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """The paper's terms, cycle consistency and pairwise cosines; at task 0 optionally the perturbation."""
        config = self.config
        images, labels = task_batch(batch, task, self.rotates(task))
        new = self.features(batch, images)
        terms = {"ce": cross_entropy(self.head(new), labels)}
        if task.index > 0:
            old = frozen_features(self.teacher, images)
            back, moved, target = self.distiller(new), self.map(old), new.detach()
            terms["forward"] = config.topology * mse_loss(moved, target)
            terms["backward"] = config.topology * mse_loss(back, old)
            if config.cycle:
                there = mse_loss(self.map(back.detach()), target)
                home = mse_loss(self.distiller(moved.detach()), old)
                terms["cycle"] = config.cycle * (there + home)
            if config.pairwise:
                pairs = mse_loss(cosines(moved), cosines(target)) + mse_loss(cosines(back), cosines(old))
                terms["pairwise"] = config.pairwise * pairs
        elif config.perturb:
            terms |= perturbation_terms(self.head, new, labels, step=config.perturb, rows=whole_rows(new, batch))
        return terms | self.collapse_term(new, batch)

    def anchor_settings(self) -> RunningAnchorConfig:
        return self.config.anchor

    def fit_anchor(self, pairs: PairedMoments) -> anchor.Affine:
        return anchor.fit_anchor(pairs, self.config.anchor.ridge, kind="ridge")

    def build_residual(self) -> nn.Module:
        return dead_residual(self.feature_dim, self.config.map.expansion)

    def trained_maps(self) -> dict[str, nn.Module]:
        return {"distiller": self.distiller, "residual": self.residual}
