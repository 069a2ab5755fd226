"""The contract of a method. The loop runs its phases; a method never opens a data set, never logs and never knows
where it runs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, overload

import torch
from torch import Tensor, nn

from gatf.data.loader import Batch, TaskData, TaskInfo, shuffled
from gatf.geometry.gaussians import Gaussians
from gatf.methods.card import MethodCard, shipped_card
from gatf.nets.folding import folded
from gatf.seeding import keyed_init
from gatf.settings import MethodConfig, OptimisationConfig, StageConfig
from gatf.training.phase import Phase

__all__ = ["Batch", "ForTask", "Method", "MethodCard", "Notice", "Phase", "TaskData", "TaskInfo", "shuffled"]

FINE_TUNING = 0.01
"""Learning rate of a pretrained backbone, as a share of the stage's."""


@dataclass(frozen=True)
class Notice:
    """A measurement that a method reports, such as a condition number; the experiment records it."""

    name: str
    values: dict[str, float]


ConfigT = TypeVar("ConfigT", bound=MethodConfig, covariant=True)
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class ForTask(Generic[ModuleT]):
    """A module that lives for one task: `head = ForTask[nn.Linear]()` in the class, `self.head = self.make(…)` in
    `begin_task`, `self.head = None` in `end_task`. Reading it while there is none is an error that says so."""

    def __set_name__(self, owner: type[nn.Module], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, owner: None, kind: type[nn.Module]) -> Self: ...

    @overload
    def __get__(self, owner: nn.Module, kind: type[nn.Module]) -> ModuleT: ...

    def __get__(self, owner: nn.Module | None, kind: type[nn.Module]) -> Self | ModuleT:
        if owner is None:
            return self
        module = owner._modules.get(self._name)  # where torch has put it, so that it is trained, moved and saved
        if module is None:
            raise RuntimeError(f"{kind.__name__} has no '{self._name}' now: it exists only within a task")
        return cast(ModuleT, module)

    def __set__(self, owner: nn.Module, value: ModuleT | None) -> None:
        """Called for a None before the first module alone: the rest is torch's."""


