"""Frozen networks that compute less. A batch-norm layer is merged into the convolution before it; the sum with a
shortcut and the ReLU that follow a convolution are computed in the same pass over memory."""

import operator
import threading
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import relu
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_conv_bn_weights
from torch.nn.utils.parametrize import is_parametrized

from gatf.nets.shared_norm import SharedBatchNorm2d

SUMS = (operator.add, operator.iadd, torch.add)
RELUS = (torch.relu, torch.relu_, relu)
NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm)
NOTHING = nn.Parameter(torch.empty(0), requires_grad=False)
"""In place of a weight that is still to be filled in."""


class FusedConv2d(nn.Conv2d):
    """relu(convolution + shortcut). On a CPU one operation of oneDNN computes all three steps."""

    def __init__(self, plain: nn.Conv2d) -> None:
        sizes = (plain.in_channels, plain.out_channels, plain.kernel_size)
        steps = (plain.stride, plain.padding, plain.dilation, plain.groups)
        super().__init__(*sizes, *steps, plain.bias is not None, device="meta")  # type: ignore[arg-type]
        self.weight, self.bias = plain.weight, plain.bias
        self.geometry = [list(each) for each in (plain.padding, plain.stride, plain.dilation)]

    def forward(self, input: Tensor, shortcut: Tensor | None = None, overwrite: bool = False) -> Tensor:
        """With `overwrite` the result may take the shortcut's memory, because nothing reads the shortcut afterwards."""
        if torch.compiler.is_compiling() or not self._in_one_pass(input, shortcut):  # a compiler fuses the steps itself
            out = super().forward(input)
            return torch.relu_(out if shortcut is None else out + shortcut)
        layer = (self.weight, self.bias, *self.geometry, self.groups)
        if shortcut is None:
            return torch.ops.mkldnn._convolution_pointwise(input, *layer, "relu", [], "")
        if overwrite:
            return torch.ops.mkldnn._convolution_pointwise_.binary(shortcut, input, *layer, "add", 1.0, "relu", [], "")
        return torch.ops.mkldnn._convolution_pointwise.binary(input, shortcut, *layer, "add", 1.0, "relu", [], "")

    def _in_one_pass(self, input: Tensor, shortcut: Tensor | None) -> bool:
        """Whether oneDNN's operation applies: it takes float32 on CPUs, has no gradient and does not broadcast."""
        tensors = [self.weight, input] + ([] if shortcut is None else [shortcut])
        return bool(
            torch.backends.mkldnn.is_available()
            and torch.backends.mkldnn.enabled
            and not torch.is_autocast_enabled("cpu")
            and all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
            and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
            and (shortcut is None or shortcut.shape == self._output_shape(input))
        )

    def _output_shape(self, input: Tensor) -> tuple[int, ...]:
        sizes = zip(input.shape[2:], *self.geometry, self.kernel_size, strict=True)
        places = ((size + 2 * pad - apart * (kernel - 1) - 1) // step + 1 for size, pad, step, apart, kernel in sizes)
        return (input.shape[0], self.out_channels, *places)


@dataclass(frozen=True)
class _Plan:
    """The folded structure of a network: found once, then filled with weights on every call."""

    structure: tuple[Any, ...]
    traced: fx.GraphModule
    """Without values."""
    norms: dict[str, str]
    """The batch-norm layer that joins each convolution, by name."""

    @torch.no_grad()
    def filled(self, net: nn.Module) -> nn.Module:
        new = _without_values(self.traced, {})
        for name, layer in new.named_modules():
            source = net.get_submodule(name)
            if name in self.norms:
                conv, norm = cast(nn.Conv2d, source), cast(nn.BatchNorm2d, net.get_submodule(self.norms[name]))
                assert norm.running_mean is not None
                assert norm.running_var is not None
                moments = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
                layer.weight, layer.bias = fuse_conv_bn_weights(conv.weight, conv.bias, *moments)
                continue
            for values in (layer._parameters, layer._buffers):
                for key in [key for key, value in values.items() if value is not None]:
                    value = getattr(source, key)
                    copied = value.detach().clone()
                    values[key] = nn.Parameter(copied, value.requires_grad) if key in source._parameters else copied
        return new.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


_tracing = threading.Lock()
"""torch.fx replaces `nn.Module.__call__` while it traces: two traces at once would restore each other's replacement."""
_plans: "WeakKeyDictionary[nn.Module, _Plan]" = WeakKeyDictionary()


def folded(net: nn.Module) -> nn.Module:
    """A copy in eval mode that gives the same results, up to rounding, with fewer operations.

    If only a batch-norm layer reads a convolution's output, its scale and shift go into the convolution's weights. If
    only a sum or a ReLU reads what comes out then, that joins the convolution as well. Some networks are copied
    unchanged: those that cannot be traced because their path depends on values, those with hooks, those whose weights
    are computed, and those that failed `check_folding`.
    """
    layers = list(net.modules())
    if not any(isinstance(layer, nn.Conv2d) for layer in layers) or any(map(_has_more_to_do, layers)):
        return deepcopy(net).eval()
    if not getattr(net, "foldable", True):
        return deepcopy(net).eval()
    structure = _structure(net)
    plan = _plans.get(net)
    if plan is None or plan.structure != structure:
        try:
            plan = _plan(net, structure)
        except Exception:  # tracing runs the network's own code on stand-ins, so anything can be raised
            return deepcopy(net).eval()
        _plans[net] = plan
    return plan.filled(net)


def _plan(net: nn.Module, structure: tuple[Any, ...]) -> _Plan:
    bare = _without_values(net, {}).eval()
    with _tracing:
        graph = _Tracer().trace(bare)
    traced = fx.GraphModule(bare, graph)
    if hasattr(net, "feature_dim"):
        traced.feature_dim = net.feature_dim
    norms = _fold_batch_norm(traced)
    _fuse_what_follows(traced)
    traced.recompile()
    for name, layer in traced.named_modules():
        for key in (*layer._parameters, *layer._buffers):
            getattr(net.get_submodule(name), key)  # what tracing alone made, as constants, could not be filled in
        for values in (layer._parameters, layer._buffers):
            values.update({key: NOTHING for key, value in values.items() if value is not None})
    return _Plan(structure, traced, norms)


class _Tracer(fx.Tracer):
    """Treats a batch-norm layer that processes share as one layer, and records only the calls of its own thread: other
    threads may run networks while this one traces."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, SharedBatchNorm2d) or super().is_leaf_module(m, module_qualified_name)


def _structure(net: nn.Module) -> tuple[Any, ...]:
    """What the way through a network may depend on, apart from its weights: its layers and their plain attributes."""
    plain = (bool, int, float, str, tuple, type(None))
    found: list[Any] = []
    for name, layer in net.named_modules():
        kept = [(key, value) for key, value in vars(layer).items() if isinstance(value, plain) and key != "training"]
        absent = [key for key, value in layer._parameters.items() if value is None]
        found.append((name, type(layer), tuple(kept), tuple(absent)))
    return tuple(found)


def _without_values(layer: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
    """Another tree of the same layers, whose weights can be set without changing the first one's."""
    if layer not in known:
        new = known[layer] = object.__new__(type(layer))
        new.__dict__ = {**vars(layer), "_parameters": dict(layer._parameters), "_buffers": dict(layer._buffers)}
        new._modules = {
            name: None if each is None else _without_values(each, known) for name, each in layer._modules.items()
        }
    return known[layer]


@torch.no_grad()
def check_folding(net: nn.Module, image_shape: tuple[int, ...]) -> None:
    """Mark a foreign network as not foldable if its folded copy gives other features for two random images.

    That happens, for instance, because tracing does not see that `x += y` changes every other name of the same tensor.
    A network without values, made to compare sizes, has no output.
    """
    if any(parameter.is_meta for parameter in net.parameters()):
        return
    draws = torch.Generator().manual_seed(0)
    images = torch.randn(2, *image_shape, generator=draws).to(next(net.parameters(), torch.zeros(())))
    training = net.training
    expected, got = net.eval()(images), folded(net)(images)
    net.train(training)
    if not torch.allclose(got, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
        net.foldable = False  # type: ignore[assignment]


def _has_more_to_do(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks) or is_parametrized(layer)


def _fold_batch_norm(net: fx.GraphModule) -> dict[str, str]:
    """Let convolutions take in the batch-norm after them; returns which took in which."""
    calls, norms = _calls_of_each(net), {}
    for conv in _convolutions(net):
        norm = _only_user(conv)
        if norm is not None and _is_layer(net, norm, NORMS) and calls[norm.target] == 1:
            _replace(net, conv, fuse_conv_bn_eval(_layer(net, conv), _layer(net, norm)))
            _replace(net, norm, nn.Identity())
            norms[str(conv.target)] = str(norm.target)
    for node in net.graph.nodes:
        if _is_layer(net, node, nn.Identity) and node.args:
            node.replace_all_uses_with(node.args[0])
            net.graph.erase_node(node)
    return norms


def _fuse_what_follows(net: fx.GraphModule) -> None:
    for conv in _convolutions(net):
        layer, then = _layer(net, conv), _only_user(conv)
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str) or len(conv.args) != 1:
            continue
        shortcut: Any = None
        chain = [conv]
        if then is not None and then.target in SUMS and len(then.args) == 2 and not then.kwargs:
            left, right = then.args
            shortcut = right if left is conv else left
            if not isinstance(shortcut, fx.Node) or left is right or (then.target is operator.iadd and right is conv):
                continue  # the other summand is a number or the same output, or `+=` changes a tensor that others read
            chain, then = [conv, then], _only_user(then)
        if then is None or not _rectifies(net, then):
            continue
        with net.graph.inserting_before(then):
            more = () if shortcut is None else (shortcut, _free_after(net, shortcut, chain[-1]))
            fused = net.graph.call_module(str(conv.target), (*conv.args, *more))
        then.replace_all_uses_with(fused)
        for node in (then, *reversed(chain)):
            net.graph.erase_node(node)
        _replace(net, fused, FusedConv2d(layer))


def _convolutions(net: fx.GraphModule) -> list[fx.Node]:
    """Calls of convolutions. A layer that is called twice is left out: its one weight cannot suit both places."""
    calls = _calls_of_each(net)
    return [node for node in net.graph.nodes if _is_layer(net, node, nn.Conv2d) and calls[node.target] == 1]


def _calls_of_each(net: fx.GraphModule) -> Counter[object]:
    return Counter(node.target for node in net.graph.nodes if node.op == "call_module")


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _rectifies(net: fx.GraphModule, node: fx.Node) -> bool:
    return _is_layer(net, node, nn.ReLU) or node.target in RELUS


def _free_after(net: fx.GraphModule, shortcut: fx.Node, total: fx.Node) -> bool:
    """Whether the shortcut's memory may be reused: a convolution made it, only convolutions read it before the sum."""
    return _is_layer(net, shortcut, nn.Conv2d) and all(
        user is total or (user < total and _is_layer(net, user, nn.Conv2d)) for user in shortcut.users
    )


def _is_layer(net: fx.GraphModule, node: fx.Node, kind: type[nn.Module] | tuple[type[nn.Module], ...]) -> bool:
    return node.op == "call_module" and isinstance(_layer(net, node), kind)


def _layer(net: fx.GraphModule, node: fx.Node) -> Any:
    return net.get_submodule(str(node.target))


def _replace(net: fx.GraphModule, node: fx.Node, module: nn.Module) -> None:
    parent, _, name = str(node.target).rpartition(".")
    setattr(net.get_submodule(parent), name, module)
