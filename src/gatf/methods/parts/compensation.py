"""Drift-compensated nearest-mean classification: what SDC, ADC and LDC have in common.

A base learner trains the backbone; a compensator sees the images of the current task through the old and the new
feature network and moves prototypes of the old space into the new one. Neither knows of the other, so that any
compensator can be paired with every base learner of `distillation` and `embedding`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from gatf.errors import near_misses
from gatf.methods.base import Method, Phase, TaskData, TaskInfo
from gatf.methods.parts.distillation import FeatureBaseConfig, LwfBaseConfig
from gatf.methods.parts.embedding import TripletBaseConfig, UnitLength
from gatf.methods.parts.prototypes import Metric, Prototypes
from gatf.methods.parts.stages import LWF_OPTIMISATION
from gatf.settings import MethodConfig

BASES = ("lwf", "feature", "triplet")
Base = Annotated[LwfBaseConfig | FeatureBaseConfig | TripletBaseConfig, Field(discriminator="name")]
Report = dict[str, float]


class DriftConfig(MethodConfig):
    """Drift compensation: how the backbone is trained, and how prototypes classify."""

    base: Base = LwfBaseConfig()
    """How the backbone is trained: by distilling old logits (lwf) or features (feature), or with a triplet loss as in
    SDC's paper (triplet). A name, or a section with the name and its settings."""
    normalise: bool = False
    """Divide features by their length before prototypes and drift are computed; triplet embeddings always are."""
    metric: Metric | None = None
    """Nearest mean between unit vectors (cosine), or between the vectors themselves. Default: euclidean for
    `base=triplet`, else cosine."""
    compensate: bool = True
    """Move old prototypes after each task."""

    def training(self) -> dict[str, Any]:
        """The base learner's settings: prototypes and what moves them come after it."""
        return {"base": self.base.model_dump(mode="json")}

    @field_validator("base", mode="before")
    @classmethod
    def _base_by_name(cls, value: Any) -> Any:
        """A word is the name of a base learner with its defaults; a section without name is of the usual one."""
        section = {"name": value} if isinstance(value, str) else value
        if not isinstance(section, dict):
            return section
        section = {"name": "lwf", **section}
        if section["name"] not in BASES:
            raise ValueError(f"no base learner is called '{section['name']}'{near_misses(section['name'], BASES)}")
        return section

    @model_validator(mode="after")
    def _embeddings_have_length_1(self) -> Self:
        if self.normalise and self.base.unit_length:
            raise ValueError(f"normalise has no effect on base {self.base.name}, whose features have length 1")
        return self


DriftConfigT = TypeVar("DriftConfigT", bound=DriftConfig, covariant=True)


class Compensator(ABC):
    """Moves prototypes [K, D] from the old feature space into the new one. What it has to train for that is made in
    `begin`, trained in `phases` and dropped in `end`; most have nothing to train."""

    def begin(self, method: Method, task: TaskInfo) -> None:
        """Make what is trained in a task after the first."""
        return

    def phases(self, old: nn.Module, new: nn.Module, task: TaskInfo) -> list[Phase]:
        """What is trained once the base learner is done."""
        return []

    @abstractmethod
    def transport(self, prototypes: Tensor, old: nn.Module, new: nn.Module, data: TaskData) -> tuple[Tensor, Report]:
        """The prototypes in the new space, and a report of how it went."""

    def end(self) -> None:
        """Drop what lived for the task."""
        return


class DriftCompensated(Method[DriftConfigT], ABC):
    """Nearest class mean on the features of a base learner; a compensator moves old prototypes into the new space."""

    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}, "optimisation": LWF_OPTIMISATION}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        base = self.config.base
        self.base = base.build(self)
        usual: Metric = "euclidean" if base.unit_length else "cosine"
        self.prototypes = Prototypes(self.base.feature_dim, self.config.metric or usual)
        self.compensator = self.build_compensator(self.base.feature_dim)

    @abstractmethod
    def build_compensator(self, dim: int) -> Compensator:
        """The map that compensates the drift of prototypes with `dim` dimensions."""

    def begin_task(self, task: TaskInfo) -> None:
        self.base.begin(self, task)
        if self._compensates(task):
            self.compensator.begin(self, task)

    def phases(self, task: TaskInfo) -> list[Phase]:
        phases = self.base.phases(self, task)
        if self._compensates(task):
            phases += self.compensator.phases(self._old_network(), self._network(), task)
        return phases

    def end_task(self, data: TaskData) -> None:
        """Compensate while the old network is there, then learn the new classes' means."""
        new = self._network()
        if self._compensates(data.info):
            self.prototypes.means, report = self.compensator.transport(
                self.prototypes.means, self._old_network(), new, data
            )
            self.note(self.name, **report)
        self.prototypes.learn(new, data)
        self.compensator.end()
        self.base.end(self, data)

    def scores(self, images: Tensor) -> Tensor:
        return self.prototypes.scores(self._network()(images))

    def _network(self) -> nn.Module:
        """From images to the features that prototypes are made of."""
        return self._with_unit_length(self.base.network(self))

    def _old_network(self) -> nn.Module:
        """The same of the last task; there is none at task 0."""
        return self._with_unit_length(self.base.teacher)

    def _with_unit_length(self, network: nn.Module) -> nn.Module:
        return nn.Sequential(network, UnitLength()) if self.config.normalise else network

    def _compensates(self, task: TaskInfo) -> bool:
        return self.config.compensate and task.index > 0

    def centres(self) -> Tensor | None:
        own_space = not (self.config.base.unit_length or self.config.normalise)
        return self.prototypes.means if own_space else None

    def reestimated(self, plain: Tensor, mirrored: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor] | None:
        if self.centres() is None:
            return None
        prototypes = deepcopy(self.prototypes)
        for number in labels.unique().tolist():
            prototypes.means[number] = plain[labels == number].double().mean(0)
        return prototypes.scores

    def bytes_per_class(self) -> int:
        return self.prototypes.bytes_per_class()
