"""Streaming linear discriminant analysis (Hayes & Kanan: "Lifelong Machine Learning with Deep Streaming Linear
Discriminant Analysis", CVPR Workshops 2020). The release adds the identity with a weight of 1e-4; here shrinkage is
relative to the mean variance, so that it means the same whatever the scale of the features."""

from typing import Any

from gatf.geometry.gaussians import Gaussians
from gatf.geometry.leave_one_out import LeaveOneOut
from gatf.methods.parts.closed_form import Discriminant, LinearRule, MomentMemory, SeparableConfig


class SLDAConfig(SeparableConfig):
    name: str = "slda"


class SLDA(Discriminant[SLDAConfig]):
    """Gaussians with one covariance for all classes, of which the likeliest answers."""

    name = "slda"
    Config = SLDAConfig
    gaussians_only = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.memory = MomentMemory(self.feature_dim, parts=self.config.keep_scatter)
        self.rule = LinearRule(self.feature_dim)

    def leave_one_out(self) -> LeaveOneOut:
        """How the rule classifies learnt vectors that it is solved without."""
        total = self.memory.get()
        share = total.noise_share() if self.config.shrinkage is None else self.config.shrinkage
        return LeaveOneOut(total, share, allows_for_noise=self.config.few_images)

    def stored(self) -> Gaussians:
        return Gaussians.sharing(self.memory.means, self.memory.get().covariance())
