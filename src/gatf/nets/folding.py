"""Batch-norm folded into the convolution before it: what a frozen network does not need to compute again."""

from collections import Counter
from copy import deepcopy

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


def folded(net: nn.Module) -> nn.Module:
    """A copy in eval mode that computes the same, up to rounding, with fewer operations.

    Convolutions whose output goes to a batch-norm layer and nowhere else take its scale and shift into their weights. A
    network that cannot be traced (its path depends on values) is copied as it is.
    """
    copy = deepcopy(net).eval()
    if not any(isinstance(module, nn.BatchNorm2d) for module in copy.modules()):
        return copy
    try:
        traced = fx.symbolic_trace(copy)
    except Exception:  # tracing runs the network's own code on stand-ins, so anything can be raised
        return copy
    modules = dict(traced.named_modules())
    calls = Counter(node.target for node in traced.graph.nodes if node.op == "call_module")
    for node in traced.graph.nodes:
        if not _calls(node, nn.BatchNorm2d, modules):
            continue
        before = node.args[0]
        if not _calls(before, nn.Conv2d, modules) or len(before.users) > 1:
            continue
        if calls[node.target] > 1 or calls[before.target] > 1:  # a layer in two places has no one weight to fold into
            continue
        _replace(traced, before.target, fuse_conv_bn_eval(modules[before.target], modules[node.target]))
        _replace(traced, node.target, nn.Identity())
    return traced.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _calls(node: fx.Node, kind: type[nn.Module], modules: dict[str, nn.Module]) -> bool:
    return node.op == "call_module" and isinstance(modules[str(node.target)], kind)


def _replace(net: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(net.get_submodule(parent), name, module)
