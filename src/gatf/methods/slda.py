"""Streaming linear discriminant analysis (Hayes & Kanan: "Lifelong Machine Learning with Deep Streaming Linear
Discriminant Analysis", CVPR Workshops 2020). The release adds the identity with a weight of 1e-4; here shrinkage is
relative to the mean variance, so that it means the same whatever the scale of the features."""

from typing import Any

from torch import Tensor

from gatf.geometry.gaussians import Gaussians
from gatf.geometry.readout import linear_discriminant
from gatf.methods.base import TaskInfo
from gatf.methods.card import MethodCard
from gatf.methods.parts.closed_form import ClosedForm, ClosedFormConfig, LinearRule, MomentMemory
from gatf.settings import Fraction


class SLDAConfig(ClosedFormConfig):
    name: str = "slda"
    shrinkage: Fraction | None = None
    """How far the covariance is pulled towards the identity times its mean variance, 0 to 1 (1: nearest mean). Default:
    √S/(√S + √n), for S dimensions and n images less one of each class."""
    few_images: bool = True
    """Allow for the noise in the mean of a class of few images, which otherwise loses against classes of many (off: as
    published)."""


class SLDA(ClosedForm[SLDAConfig]):
    """Gaussians with one covariance for all classes, of which the likeliest answers."""

    name = "slda"
    Config = SLDAConfig
    gaussians_only = True
    card = MethodCard(
        summary="frozen backbone; linear discriminant from running means and one covariance (CVPR-W 2020)",
        when="first, when the network is pretrained",
        keeps="mean and count of each class; one covariance for all",
        trains="backbone at task 0, unless its weights are pretrained; later nothing",
        authors=("Tyler L. Hayes", "Christopher Kanan"),
        title="Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis",
        venue="CVPR Workshops",
        year=2020,
        url="https://arxiv.org/abs/1909.01520",
    )  # fmt: skip

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.memory = MomentMemory(self.feature_dim)
        self.rule = LinearRule(self.feature_dim)

    def learn(self, features: Tensor, labels: Tensor, task: TaskInfo) -> None:
        total = self.memory.add(features, labels, classes=task.seen)
        share = total.noise_share() if self.config.shrinkage is None else self.config.shrinkage
        counts = total.counts if self.config.few_images else None
        self.rule.set(linear_discriminant(total.means, total.covariance(), share, counts))
        self.note("discriminant", shrinkage=share)

    def feature_scores(self, features: Tensor) -> Tensor:
        scores: Tensor = self.rule(features)
        return scores

    def stored(self) -> Gaussians:
        return Gaussians.sharing(self.memory.means, self.memory.get().covariance())

    def bytes_per_class(self) -> int:
        return self.memory.bytes_per_class()
