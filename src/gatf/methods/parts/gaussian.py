"""What a method can do more when its classifier is one Gaussian per class in the backbone's feature space."""

from abc import ABC, abstractmethod
from typing import Protocol, TypeGuard

from torch import Tensor

from gatf.geometry.gaussians import Gaussians
from gatf.methods.base import ConfigT, Method
from gatf.methods.parts.features import FeatureMethod
from gatf.methods.parts.memory import GaussianMemory
from gatf.settings import MethodConfig


class GaussianMethod(FeatureMethod[ConfigT], ABC):
    """A method that classifies with the Gaussians in its memory, and transports them when the backbone changes."""

    memory: GaussianMemory
    mirrored = True

    @property
    @abstractmethod
    def gaussians_only(self) -> bool: ...

    def feature_scores(self, features: Tensor) -> Tensor:
        return self.memory.scores(features)

    def stored(self) -> Gaussians:
        return self.memory.get()

    def keep(self, stored: Gaussians) -> None:
        """Replace what is stored."""
        self.memory.set(stored)


class GaussianClassifier(Protocol):
    """The part of a method that certificates and novelty scores use."""

    def feature_scores(self, features: Tensor) -> Tensor: ...

    def stored(self) -> Gaussians: ...


def keeps_gaussians_only(method: Method) -> TypeGuard[GaussianClassifier]:
    """Whether between tasks there are only the backbone and one Gaussian per class, whose covariance classes may
    share. Then images can be certified and rejected."""
    return isinstance(method, FeatureMethod) and method.gaussians_only


def transports_gaussians(method: Method) -> TypeGuard[GaussianMethod[MethodConfig]]:
    """Whether these Gaussians follow the network as well. Then the transport's error can be measured, and a class that
    comes back is merged into its transported Gaussian."""
    return isinstance(method, GaussianMethod) and method.gaussians_only
