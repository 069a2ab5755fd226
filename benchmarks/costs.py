"""What a run of GATF costs, in operations and bytes, and how seconds are fitted to them. Nothing is measured here.

Networks are counted on torch's meta device, where tensors have shapes and no contents: any width and image size counts
in milliseconds. Operations are those of products and convolutions (torch's own counter); traffic is the bytes that all
operations write; what backward needs is the bytes that autograd keeps.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from gatf.nets.mlp import feature_mlp
from gatf.nets.resnet import ResNet18, Stem

Work = dict[str, float]
"""Amounts by name: `once` (1, the constant), `operations`, `bytes`, …"""
EXPANSION = 32
"""Hidden units of GATF's maps, as a multiple of S: the method's default."""
FLOAT, DOUBLE, LONG = 4, 8, 8


@dataclass(frozen=True)
class Network:
    """What decides a network's cost."""

    width: int
    pixels: int = 32
    stem: Stem = "3x3"
    dim: int = 64
    """S, the bottleneck."""


def build(net: Network) -> ResNet18:
    """The network without contents."""
    with torch.device("meta"):
        return ResNet18(width=net.width, stem=net.stem, bottleneck=net.dim)


@cache
def backbone_parameters(net: Network) -> int:
    return sum(parameter.numel() for parameter in build(net).parameters())


def parameters(net: Network, *, new_classes: int, first: bool = False) -> int:
    """Trained in a task: backbone and head (four rotations of every class in the first task), then the two maps."""
    backbone = backbone_parameters(net)
    if first:
        return backbone + 4 * new_classes * (net.dim + 1)
    hidden = EXPANSION * net.dim
    return backbone + new_classes * (net.dim + 1) + 2 * (2 * hidden * net.dim + hidden + net.dim)


@cache
def channels(net: Network) -> tuple[int, ...]:
    """Of every batch-norm layer."""
    return tuple(module.num_features for module in build(net).modules() if isinstance(module, nn.BatchNorm2d))


