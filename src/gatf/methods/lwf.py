"""LwF (Li & Hoiem, "Learning without Forgetting", ECCV 2016), in the class-incremental form of FACIL and PyCIL."""

from typing import Any, ClassVar, Literal

from pydantic import NonNegativeInt, model_validator
from torch import Tensor

from gatf.methods.base import Method, Phase, TaskData, TaskInfo
from gatf.methods.parts.compensation import Prototypes
from gatf.methods.parts.distillation import KdGroups, LwfBase, facil_stage, pycil_stage
from gatf.nets.heads import HeadInit
from gatf.settings import MethodConfig, NotNegative, Positive


class LwFConfig(MethodConfig):
    name: Literal["lwf"] = "lwf"
    preset: Literal["facil", "pycil", "paper", "ncm"] = "facil"
    """FACIL's (old heads frozen), PyCIL's with its optimiser, schedule and epochs, the paper's (a softmax per task,
    head warm-up), or the nearest-mean variant on which ADC, LDC and DPCR build."""
    distill: NotNegative = 10.0
    """Weight λ of the distillation: what matters most (1 in the paper, 3 in PyCIL)."""
    temperature: Positive = 2.0
    """T of the softened logits."""
    head: Literal["linear", "cosine"] = "linear"
    """Linear heads with bias, or one cosine head with a learned scale."""
    head_init: HeadInit = "torch"
    """How a new linear head starts: weights and bias uniform within ±1/√D, or weights within ±√(3/D) and bias 0
    ("kaiming", PyCIL)."""
    train_old_heads: bool = False
    """Train the heads of old tasks too, through the distillation."""
    kd_groups: KdGroups = "all"
    """One softmax over all old classes, or one per task, as in the paper."""
    warmup_epochs: NonNegativeInt = 0
    """Epochs in which a later task's head learns alone, before everything does."""
    fix_bn: bool = False
    """Keep batch-norm statistics after task 0."""
    readout: Literal["logits", "ncm"] = "logits"
    """Largest logit, or largest cosine to class means that never move."""

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        paper = {"distill": 1.0, "train_old_heads": True, "kd_groups": "per_task", "warmup_epochs": 20}
        pycil = {"first": pycil_stage(200, [60, 120, 160], 5e-4), "next": pycil_stage(250, [60, 120, 180, 220], 2e-4)}
        return {
            "pycil": {
                "method": {"distill": 3.0, "train_old_heads": True, "head_init": "kaiming"},
                "optimisation": pycil,
            },
            "paper": {"method": paper},
            "ncm": {"method": {"head": "cosine", "train_old_heads": True, "readout": "ncm"}},
        }

    @model_validator(mode="after")
    def _cosine_head_is_one(self) -> "LwFConfig":
        if self.head == "cosine" and (not self.train_old_heads or self.kd_groups == "per_task" or self.warmup_epochs):
            raise ValueError(
                "a cosine head is one weight for all classes: it needs train_old_heads=true, kd_groups=all and "
                "warmup_epochs=0"
            )
        return self


class LwF(Method[LwFConfig]):
    """The logits of old classes are held where the network of the last task has them."""

    name = "lwf"
    Config = LwFConfig
    summary = "distils the old classes' logits from the last network (ECCV 2016)"
    paper = "Li & Hoiem, Learning without Forgetting, ECCV 2016"
    keeps = "a row of the linear head"
    trains = "backbone and the task's head"
    defaults: ClassVar[dict[str, Any]] = {
        "backbone": {"bottleneck": None},
        "optimisation": {"first": facil_stage(0.1), "next": facil_stage(0.1)},
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        config = self.config
        self.base = LwfBase(
            self.feature_dim,
            distill=config.distill,
            temperature=config.temperature,
            cosine=config.head == "cosine",
            train_old_heads=config.train_old_heads,
            kd_groups=config.kd_groups,
            fix_bn=config.fix_bn,
            head_epochs=config.warmup_epochs,
            head_init=config.head_init,
        )
        self.prototypes = Prototypes(self.feature_dim) if config.readout == "ncm" else None

    def begin_task(self, task: TaskInfo) -> None:
        self.base.begin(self, task)

    def phases(self, task: TaskInfo) -> list[Phase]:
        return self.base.phases(self, task)

    def end_task(self, data: TaskData) -> None:
        if self.prototypes is not None:
            self.prototypes.learn(self.backbone, data)
        self.base.end(self, data)

    def scores(self, images: Tensor) -> Tensor:
        features = self.backbone(images)
        return self.base.heads(features) if self.prototypes is None else self.prototypes.scores(features)

    def bytes_per_class(self) -> int:
        """The row of the head, with its bias where it has one, and the prototype where there is one."""
        numbers = self.feature_dim + (self.config.head == "linear")
        return 4 * numbers + (0 if self.prototypes is None else self.prototypes.bytes_per_class())
