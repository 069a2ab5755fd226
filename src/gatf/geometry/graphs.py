"""Scores in float64 without chunks, as modules whose operations can be traced for export (ONNX)."""

from collections.abc import Callable

from torch import Tensor, nn


class ScoreGraph(nn.Module):
    """A function of features and named tensors, as a module that has the tensors as buffers."""

    def __init__(self, scores: Callable[..., Tensor], **tensors: Tensor) -> None:
        super().__init__()
        self._scores = scores
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, features: Tensor) -> Tensor:
        return self._scores(features, **dict(self.named_buffers()))
