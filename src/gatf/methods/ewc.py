"""EWC (Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017), in the
class-incremental form of FACIL and PyCIL."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gatf.errors import NotFinite
from gatf.methods.base import Batch, Phase, TaskData, TaskInfo, shuffled
from gatf.methods.parts.extraction import training_mode
from gatf.methods.parts.linear import LinearHeads
from gatf.methods.parts.springs import Springs, buffers_restored
from gatf.methods.parts.stages import facil_stage, pycil_stage
from gatf.nets.heads import HeadInit, Heads
from gatf.settings import Fraction, MethodConfig, NotNegative, Positive

LabelMode = Literal["max_pred", "ground_truth"]


class EWCConfig(MethodConfig):
    name: str = "ewc"
    preset: Literal["conservative", "facil", "pycil"] = "conservative"
    """Fixed batch-norm and a tenth of the rate after task 0; or the settings of FACIL or PyCIL."""
    penalty: NotNegative = 5000.0
    """Weight λ of the quadratic penalty."""
    alpha: Fraction | Literal["class_share"] = 0.5
    """Weight of earlier importances: a number, or the share of classes seen before."""
    label_mode: LabelMode = "max_pred"
    """Label in the Fisher pass: the predicted or the true one."""
    fisher_cap: Positive | None = None
    """Largest importance of one parameter (1e-4 in PyCIL)."""
    fisher_drop_last: bool = True
    """Drop an incomplete last batch in the Fisher pass (FACIL); PyCIL counts it as a full one."""
    fisher_bn: Literal["as_trained", "batch"] = "as_trained"
    """Batch-norm in the Fisher pass: as in training, or always by batch statistics (FACIL)."""
    head_init: HeadInit = "torch"
    """Initial head: weights and bias uniform within ±1/√D, or weights within ±√(3/D) and bias 0 (PyCIL)."""
    penalise_heads: bool = False
    """Train old heads too and penalise their change (PyCIL); else they are frozen."""
    fix_bn: bool = True
    """Fix batch-norm statistics after task 0; the penalty does not protect them."""
    multi_softmax: bool = False
    """Compare log-probabilities within each task's head instead of raw logits (FACIL)."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "facil": {"method": {"fix_bn": False}, "optimisation": {"next": {"lr": 0.1}}},
        "pycil": {
            "method": {
                "penalty": 1000.0, "alpha": "class_share", "label_mode": "ground_truth", "fisher_cap": 1e-4,
                "fisher_drop_last": False, "head_init": "kaiming", "penalise_heads": True, "fix_bn": False,
            },
            "optimisation": {
                "first": pycil_stage(200, [60, 120, 170], 5e-4), "next": pycil_stage(180, [70, 120, 150], 2e-4),
            },
        },
    }  # fmt: skip


def merge_importance(old: Tensor, new: Tensor, alpha: float | str, *, seen_before: int, seen: int) -> Tensor:
    """F ← α·F + (1−α)·F_new; "class_share" takes α = classes seen before / classes seen."""
    share = seen_before / seen if alpha == "class_share" else float(alpha)
    return share * old + (1 - share) * new


def batch_squares(net: nn.Module, batch: Batch, mode: LabelMode, names: list[str]) -> dict[str, Tensor]:
    """Squares of the gradient of the batch-mean cross-entropy, by parameter, in float32 or better; 0 where there is no
    gradient."""
    parameters = {name: parameter for name, parameter in net.named_parameters() if name in names}
    logits = net(batch.images)
    loss = cross_entropy(logits, batch.labels if mode == "ground_truth" else logits.argmax(dim=1))
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    exact = [gradient.to(torch.promote_types(gradient.dtype, torch.float32)) for gradient in gradients]
    return {name: gradient.square() for name, gradient in zip(parameters, exact, strict=True)}


