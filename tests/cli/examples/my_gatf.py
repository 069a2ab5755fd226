"""MyGATF: GATF with a penalty on the size of the residual."""

from torch import Tensor

from gatf.methods.base import Batch, TaskData, TaskInfo
from gatf.methods.gatf import GATF, GATFConfig
from gatf.methods.parts.extraction import frozen_features
from gatf.settings import AffectsLaterTasksOnly, NotNegative


class MyGATFConfig(GATFConfig):
    small_residual: AffectsLaterTasksOnly[NotNegative] = 0.1
    """Weight of the mean square of the residual."""
    report: bool = False
    """Report the norm of the residual's bias after each task."""


class MyGATF(GATF):
    """GATF whose map stays near its anchor."""

    Config = MyGATFConfig
    config: MyGATFConfig

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        terms = super().loss(batch, task)
        if task.index > 0:
            residual = self.residual(frozen_features(self.teacher, batch.images))
            terms["residual"] = self.config.small_residual * residual.square().mean()
        return terms

    def end_task(self, data: TaskData) -> None:
        if self.config.report and data.info.index > 0:
            self.note("residual", bias=float(self.residual[-1].bias.detach().norm()))
        super().end_task(data)
