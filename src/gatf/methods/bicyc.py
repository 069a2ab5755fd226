"""BiCyc (Xu & Krawczyk, "Two-Way Is Better Than One: Bidirectional Alignment with Cycle Consistency for Exemplar-Free
Class-Incremental Learning", ICLR 2026)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

from gatf.devices import upload
from gatf.methods.base import Batch, ForTask, Phase, TaskInfo
from gatf.methods.parts.extraction import frozen_features
from gatf.methods.parts.losses import task_batch
from gatf.methods.parts.mapped import MapConfig, MappedGaussians
from gatf.settings import AffectsLaterTasksOnly, NotNegative

PAIRED = 128
"""Images of a batch whose pairs are compared, at most."""


class BiCycConfig(MapConfig):
    name: str = "bicyc"
    bidirectional: AffectsLaterTasksOnly[NotNegative] = 5.0
    """Weight of the two maps' errors, old → new and new → old."""
    cycle: AffectsLaterTasksOnly[NotNegative] = 2.0
    """Weight of the round trips' errors; each trains its second map alone."""
    pairs: AffectsLaterTasksOnly[NotNegative] = 0.05
    """Weight of the differences between cosines of pairs of images before and after a map."""

    def first_training(self) -> dict[str, Any]:
        """Task 0 is trained as in AdaGauss."""
        return super().first_training() | {"name": "adagauss"}


def cosine_difference(reference: Tensor, mapped: Tensor) -> Tensor:
    """Mean squared difference between the cosines of all pairs of rows [B, S] in one space and in the other."""
    reference, mapped = normalize(reference), normalize(mapped)
    return mse_loss(mapped @ mapped.T, reference @ reference.T)


class BiCyc(MappedGaussians[BiCycConfig]):
    """AdaGauss's Gaussians and classifier. Adapter (old → new) and distiller (new → old) train with the backbone
    and with each other; afterwards the adapter is fitted further, as AdaGauss fits its own."""

    name = "bicyc"
    Config = BiCycConfig
    adapter = ForTask[nn.Module]()
    distiller = ForTask[nn.Module]()

    def begin_task(self, task: TaskInfo) -> None:
        super().begin_task(task)
        if task.index > 0:
            self.distiller = self.make_mlp("new to old", task)
            self.adapter = self.make_mlp("old to new", task)

    def map(self, old: Tensor) -> Tensor:
        return self.adapter(old)

    def trained_maps(self) -> dict[str, nn.Module]:
        return {"distiller": self.distiller, "adapter": self.adapter}

    def refinement(self, task: TaskInfo) -> list[Phase]:
        return [self.fitting(self.adapter, task)]

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """L_CE + λ_bi·(‖D(new) − old‖² + ‖A(old) − sg(new)‖²) + λ_pair·L_pair + α·L_AC
        + λ_cyc·(‖A(sg D(new)) − sg(new)‖² + ‖D(sg A(old)) − old‖²); squares are means over batch and coordinates."""
        config = self.config
        images, labels = task_batch(batch, task, self.rotates(task))
        new = self.features(batch, images)  # [B, S]
        terms = {"ce": cross_entropy(self.head(new), labels)}
        if task.index > 0:
            old, goal = frozen_features(self.teacher, images), new.detach()
            to_old, to_new = self.distiller(new), self.adapter(old)
            terms["backward"] = config.bidirectional * mse_loss(to_old, old)
            terms["forward"] = config.bidirectional * mse_loss(to_new, goal)
            there, back = self.adapter(to_old.detach()), self.distiller(to_new.detach())
            terms["cycle"] = config.cycle * (mse_loss(there, goal) + mse_loss(back, old))
            if config.pairs:
                some = [self._sample(batch, len(new)) for _ in range(2)]
                compared = cosine_difference(goal[some[0]], to_new[some[0]])
                terms["pairs"] = config.pairs * (compared + cosine_difference(old[some[1]], to_old[some[1]]))
        return terms | self.collapse_term(new, batch)

    def _sample(self, batch: Batch, rows: int) -> Tensor:
        """Numbers of the rows that are compared in pairs."""
        return upload(torch.randperm(rows, generator=batch.generator)[:PAIRED], self.device)
