"""Embedding networks trained with a triplet loss: the base learner of SDC's own paper (Yu et al., CVPR 2020).

e(x) = (V z + v) / ‖V z + v‖ on the backbone's features z. The loss compares distances within a batch, so batches hold
several images of several classes. What holds the network in later tasks is one of the paper's regularisers: nothing
(E-FT), the old embeddings (E-LwF), or a spring on each weight (E-EWC, E-MAS).
"""

from collections import OrderedDict
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from gatf.errors import UserError
from gatf.methods.base import Batch, Method, Phase, TaskData, TaskInfo
from gatf.methods.parts.components import frozen_features, training_mode, warmup_epochs
from gatf.methods.parts.distillation import BaseLearner
from gatf.methods.parts.springs import Springs, kept_buffers
from gatf.methods.parts.triplets import ClassBalanced, LwfLoss, Triplets, batch_triplet_loss, embedding_change
from gatf.seeding import keyed_init
from gatf.settings import StageConfig

EmbeddingInit = Literal["small", "fan_out"]
Regulariser = Literal["none", "lwf", "ewc", "mas"]
WEIGHTS: dict[Regulariser, float] = {"none": 0.0, "lwf": 1.0, "ewc": 1e7, "mas": 1e6}
"""γ as published (run_demo.sh of the release)."""


class UnitLength(nn.Module):
    """Vectors divided by their length."""

    def forward(self, features: Tensor) -> Tensor:
        return normalize(features, dim=1)


def softmax_stage(epochs: int, lr: float) -> StageConfig:
    """How task 0 is warmed up; its authors say no more than 200 epochs of softmax, the rest is as LwF is trained."""
    return StageConfig(
        epochs=epochs, batch_size=128, lr=lr, milestones=(0.3, 0.6, 0.8), clip=None, warmup=0.0, drop_last=True
    )


