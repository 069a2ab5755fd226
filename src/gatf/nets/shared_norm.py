"""Batch-norm over a batch that several processes share, with the statistics of the whole of it."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gatf import distributed


class _Normalise(torch.autograd.Function):
    """Batch-norm by given statistics of the whole batch, differentiated through these statistics too.

    Torch's own kernels normalise and add up what backward needs, a pass over memory each; processes exchange one vector
    in backward. Gradients of weight and bias are of this process's images: they are averaged with all others.
    """

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, count: Tensor, eps: float
    ) -> Tensor:
        ctx.save_for_backward(input, weight, mean, variance, count)
        ctx.eps = eps
        return torch.native_batch_norm(input, weight, bias, mean, variance, False, 0.0, eps)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, mean, variance, count = ctx.saved_tensors
        layout = torch.channels_last if input.is_contiguous(memory_format=torch.channels_last) else None
        gradient = gradients[0].contiguous(memory_format=layout or torch.contiguous_format)
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, input, weight, mean, variance, None, None, False, ctx.eps, [False, True, True]
        )
        along, level = distributed.total(torch.stack([of_weight, of_bias])) / count  # means of g·x̂ and of g, all images
        inverse = torch.rsqrt(variance + ctx.eps)
        scale = weight * inverse
        slope = -scale * inverse * along
        offset = -scale * level - slope * mean
        # w/σ·(g − mean(g) − x̂·mean(g·x̂))
        of_input = torch.addcmul(offset[:, None, None], input, slope[:, None, None])
        of_input.addcmul_(gradient, scale[:, None, None])
        return of_input, of_weight, of_bias, None, None, None, None


class SharedBatchNorm2d(nn.BatchNorm2d):
    """As `nn.BatchNorm2d` in one process with all the images; torch's own layer of this kind runs on GPUs only."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or distributed.world() == 1:
            return super().forward(input)
        precise = input.to(self.weight.dtype)
        count, mean, variance = self._statistics(precise.detach())
        self._remember(mean, variance * (count / (count - 1)))
        normalised: Tensor = _Normalise.apply(precise, self.weight, self.bias, mean, variance, count, self.eps)
        return normalised.to(input.dtype)

    @torch.no_grad()
    def _statistics(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values per channel in the batches of all processes, their mean and variance: one exchange."""
        own = input.new_full((1,), input.numel() / input.shape[1])
        found = torch.cat([own, *torch.batch_norm_update_stats(input, None, None, 0.0)])
        rows = found.new_zeros(distributed.world(), len(found))
        rows[distributed.rank()] = found
        all_found = distributed.total(rows)  # [processes, 1 + 2·channels]
        counts, (means, variances) = all_found[:, :1], all_found[:, 1:].tensor_split(2, dim=1)
        count = counts.sum()
        mean = (counts * means).sum(0) / count
        variance = (counts * (variances + (means - mean).square())).sum(0) / count
        return count, mean, variance

    @torch.no_grad()
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
    if device.type == "cuda":
        return cast(nn.Module, nn.SyncBatchNorm.convert_sync_batchnorm(net))
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.BatchNorm2d:
                shared = SharedBatchNorm2d(child.num_features, child.eps, child.momentum, device=device)
                shared.load_state_dict(child.state_dict())
                setattr(parent, name, shared)
    return net
