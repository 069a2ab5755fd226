"""Embedding networks trained with a triplet loss: the base learner of SDC's own paper (Yu et al., CVPR 2020).

e(x) = (V z + v) / ‖V z + v‖ on the backbone's features z. The loss compares distances within a batch, so batches hold
several images of several classes. What holds the network in later tasks is one of the paper's regularisers: nothing
(E-FT), the old embeddings (E-LwF), or a spring on each weight (E-EWC, E-MAS).
"""

from collections import OrderedDict
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from gatf.errors import NotFinite, UserError
from gatf.methods.base import Batch, Method, Phase, TaskData, TaskInfo
from gatf.methods.parts.distillation import BaseConfig, BaseLearner
from gatf.methods.parts.extraction import frozen_features, training_mode
from gatf.methods.parts.springs import Springs, buffers_restored
from gatf.methods.parts.triplets import (
    ClassBalanced,
    LwfLoss,
    Triplets,
    batch_triplet_loss,
    check_class_batches,
    embedding_change,
)
from gatf.seeding import keyed_init
from gatf.settings import NotNegative, Positive, StageConfig

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


class TripletBaseConfig(BaseConfig):
    name: Literal["triplet"] = "triplet"
    unit_length: ClassVar[bool] = True
    embedding: PositiveInt | None = 512
    """Dimension of the linear layer after the backbone's features; null: no such layer."""
    embedding_init: EmbeddingInit = "small"
    """Deviation of the layer's initial weights: 0.001 (published for CIFAR-100), or √(2/embedding) (fan_out, published
    for ResNet-18). The bias starts at 0."""
    margin: NotNegative = 0.0
    """Margin of the triplet loss (1 in AdaGauss's SDC)."""
    images_per_class: Annotated[int, Field(ge=2)] = 8
    """Images per class in a batch, and in an epoch."""
    triplets: Triplets = "random"
    """Negative of each pair: random; by place in the batch, as released for CIFAR-100 and ImageNet-Subset (official);
    or farthest positive and nearest negative, as released elsewhere (hard)."""
    regulariser: Regulariser = "lwf"
    """Regularisation after task 0: none (E-FT), old embeddings (E-LwF), or each weight's importance to the last task
    (E-EWC, E-MAS)."""
    regulariser_weight: NotNegative | None = None
    """Weight γ of the regulariser. Default: 1 for lwf, 1e7 for ewc, 1e6 for mas."""
    lwf_loss: LwfLoss = "squared"
    """E-LwF as half the squared distance summed over the batch (release), or as the mean distance (paper)."""
    softmax_epochs: NonNegativeInt = 0
    """Epochs of softmax classification before task 0's triplet loss (200 for CIFAR-100 and ImageNet-Subset)."""
    softmax_lr: Positive = 0.1
    """Learning rate of those epochs (SGD, batch 128, ×0.1 after 30, 60 and 80 %)."""
    fix_bn: bool = True
    """Fix batch-norm statistics after task 0 (published for CIFAR-100 and ImageNet-Subset; off for CUB, Flowers,
    Cars)."""

    def build(self, method: Method) -> BaseLearner:
        check_class_batches(method.optimisation, self.images_per_class)
        return TripletBase(method.feature_dim, self, seed=method.seed)