class EWC(LinearHeads[EWCConfig]):
    """Fine-tuning with every weight tied to its last value, as stiffly as it mattered."""

    name = "ewc"
    Config = EWCConfig
    defaults: ClassVar[dict[str, Any]] = {
        "backbone": {"bottleneck": None},
        "optimisation": {"first": facil_stage(0.1), "next": facil_stage(0.01)},
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heads = Heads(self.feature_dim, init=self.config.head_init)
        self.springs = Springs()

    def phases(self, task: TaskInfo) -> list[Phase]:
        stage, config = self.optimisation.stage(task.index), self.config
        head = self.heads.layers[-1]
        trained = self.heads if config.penalise_heads else head
        penalised = task.index > 0 and config.penalty > 0
        parameters = dict(self.named_parameters())

        def loss(batch: Batch) -> dict[str, Tensor]:
            """CE over the new head + (λ/2)·Σ F (θ − θ*)²."""
            terms = {"ce": cross_entropy(head(self.features(batch)), batch.labels - task.old)}
            if penalised:
                terms["penalty"] = config.penalty * self.springs.penalty(parameters)
            return terms

        mode = training_mode(self.backbone, trained, fix_bn=config.fix_bn and task.index > 0)
        modules, groups = {"backbone": self.backbone, "head": trained}, self.train_groups(stage, trained)
        return [Phase("train", modules, loss, stage, groups=groups, set_mode=mode)]

    def end_task(self, data: TaskData) -> None:
        """Penalise changes from the present weights; merge importances with earlier ones."""
        network = nn.Sequential(OrderedDict(backbone=self.backbone, heads=self.heads))
        tied = ("backbone.", "heads.") if self.config.penalise_heads else "backbone."
        parameters = {name: weight for name, weight in network.named_parameters() if name.startswith(tied)}
        fisher = self._fisher(network, list(parameters), data)
        known = {name: importance for name, importance, _ in self.springs.items()}
        for name, new in fisher.items():
            anchor, importance = parameters[name].detach().clone()[None], new[None]
            before = known.get(name, torch.zeros_like(importance))
            seen_before = data.info.old if name in known else 0
            importance = merge_importance(
                before, importance, self.config.alpha, seen_before=seen_before, seen=data.info.seen
            )
            self.springs.set(name, importance, anchor)
        self._report(fisher)

    def _fisher(self, network: nn.Module, names: list[str], data: TaskData) -> dict[str, Tensor]:
        """F_new, the mean over the batches of one augmented pass."""
        config, task = self.config, data.info.index
        size, drop_last = self.optimisation.stage(task).batch_size, config.fisher_drop_last
        fixed = config.fix_bn and task > 0 and config.fisher_bn == "as_trained"
        batches = data.batches("train", batch_size=size, purpose="fisher", order=shuffled, drop_last=drop_last)
        total: dict[str, Tensor] = {}
        with buffers_restored(network):
            training_mode(network, fix_bn=fixed)()
            for batch in batches:
                for name, square in batch_squares(network, batch, config.label_mode, names).items():
                    total[name] = total[name] + square if name in total else square
        network.eval()
        count = data.steps(size, drop_last=drop_last)
        return {name: (summed / count).clamp(max=config.fisher_cap or math.inf) for name, summed in total.items()}

    def _report(self, fisher: dict[str, Tensor]) -> None:
        """Notes whether the springs hold (an importance near 0 is fine-tuning) and whether the next task is stable:
        SGD with momentum m on curvature λF needs lr·λ·F < 2(1 + m)."""
        stage = self.optimisation.next
        mean = sum(float(new.sum()) for new in fisher.values()) / sum(new.numel() for new in fisher.values())
        stiffest = max(float(importance.sum(dim=0).max()) for _, importance, _ in self.springs.items())
        if not math.isfinite(stiffest + mean):
            raise NotFinite("the Fisher information is not finite")
        step, bound = self.backbone_rate(stage) * self.config.penalty * stiffest, 2 * (1 + stage.momentum)
        largest = max(float(new.max()) for new in fisher.values())
        self.note("fisher", mean=mean, max=largest, step=step, bound=bound, stable=float(step < bound))

    def scores(self, images: Tensor) -> Tensor:
        features = self.backbone(images)
        if self.config.multi_softmax:
            return torch.cat([head(features).log_softmax(dim=1) for head in self.heads.layers], dim=1)
        return self.heads(features)