def embedding_layer(inputs: int, outputs: int, init: EmbeddingInit) -> nn.Linear:
    """V, normal with deviation 0.001 ("small") or √(2/outputs) ("fan_out"), and v = 0. The triplet loss does not see
    V's scale, but the published rate and γ go with it: E-MAS's importance of the backbone grows with V's square."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=0.001 if init == "small" else (2 / outputs) ** 0.5)
    nn.init.zeros_(layer.bias)
    return layer


class TripletBase(BaseLearner):
    """An embedding layer on the backbone, triplet loss + γ·regulariser, class-balanced batches."""

    def __init__(
        self, dim: int, *, seed: int, embedding: int | None = 512, embedding_init: EmbeddingInit = "small",
        margin: float = 0.0, per_class: int = 8, triplets: Triplets = "random", regulariser: Regulariser = "lwf",
        weight: float | None = None, lwf_loss: LwfLoss = "squared", softmax_epochs: int = 0, softmax_lr: float = 0.1,
        fix_bn: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dim, self.margin, self.per_class, self.triplets = dim, margin, per_class, triplets
        self.regulariser, self.lwf_loss, self.fix_bn = regulariser, lwf_loss, fix_bn
        self.weight = WEIGHTS[regulariser] if weight is None else weight
        self.softmax_epochs, self.softmax_lr = softmax_epochs, softmax_lr
        with keyed_init(seed, "init", "embedding"):
            self.layer = nn.Identity() if embedding is None else embedding_layer(dim, embedding, embedding_init)
        self.springs = Springs()
        self.head: Any = None
        self.teacher: Any = None

    def network(self, method: Method) -> nn.Module:
        return nn.Sequential(OrderedDict(backbone=method.backbone, layer=self.layer, unit=UnitLength()))

    def begin(self, method: Method, task: TaskInfo) -> None:
        if task.index > 0:
            self.teacher = method.frozen_copy(self.network(method))
        elif self.softmax_epochs:
            self.head = method.make(lambda: nn.Linear(self.dim, task.new), "softmax head")

    def phases(self, method: Method, task: TaskInfo) -> list[Phase]:
        stage = method.optimisation.stage(task.index)
        if warmup_epochs(stage) and isinstance(self.layer, nn.Identity):
            raise UserError(
                "optimisation.*.warmup trains the embedding layer before the backbone, but method.embedding=null has "
                "none: set optimisation.*.warmup=0"
            )
        parameters = dict(self.network(method).named_parameters())

        def loss(batch: Batch) -> dict[str, Tensor]:
            """L_triplet + γ·L_reg, the second after task 0."""
            features = method.backbone(batch.images)
            if batch.epoch < warmup_epochs(stage):
                features = features.detach()
            embeddings = normalize(self.layer(features), dim=1)
            terms = {"triplet": self._triplet_loss(embeddings, batch)}
            if task.index > 0 and self.weight > 0:
                terms |= self._regularisation(embeddings, batch, parameters)
            return terms

        training = Phase(
            "train",
            {"backbone": method.backbone, "layer": self.layer},
            loss,
            stage,
            groups=method.train_groups(stage, self.layer),
            order=self._order(stage.batch_size),
            set_mode=training_mode(method.backbone, self.layer, fix_bn=self.fix_bn and task.index > 0),
        )
        return [training] if self.head is None else [self._softmax_phase(method, task), training]

    def _triplet_loss(self, embeddings: Tensor, batch: Batch) -> Tensor:
        return batch_triplet_loss(embeddings, batch, rule=self.triplets, margin=self.margin, per_class=self.per_class)

    def _regularisation(
        self, embeddings: Tensor, batch: Batch, parameters: dict[str, nn.Parameter]
    ) -> dict[str, Tensor]:
        if self.regulariser == "lwf":
            old = frozen_features(self.teacher, batch.images)
            change = embedding_change(embeddings, old, self.lwf_loss, whole=batch.whole)
            return {"distill": self.weight * change}
        if self.regulariser == "none":
            return {}
        return {"penalty": self.weight * self.springs.penalty(parameters)}

    def _order(self, batch_size: int) -> ClassBalanced:
        return ClassBalanced(self.per_class, batch_size // self.per_class)

    def _softmax_phase(self, method: Method, task: TaskInfo) -> Phase:
        """Task 0 begins as classification: a triplet loss hardly trains a network from nothing (SDC-IL issue 3)."""

        def loss(batch: Batch) -> dict[str, Tensor]:
            return {"ce": cross_entropy(self.head(method.backbone(batch.images)), batch.labels - task.old)}

        stage = softmax_stage(self.softmax_epochs, self.softmax_lr)
        return Phase("softmax", {"backbone": method.backbone, "head": self.head}, loss, stage)

    def end(self, method: Method, data: TaskData) -> None:
        """Tie every weight to where it is, as stiffly as it mattered to this task alone; drop teacher and head."""
        if self.regulariser in ("ewc", "mas"):
            importance = self.importance(method, data)
            for name, weight in self.network(method).named_parameters():
                self.springs.set(name, importance[name][None], weight.detach().clone()[None])
        self.head = self.teacher = None

    def importance(self, method: Method, data: TaskData) -> dict[str, Tensor]:
        """Mean over the batches of one more epoch of squared gradients, by parameter: of the triplet loss (E-EWC), or
        of Σ_batch ‖V z + v‖, the length before it is made 1 (E-MAS, as the release has it; γ belongs to that).
        Batch-norm uses each batch's own statistics, also where `fix_bn` trains with the running ones, which stay as
        they are."""
        network, size = self.network(method), method.optimisation.stage(data.info.index).batch_size
        order, parameters = self._order(size), dict(network.named_parameters())
        found = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        steps = data.steps(size, False, order)
        with kept_buffers(network):
            training_mode(method.backbone, self.layer, fix_bn=False)()
            for batch in data.batches("train", batch_size=size, purpose="importance", order=order):
                raw = self.layer(method.backbone(batch.images))
                loss = raw.norm(dim=1).sum()
                if self.regulariser == "ewc":
                    loss = self._triplet_loss(normalize(raw, dim=1), batch)
                wanted = list(parameters.values())
                gradients = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
                for name, gradient in zip(parameters, gradients, strict=True):
                    found[name] += gradient.square() / steps
        network.eval()
        flat = torch.cat([tensor.flatten() for tensor in found.values()])
        if not bool(flat.isfinite().all()):
            raise UserError("the importance of weights is not finite, training has diverged: lower optimisation.*.lr")
        method.note("importance", mean=float(flat.mean()), max=float(flat.max()))
        return found
