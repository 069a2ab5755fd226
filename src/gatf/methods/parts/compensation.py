"""Drift-compensated nearest-mean classification: what SDC, ADC and LDC have in common.

A base learner trains the backbone; the method sees the images of the current task through the old and the new feature
network and moves prototypes of the old space into the new one. Any of these methods works with any base learner of
`distillation` and `embedding`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, field_validator
from torch import Tensor, nn

from gatf.errors import near_misses
from gatf.methods.base import Method, Phase, TaskData, TaskInfo
from gatf.methods.parts.distillation import LwfBaseConfig
from gatf.methods.parts.embedding import TripletBaseConfig
from gatf.methods.parts.prototypes import Metric, Prototypes
from gatf.methods.parts.stages import LWF_OPTIMISATION
from gatf.settings import MethodConfig

BASES = ("lwf", "triplet")
Base = Annotated[LwfBaseConfig | TripletBaseConfig, Field(discriminator="name")]
Report = dict[str, float]


class DriftConfig(MethodConfig):
    """Drift compensation: how the backbone is trained, and how prototypes classify."""

    base: Base = LwfBaseConfig()
    """How the backbone is trained: by distilling old logits (lwf), or with a triplet loss as in SDC's paper (triplet).
    A name, or a section with the name and its settings."""
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


DriftConfigT = TypeVar("DriftConfigT", bound=DriftConfig, covariant=True)


class DriftCompensated(Method[DriftConfigT], ABC):
    """Nearest class mean on the features of a base learner; old prototypes are moved into the new feature space."""

    defaults: ClassVar[dict[str, Any]] = {"backbone": {"bottleneck": None}, "optimisation": LWF_OPTIMISATION}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        base = self.config.base
        self.base = base.build(self)
        usual: Metric = "euclidean" if base.unit_length else "cosine"
        self.prototypes = Prototypes(self.base.feature_dim, self.config.metric or usual)

    @abstractmethod
    def moved(self, prototypes: Tensor, old: nn.Module, new: nn.Module, data: TaskData) -> tuple[Tensor, Report]:
        """Prototypes [K, D] of the old feature network in the space of the new one, and a report of how it went."""

    def begin_task(self, task: TaskInfo) -> None:
        self.base.begin(self, task)

    def phases(self, task: TaskInfo) -> list[Phase]:
        return self.base.phases(self, task)

    def end_task(self, data: TaskData) -> None:
        """Compensate while the old network is there, then learn the new classes' means."""
        new = self.base.network(self)
        if self.compensates(data.info):
            self.base.teacher.eval()
            new.eval()
            self.prototypes.means, report = self.moved(self.prototypes.means, self.base.teacher, new, data)
            self.note(self.name, **report)
        self.prototypes.learn(new, data)
        self.drop_task_modules()
        self.base.end(self, data)

    def scores(self, images: Tensor) -> Tensor:
        return self.prototypes.scores(self.base.network(self)(images))

    def compensates(self, task: TaskInfo) -> bool:
        return self.config.compensate and task.index > 0

    def centres(self) -> Tensor | None:
        return None if self.config.base.unit_length else self.prototypes.means

    def reestimated(self, plain: Tensor, mirrored: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor] | None:
        if self.config.base.unit_length:
            return None
        prototypes = deepcopy(self.prototypes)
        for number in labels.unique().tolist():
            prototypes.means[number] = plain[labels == number].double().mean(0)
        return prototypes.scores

    def bytes_per_class(self) -> int:
        return self.prototypes.bytes_per_class()
