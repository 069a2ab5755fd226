"""Batch-norm over a batch that several processes share, with the statistics of the whole of it."""

from typing import cast

import torch
from torch import Tensor, nn

from gatf import ranks


class SharedBatchNorm2d(nn.BatchNorm2d):
    """As `nn.BatchNorm2d` in one process with all the images; torch's own layer of this kind runs on GPUs only."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or ranks.world() == 1:
            return super().forward(input)
        channels = input.shape[1]
        sums = torch.cat([input.sum((0, 2, 3)), input.new_full((1,), input.numel() / channels)])
        sums = ranks.total(sums)
        count, mean = sums[-1], sums[:-1] / sums[-1]
        centred = input - mean[:, None, None]
        variance = ranks.total(centred.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            self._remember(mean, variance * (count / (count - 1)))
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return centred * scale[:, None, None] + self.bias[:, None, None]

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, rate)
        self.running_var.lerp_(variance, rate)


def share_batch_norm(net: nn.Module, device: torch.device) -> nn.Module:
    """The network with batch-norm layers that see the batch of all processes; its state has the same names."""
    if device.type != "cpu":
        return cast(nn.Module, nn.SyncBatchNorm.convert_sync_batchnorm(net))
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.BatchNorm2d:
                shared = SharedBatchNorm2d(child.num_features, child.eps, child.momentum)
                shared.load_state_dict(child.state_dict())
                setattr(parent, name, shared)
    return net
