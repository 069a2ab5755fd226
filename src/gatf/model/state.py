"""The state of a classifier that gains classes: everything prediction and the next update need, and no image."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeGuard

import torch
from torch import Tensor, nn

from gatf.config import RunConfig
from gatf.data.base import ImageSet
from gatf.data.loader import views
from gatf.data.preprocessing import Preprocessing
from gatf.errors import UserError
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.leave_one_out import LeaveOneOut
from gatf.methods import Method
from gatf.methods.parts.features import FeatureMethod
from gatf.methods.parts.gaussian import keeps_gaussians_only
from gatf.methods.slda import SLDA
from gatf.model.certificate import Certifier
from gatf.model.novelty import NoveltyScorer, energy, nearness
from gatf.model.record import UpdateRecord

Label = str | int | bool
FROZEN_METHOD = "slda"
"""The classifier on a frozen backbone: exact in any class order, with Gaussians for certificates and novelty."""


@dataclass(frozen=True)
class ForwardOutput:
    """Output of one forward pass over N images."""

    scores: Tensor
    """[N, C], float64, higher is better."""
    features: Tensor | None
    """[N, S]; None unless they were requested or the method keeps Gaussians only."""


def leaves_out(method: Method) -> TypeGuard[SLDA]:
    """Whether an update measures the classifier on all its images, each left out in turn: linear discriminants on a
    backbone that no task trains."""
    return isinstance(method, SLDA) and method.network_is_fixed


@dataclass(frozen=True)
class Model:
    """A classifier after some updates. It does not change: an update makes a new one."""

    config: RunConfig
    preprocessing: Preprocessing
    method: Method
    labels: tuple[Label, ...]
    """The classes in the order in which they were learnt."""
    counts: Tensor
    """Images each class was learnt from, int64 [C]."""
    temperature: float
    calibration: Tensor
    """`calibration.calibration_sums` of held-out images; sums add up over updates while the backbone is frozen."""
    errors: Tensor
    """Error of each class's stored mean after the last update, in the certifier's metric, float64 [C]; empty where it
    was not measured, as in a run."""
    novelty: Tensor
    """`novelty_of` held-out images of all updates, for `rejection_threshold`, float32 [M, 1 or 2]."""
    history: tuple[UpdateRecord, ...]
    adapts: str | None = None
    """The method that may adapt a pretrained backbone, where updates choose (`incremental.strategy`); else None."""
    adapt: str = "never"
    """"auto": later updates compare an adapted backbone with the frozen one, unless a parameter says otherwise."""
    measured: Tensor = field(default_factory=lambda: torch.zeros(0, 3, dtype=torch.float64))
    """`incremental.statistics.Measured`; without rows in a model that no update measured."""
    lineage: str = ""
    """Identifies the first fit of this model; empty until `model.file.with_lineage` sets it."""
    frozen: "Model | None" = None
    """The same classes on the backbone before it was adapted: the next update can return to it."""

    @cached_property
    def stored(self) -> Gaussians:
        """One Gaussian per class, on the CPU; a `UserError` where the method does not keep Gaussians only."""
        if not keeps_gaussians_only(self.method):  # nor was the transport's error measured: nothing could be certified
            raise UserError(
                f"certificates need a method that keeps Gaussians only, and '{self.config.method.name}' does not; use "
                "gatf, adagauss or slda"
            )
        return self.method.stored().to("cpu")

    @cached_property
    def certifier(self) -> Certifier:
        class_errors = self.history[-1].class_errors if self.history else None
        return Certifier(self.stored, self.errors, class_errors)

    @property
    def transported(self) -> bool:
        """Whether the last update transported statistics of older classes, so that there is an error to certify."""
        return bool((self.errors > 0).any())

    @cached_property
    def _left_out(self) -> LeaveOneOut:
        assert isinstance(self.method, SLDA)
        return self.method.leave_one_out()

    @cached_property
    def novelty_scorer(self) -> NoveltyScorer:
        return NoveltyScorer(self.stored)

    def novelty_of(self, outputs: ForwardOutput) -> Tensor:
        """Novelty scores of images, [N, 1 or 2]: from their features where the method keeps Gaussians only, else their
        energy. Where images are left out, the squared distance to the nearest class over that to the centre of all, by
        the covariance of the classifier; model files written before that have two scores."""
        if outputs.features is not None and leaves_out(self.method) and self.novelty.shape[1] == 1:
            return nearness(self._left_out.distances(outputs.features))
        if outputs.features is not None and keeps_gaussians_only(self.method):
            return self.novelty_scorer.scores(outputs.features)
        return energy(outputs.scores, self.temperature)

    @property
    def updates(self) -> int:
        """Number of fits and partial fits; the history may keep fewer records."""
        return self.history[-1].number + 1 if self.history else 0

    @property
    def rejection(self) -> str:
        """Whether the rate of wrong rejections is promised, estimated or withdrawn; see `UpdateRecord.rejection`."""
        if not self.history or self.history[-1].rejection is None:
            later = self.history[1:]
            revisited = any(record.classes_revisited for record in later)
            return "withdrawn" if revisited else "estimated" if self.updates > 1 else "promised"
        return self.history[-1].rejection

    @cached_property
    def _backbone(self) -> nn.Module:
        """A frozen copy, faster than the method's own backbone, which can still be trained."""
        return self.method.frozen_copy(self.method.backbone)

    @torch.no_grad()
    def forward(self, images: ImageSet, *, features: bool = False, once: bool = False) -> ForwardOutput:
        """Scores and features of images in the model's shape; `features` requests them for every method.

        `once`: use the backbone itself; for a few images that is faster than making the frozen copy first.
        """
        method = self.method.eval()
        scores, found = [], []
        everything = torch.arange(len(images))
        for inputs in views(images, everything, self.preprocessing.pipeline(self.config.data), method.device):
            if features or isinstance(method, FeatureMethod):
                seen = (method.backbone if once else self._backbone.to(method.device))(inputs)
                found.append(seen.cpu())
            if isinstance(method, FeatureMethod):
                scores.append(method.feature_scores(seen).double().cpu())
            else:
                scores.append(method.scores(inputs).double().cpu())
        wanted = features or keeps_gaussians_only(method)
        return ForwardOutput(torch.cat(scores), torch.cat(found) if wanted else None)