class TripletBase(BaseLearner):
    """An embedding layer on the backbone, triplet loss + γ·regulariser, class-balanced batches."""

    def __init__(self, dim: int, config: TripletBaseConfig, *, seed: int) -> None:
        super().__init__()
        outputs = config.embedding
        self.config, self.backbone_dim, self.feature_dim = config, dim, dim if outputs is None else outputs
        given = config.regulariser_weight
        self.weight = WEIGHTS[config.regulariser] if given is None else given
        with keyed_init(seed, "init", "embedding"):
            self.layer = nn.Identity() if outputs is None else embedding_layer(dim, outputs, config.embedding_init)
        self.springs = Springs()
        self.head: nn.Linear | None = None

    def network(self, method: Method) -> nn.Module:
        return nn.Sequential(OrderedDict(backbone=method.backbone, layer=self.layer, unit=UnitLength()))

    def begin(self, method: Method, task: TaskInfo) -> None:
        if task.index > 0:
            self.teacher = method.frozen_copy(self.network(method))
        elif self.config.softmax_epochs:
            self.head = method.make(lambda: nn.Linear(self.backbone_dim, task.new), "softmax head")

    def phases(self, method: Method, task: TaskInfo) -> list[Phase]:
        stage = method.optimisation.stage(task.index)
        if stage.warmup_epochs and isinstance(self.layer, nn.Identity):
            raise UserError(
                "optimisation.*.warmup trains the embedding layer before the backbone, but method.base.embedding=null "
                "has none: set optimisation.*.warmup=0"
            )
        parameters = dict(self.network(method).named_parameters())

        def loss(batch: Batch) -> dict[str, Tensor]:
            """L_triplet + γ·L_reg, the second after task 0."""
            embeddings = normalize(self.layer(method.features(batch)), dim=1)
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
            set_mode=training_mode(method.backbone, self.layer, fix_bn=self.config.fix_bn and task.index > 0),
        )
        return [training] if self.head is None else [self._softmax_phase(method, task, self.head), training]

    def _triplet_loss(self, embeddings: Tensor, batch: Batch) -> Tensor:
        config = self.config
        return batch_triplet_loss(
            embeddings, batch, rule=config.triplets, margin=config.margin, per_class=config.images_per_class
        )

    def _regularisation(
        self, embeddings: Tensor, batch: Batch, parameters: dict[str, nn.Parameter]
    ) -> dict[str, Tensor]:
        if self.config.regulariser == "lwf":
            old = frozen_features(self.teacher, batch.images)
            change = embedding_change(embeddings, old, self.config.lwf_loss, whole=batch.whole)
            return {"distill": self.weight * change}
        if self.config.regulariser == "none":
            return {}
        return {"penalty": self.weight * self.springs.penalty(parameters)}

    def _order(self, batch_size: int) -> ClassBalanced:
        per_class = self.config.images_per_class
        return ClassBalanced(per_class, batch_size // per_class)

    def _softmax_phase(self, method: Method, task: TaskInfo, head: nn.Linear) -> Phase:
        """Task 0 begins as classification: a triplet loss hardly trains a network from nothing (SDC-IL issue 3)."""

        def loss(batch: Batch) -> dict[str, Tensor]:
            return {"ce": cross_entropy(head(method.features(batch)), batch.labels - task.old)}

        stage = softmax_stage(self.config.softmax_epochs, self.config.softmax_lr)
        modules = {"backbone": method.backbone, "head": head}
        return Phase("softmax", modules, loss, stage, rate="method.base.softmax_lr")

    def end(self, method: Method, data: TaskData) -> None:
        """Tie every weight to where it is, as stiffly as it mattered to this task alone; drop teacher and head."""
        if self.config.regulariser in ("ewc", "mas"):
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
        with buffers_restored(network):
            training_mode(method.backbone, self.layer, fix_bn=False)()
            for batch in data.batches("train", batch_size=size, purpose="importance", order=order):
                raw = self.layer(method.backbone(batch.images))
                loss = raw.norm(dim=1).sum()
                if self.config.regulariser == "ewc":
                    loss = self._triplet_loss(normalize(raw, dim=1), batch)
                wanted = list(parameters.values())
                gradients = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
                for name, gradient in zip(parameters, gradients, strict=True):
                    found[name] += gradient.square() / steps
        network.eval()
        flat = torch.cat([tensor.flatten() for tensor in found.values()])
        if not bool(flat.isfinite().all()):
            raise NotFinite("the importance of weights is not finite")
        method.note("importance", mean=float(flat.mean()), max=float(flat.max()))
        return found
