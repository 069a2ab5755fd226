"""What a method can do more when its classifier is one Gaussian per class in the backbone's feature space."""

from abc import ABC, abstractmethod
from typing import TypeGuard

from torch import Tensor

from gatf.geometry.gaussians import Gaussians
from gatf.methods.base import ConfigT, Method
from gatf.methods.parts.memory import GaussianMemory
from gatf.settings import MethodConfig


class GaussianMethod(Method[ConfigT], ABC):
    """A method that tells classes apart by the Gaussians in its memory."""

    memory: GaussianMemory
    mirrored = True

    @property
    @abstractmethod
    def gaussians_only(self) -> bool:
        """Whether backbone and Gaussians are all that is kept between tasks, which may depend on the settings."""

    def scores(self, images: Tensor) -> Tensor:
        return self.feature_scores(self.backbone(images))

    def feature_scores(self, features: Tensor) -> Tensor:
        """`scores` from features [B, S] on."""
        return self.memory.scores(features)

    def stored(self) -> Gaussians:
        return self.memory.get()

    def keep(self, stored: Gaussians) -> None:
        """Replace what is stored."""
        self.memory.set(stored)


def keeps_gaussians_only(method: Method) -> TypeGuard[GaussianMethod[MethodConfig]]:
    """Whether between tasks there is nothing but the backbone and one Gaussian per class. Then images can be certified
    and rejected, the transport's error can be measured, and a class that comes back is merged into what is stored."""
    return isinstance(method, GaussianMethod) and method.gaussians_only