class Written(TorchDispatchMode):
    """Adds up the bytes that operations write; a view writes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.bytes += sum(leaf.nbytes for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
        return out


@cache
def step_work(net: Network, *, batch: int, new_classes: int, first: bool = False) -> Work:
    """One step: student forward and backward; after the first task also the teacher forward and both maps."""
    student, teacher = build(net), build(net).eval()
    images = torch.empty(batch, 3, net.pixels, net.pixels, device="meta")
    with torch.device("meta"):
        head = nn.Linear(net.dim, (4 if first else 1) * new_classes)
        maps = [] if first else [feature_mlp(net.dim, EXPANSION) for _ in range(2)]
    with FlopCounterMode(display=False) as counter, Written() as written:
        features = student(images)
        loss = head(features).sum()
        if not first:
            with torch.no_grad():
                old = teacher(images)
            loss = loss + maps[0](old).sum() + maps[1](features).sum()
        loss.backward()
    return {"once": 1, "operations": counter.get_total_flops(), "bytes": written.bytes}


@cache
def _forward_once(net: Network) -> tuple[int, int]:
    """Operations and bytes of one image."""
    frozen, image = build(net).eval(), torch.empty(1, 3, net.pixels, net.pixels, device="meta")
    with FlopCounterMode(display=False) as counter, Written() as written, torch.no_grad():
        frozen(image)
    return counter.get_total_flops(), written.bytes


def forward_work(net: Network, *, images: int, networks: int = 1) -> Work:
    """Images through so many frozen networks."""
    operations, written = _forward_once(net)
    return {"once": 1, "operations": images * networks * operations, "bytes": images * networks * written}


@cache
def kept_for_backward(net: Network, *, batch: int) -> int:
    """Bytes of activations that autograd holds between the student's forward and backward."""
    student = build(net)
    own = {parameter.untyped_storage()._cdata for parameter in student.parameters()}
    held: dict[int, Tensor] = {}  # keeps the tensors alive, so that no two share an address

    def keep(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        student(torch.empty(batch, 3, net.pixels, net.pixels, device="meta"))
    return sum(tensor.untyped_storage().nbytes() for place, tensor in held.items() if place not in own)


def step_memory(net: Network, *, batch: int, new_classes: int) -> Work:
    """What a step adds to the networks: activations, gradients and momentum."""
    trained = parameters(net, new_classes=new_classes)
    return {"once": 1, "bytes": kept_for_backward(net, batch=batch) + 2 * FLOAT * trained}


def refresh_work(net: Network, *, images: int) -> Work:
    """One estimate of the anchor, but for its solution: both networks, and moments of pairs (2S long)."""
    work = forward_work(net, images=images, networks=2)
    return work | {"operations": work["operations"] + 2 * images * (2 * net.dim) ** 2}


def statistics_work(net: Network, *, images: int) -> Work:
    """The moments of new classes: every image and its mirror image."""
    work = forward_work(net, images=2 * images)
    return work | {"operations": work["operations"] + 2 * 2 * images * net.dim**2}


def solve_work(dim: int) -> Work:
    """Eigendecompositions and products of [S, S]."""
    return {"once": 1, "squares": dim**2, "cubes": dim**3}


def transport_work(classes: int, *, samples: int, dim: int) -> Work:
    """Drawing (2S²), anchor (2S²), residual (4·32·S²) and moments (2S²) of every sample; bytes are the hidden layer's
    before and after its activation."""
    rows = classes * samples
    return {
        "once": 1,
        "operations": rows * (6 + 4 * EXPANSION) * dim**2,
        "bytes": rows * 2 * FLOAT * EXPANSION * dim,
    }


def per_class_work(classes: int, *, dim: int) -> Work:
    """One factorisation a class: of matrices [S, S]."""
    return {"once": 1, "squares": classes * dim**2, "cubes": classes * dim**3}


def scoring_work(kind: str, *, images: int, classes: int, dim: int, rank: int, rows_at_once: int = 256) -> Work:
    """Distances of images to all classes. What is kept of the classes is read once for every `rows_at_once` images:
    that is what one image alone waits for."""
    numbers = {"full": dim**2, "lowrank": (rank + 2) * dim, "diag": 2 * dim, "shared": dim}[kind]
    reads = math.ceil(images / rows_at_once) if kind in ("full", "lowrank") else 1
    return {
        "once": 1,
        "operations": 2 * images * classes * numbers,
        "bytes": DOUBLE * classes * (reads * numbers + images),
    }


# between processes


def ring(numbers: float, *, processes: int, size: int = FLOAT) -> float:
    """Bytes that a process sends to sum so many numbers over all (a ring: twice all but its share)."""
    return 2 * numbers * size * (processes - 1) / processes


def traffic(
    net: Network, *, processes: int, new_classes: int, seen_classes: int, test_images: int, first: bool = False
) -> dict[str, dict[str, float]]:
    """Bytes that a process sends: each step, each refresh of the anchor, each task. From the code that sends them:

    gradients (DDP), batch-norm sums (nets/shared_norm.py: C + 1 and C numbers forward, the same backward),
    anti-collapse (methods/parts/components.py: count, sum and scatter forward, the last two backward), anchor moments
    (geometry/moments.py `over`, vectors of 2S, float64), class moments and Gaussians that were carried
    (methods/parts/memory.py, float64), the two classes chosen per test image (evaluation/metrics.py, int64), what the
    first process sends to the others (`ranks.take_from_first`).
    """
    dim, norms = net.dim, channels(net)
    sums = {
        "gradients": parameters(net, new_classes=new_classes, first=first),
        "batch norm": 2 * sum(2 * each + 1 for each in norms),
        "anti-collapse": 1 + 2 * (dim + dim**2),
    }
    step = {name: ring(numbers, processes=processes) for name, numbers in sums.items()}
    anchor = ring(1 + 2 * dim + 4 * dim**2, processes=processes, size=DOUBLE)
    backbone = sum(tensor.numel() for tensor in build(net).state_dict().values())
    gaussians = seen_classes * (dim + dim * (dim + 1) // 2)
    others = (processes - 1) / processes
    return {
        "step": step,
        "refresh": {"anchor moments": anchor},
        "task": {
            "class moments": ring(new_classes * (1 + dim + dim**2), processes=processes, size=DOUBLE),
            "moved Gaussians": others * (seen_classes - new_classes) * (dim + dim * (dim + 1) // 2) * DOUBLE,
            "answers to test images": others * test_images * 2 * LONG,
            "state from the first process": FLOAT * (backbone + gaussians),
        },
    }


# fitting


def fit(works: Sequence[Work], measured: Sequence[float]) -> Work:
    """Coefficients ≥ 0 of measured ≈ Σ coefficient·work, by least squares of relative errors."""
    names = list(works[0])
    table = np.array([[work[name] for name in names] for work in works], dtype=float)
    scale = table.max(axis=0)
    target = np.asarray(measured, dtype=float)
    solution, _ = nnls(table / scale / target[:, None], np.ones(len(target)))
    return dict(zip(names, (solution / scale).tolist(), strict=True))


def predict(coefficients: Work, work: Work) -> float:
    """Σ coefficient·work over what was fitted."""
    return sum(coefficient * work[name] for name, coefficient in coefficients.items())


@dataclass
class Component:
    """A part of a run: measured at some configurations, the largest last."""

    name: str
    unit: str
    configurations: list[str]
    works: list[Work]
    measured: list[float]

    @property
    def coefficients(self) -> Work:
        return fit(self.works, self.measured)

    def held_out(self) -> dict[str, Any]:
        """The largest configuration, predicted from the others."""
        predicted = predict(fit(self.works[:-1], self.measured[:-1]), self.works[-1])
        actual = self.measured[-1]
        return {
            "configuration": self.configurations[-1],
            "measured": actual,
            "predicted": predicted,
            "error_percent": 100 * (predicted / actual - 1),
        }

    def report(self) -> dict[str, Any]:
        fitted = [predict(self.coefficients, work) for work in self.works]
        errors = [100 * abs(each / actual - 1) for each, actual in zip(fitted, self.measured, strict=True)]
        points = [
            {"configuration": label, "measured": actual, "fitted": each, "work": work}
            for label, work, actual, each in zip(self.configurations, self.works, self.measured, fitted, strict=True)
        ]
        return {
            "name": self.name,
            "unit": self.unit,
            "coefficients": self.coefficients,
            "median_error_percent": statistics.median(errors),
            "worst_error_percent": max(errors),
            "held_out": self.held_out(),
            "points": points,
        }