class Method(nn.Module, ABC, Generic[ConfigT]):
    """A class-incremental learner. Inside the package, methods share functions and components and do not inherit from
    each other; users may derive from a shipped method.

    >>> issubclass(gatf.METHODS["slda"], gatf.Method), gatf.METHODS["slda"].exemplar_free
    (True, True)
    """

    name: ClassVar[str]
    Config: ClassVar[type[MethodConfig]]
    card: ClassVar[MethodCard]
    """Publication and properties; those of shipped methods are in `cards.yaml`."""
    exemplar_free: ClassVar[bool] = True
    """False only for `joint`, which receives the data of all seen tasks."""
    mirrored: ClassVar[bool] = False
    """Whether what it keeps of a class also counts the mirror images of its images; diagnostics compare likewise."""
    revisits: ClassVar[bool] = False
    """Whether a task may hold images of classes seen before, under their old numbers, as an update of a classifier may.
    `TaskInfo.new` counts the other classes."""
    defaults: ClassVar[dict[str, Any]] = {}
    """Settings of other sections that belong to the method (its optimiser, no bottleneck), shaped like a config."""

    def __init_subclass__(cls) -> None:
        """Check that a method has a name, a config and a card; abstract bases name ABC as a base."""
        super().__init_subclass__()
        if ABC in cls.__bases__:
            return
        if cls.__module__.startswith("gatf.methods."):
            cls.card = shipped_card(cls.name)
        missing = [name for name in ("name", "Config", "card") if not hasattr(cls, name)]
        if missing:
            raise TypeError(
                f"method class {cls.__name__} lacks {', '.join(missing)}: docs/add-a-method.md has an example"
            )

    def __init__(self, config: ConfigT, backbone: nn.Module, optimisation: OptimisationConfig, seed: int) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.optimisation = optimisation
        self.seed = seed
        self.notices: list[Notice] = []
        self.on_frozen_copy: Callable[[nn.Module], None] | None = None
        """Receives the copies that contain the backbone; the session compiles them."""

    @property
    def feature_dim(self) -> int:
        """S, the dimension of the backbone's features."""
        return int(self.backbone.feature_dim)  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        return next(chain(self.backbone.parameters(), self.backbone.buffers())).device

    @property
    def dtype(self) -> torch.dtype:
        """Of the backbone: float32, unless someone who compares runs made it float64."""
        return next(chain(self.backbone.parameters(), self.backbone.buffers())).dtype

    @abstractmethod
    def begin_task(self, task: TaskInfo) -> None:
        """Make what lives for one task: heads, frozen teacher, auxiliary modules. Depends only on `task`, the
        seed and the state of earlier tasks, so that a resumed run can call it again before loading its checkpoint."""

    @abstractmethod
    def phases(self, task: TaskInfo) -> list[Phase]:
        """What is trained, in order; empty when nothing is."""

    @abstractmethod
    def end_task(self, data: TaskData) -> None:
        """Statistics and transport, no gradient training; then drop what lived for the task."""

    @abstractmethod
    def scores(self, images: Tensor) -> Tensor:
        """[B, classes seen], higher is better, in the scenario's class order. Called in eval mode, without gradient."""

    def bytes_per_class(self) -> int:
        """Memory kept for each class between tasks, beside the networks."""
        return 0

    def stored(self) -> Gaussians | None:
        """What is kept of each class instead of images, in the backbone's feature space; None where that is no Gaussian
        a class. A method that keeps means alone may return zero covariances."""
        return None

    def centres(self) -> Tensor | None:
        """Where each class is believed to be, [C, S], in the backbone's feature space; None where that is not kept."""
        stored = self.stored()
        return None if stored is None else stored.means

    def transported(self, old: Tensor, phase: str) -> Tensor | None:
        """Old features [B, S] in the new space, by the map as it stands after an epoch of a phase; None while there is
        no map. Asked for only within tasks after the first, in eval mode and without gradient."""
        return None

    def reestimated(self, plain: Tensor, mirrored: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor] | None:
        """How features [B, S] would be scored by the method's own rule, were the classes in `labels` [N] measured now,
        from the features of their images and of the images' mirror images, [N, S] each. Other classes stay as stored,
        and so does the method. None where the measurements of classes do not distinguish them.

        For diagnostics, which may use old images (`gatf explain run`); a method never calls it."""
        return None

    def features(self, batch: Batch, images: Tensor | None = None) -> Tensor:
        """What a loss learns from: the backbone's features of the batch's images, or of others made from them, [B, S].

        While the stage warms up they are constants, so that the backbone does not learn yet; its batch-norm does."""
        features: Tensor = self.backbone(batch.images if images is None else images)
        return features.detach() if batch.warming_up else features

    def note(self, name: str, **values: float) -> None:
        self.notices.append(Notice(name, values))

    def make(self, build: Callable[[], ModuleT], *purpose: str | int) -> ModuleT:
        """Construct a module where and as the backbone is, with weights keyed by (seed, purpose)."""
        with keyed_init(self.seed, "init", *purpose):
            return build().to(self.device, self.dtype)

    def drop_task_modules(self) -> None:
        """Drop all modules that live for one task (`ForTask`)."""
        for name in dir(type(self)):
            if isinstance(getattr(type(self), name), ForTask):
                setattr(self, name, None)

    def frozen_copy(self, module: nn.Module) -> nn.Module:
        """A teacher: a copy in eval mode whose parameters take no gradient, its batch-norm folded away."""
        copy = folded(module).requires_grad_(False)
        if self.on_frozen_copy is not None and self.backbone in module.modules():
            self.on_frozen_copy(copy)
        return copy

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within, the backbone is a frozen copy of itself, which is quicker to run."""
        backbone, self.backbone = self.backbone, self.frozen_copy(self.backbone)
        try:
            yield
        finally:
            self.backbone = backbone

    def backbone_rate(self, stage: StageConfig) -> float:
        """The backbone's learning rate at the start of a stage."""
        if stage.lr_backbone is None:
            return stage.lr
        if stage.lr_backbone == "auto":
            return stage.lr * (FINE_TUNING if getattr(self.backbone, "pretrained", False) else 1.0)
        return stage.lr_backbone

    def train_groups(self, stage: StageConfig, *others: nn.Module) -> list[dict[str, Any]]:
        """Parameter groups of the backbone, at its own rate, and of other modules."""
        backbone = {"params": list(self.backbone.parameters()), "lr": self.backbone_rate(stage)}
        return [backbone, {"params": [p for module in others for p in module.parameters()]}]
