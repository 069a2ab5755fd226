"""The state of a classifier that gains classes: everything prediction and the next update need, and no image."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from gatf.config import RunConfig
from gatf.data.base import ImageSet
from gatf.data.loader import views
from gatf.errors import UserError
from gatf.methods import Method
from gatf.methods.parts.features import FeatureMethod
from gatf.methods.parts.gaussian import keeps_gaussians_only
from gatf.model.judge import Judge, energy
from gatf.model.record import UpdateRecord
from gatf.session import Preprocessing

Label = str | int | bool
FROZEN_METHOD = "slda"
"""What answers on a frozen network: exact, whatever the order of classes, and with Gaussians to judge answers by."""


@dataclass(frozen=True)
class ForwardOutput:
    """What a model sees in images."""

    scores: Tensor
    """[N, C], float64, higher is better."""
    features: Tensor | None
    """[N, S]; None where they were not asked for and the method keeps no Gaussians alone to compare them with."""


@dataclass(frozen=True)
class Model:
    """A classifier after some updates. An update makes a new one; this one stays as it is."""

    config: RunConfig
    preprocessing: Preprocessing
    method: Method
    labels: tuple[Label, ...]
    """The classes in the order in which they were learnt."""
    counts: Tensor
    """Images each class was learnt from, int64 [C]."""
    temperature: float
    calibration: Tensor
    """What held-out images said of temperatures, which more can be added to while the network stays; see
    `judge.calibration`."""
    errors: Tensor
    """How far the stored mean of each class may be off after the last update, in the judge's metric, float64 [C]; empty
    where nobody measured it, as in a run."""
    novelty: Tensor
    """`novelty_of` held-out images of all updates, for `rejection_threshold`, float32 [M, 1 or 2]."""
    history: tuple[UpdateRecord, ...]
    adapts: str | None = None
    """The method that may adapt a pretrained network, where updates choose (`incremental.adapt`); None: they do not."""
    lineage: str = ""
    """Names the first fit that this model goes back to; empty until `model.file.with_lineage` has seen that one."""
    frozen: "Model | None" = None
    """The same classes on the network as it was before it was adapted: what the next update can go back to."""

    @cached_property
    def judge(self) -> Judge:
        if not keeps_gaussians_only(self.method):  # nor was the transport's error measured: nothing could be certified
            raise UserError(
                f"method '{self.config.method.name}' keeps no Gaussians alone, which certificates need; use gatf, "
                "adagauss or slda"
            )
        class_errors = self.history[-1].class_errors if self.history else None
        return Judge(self.method.stored().to("cpu"), self.errors, class_errors)

    def novelty_of(self, outputs: ForwardOutput) -> Tensor:
        """How unlike everything known images are, [N, 1 or 2]: by where their features lie among the classes, or by how
        little any class speaks for them where the method keeps no Gaussians alone."""
        if outputs.features is not None and keeps_gaussians_only(self.method):
            return self.judge.novelty(outputs.features)
        return energy(outputs.scores, self.temperature)

    @property
    def updates(self) -> int:
        """Fits and partial fits so far; the history may have forgotten some."""
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
        """Quicker to run than the method's, which can still be trained."""
        return self.method.frozen_copy(self.method.backbone)

    @torch.no_grad()
    def forward(self, images: ImageSet, *, features: bool = False, once: bool = False) -> ForwardOutput:
        """Scores and features of images in the model's shape; `features` asks for them whatever the method keeps.

        `once`: these images and no others, so few that the network is better used as it is than made quicker first.
        """
        method = self.method.eval()
        scores, found = [], []
        everything = torch.arange(len(images))
        for inputs in views(images, everything, self.preprocessing.pipeline(self.config), method.device):
            if features or isinstance(method, FeatureMethod):
                seen = (method.backbone if once else self._backbone.to(method.device))(inputs)
                found.append(seen.cpu())
            if isinstance(method, FeatureMethod):
                scores.append(method.feature_scores(seen).double().cpu())
            else:
                scores.append(method.scores(inputs).double().cpu())
        wanted = features or keeps_gaussians_only(method)
        return ForwardOutput(torch.cat(scores), torch.cat(found) if wanted else None)
