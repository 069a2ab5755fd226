"""What the cost model says for runs larger than this machine: ImageNet-1k on eight GPUs, and 100 000 classes.

The GPU's speeds are ASSUMPTIONS, nothing here was measured on one: put your own into `GPU`. A time there is
operations / operations per second + bytes written / bytes per second + bytes sent / bytes sent per second, and none
of these overlap.
"""

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import costs
from costs import Network, Work

from gatf.data.loader import EVALUATION_BATCH
from gatf.methods.gatf import GATFConfig

KINDS = ("full", "lowrank", "diag", "shared")
DIMS = (64, 128)
RANK = 8


def draws(dim: int) -> int:
    """Samples a class in transport, as by default."""
    return GATFConfig().draws(dim)


@dataclass(frozen=True)
class Device:
    """Speeds that a run gets out of a device: a good part of the data sheet's, not all of it."""

    operations: float
    """Float32 operations a second in convolutions and products."""
    doubles: float
    """Float64 operations a second."""
    written: float
    """Bytes a second that operations write."""
    sent: float
    """Bytes per second between processes."""

    def seconds(self, work: Work, *, double: bool = False) -> float:
        speed = self.doubles if double else self.operations
        return work.get("operations", 0.0) / speed + work.get("bytes", 0.0) / self.written


GPU = Device(operations=15e12, doubles=5e12, written=1e12, sent=50e9)
"""ASSUMED: a data-centre GPU in TF32 and its link to the others of a node."""
ETHERNET = 1e9
"""ASSUMED: bytes per second between nodes, 10-Gbit Ethernet."""
PROCESSES = 8


@dataclass(frozen=True)
class Job:
    """A run to be predicted."""

    net: Network
    classes: int
    tasks: int
    images: int
    test_images: int
    epochs: int
    batch: int
    """Of all processes."""
    refresh: int = 10
    """Epochs between two estimates of the anchor."""

    @property
    def new(self) -> int:
        return self.classes // self.tasks

    @property
    def images_a_task(self) -> int:
        return self.images // self.tasks


def imagenet(dim: int) -> Job:
    """ImageNet-1k in ten tasks. The batch is larger than S = 512, as the anti-collapse loss needs."""
    net = Network(width=64, pixels=224, stem="7x7", dim=dim)
    return Job(net, classes=1000, tasks=10, images=1_281_167, test_images=50_000, epochs=100, batch=1024)


CPU_RECIPE = Job(Network(16), classes=100, tasks=10, images=20_000, test_images=10_000, epochs=30, batch=128, refresh=2)
"""recipes/cifar100-cpu.yaml."""


@cache
def on_gpus(job: Job) -> dict[str, Any]:
    """Hours, memory and traffic of a run on `PROCESSES` of `GPU`, which divide the old Gaussians between them."""
    share = job.batch // PROCESSES
    at_first, sent = (
        costs.traffic(
            job.net, processes=PROCESSES, new_classes=job.new, seen_classes=job.classes, test_images=job.test_images,
            first=first,
        )
        for first in (True, False)
    )  # fmt: skip
    steps = job.epochs * (job.images_a_task // job.batch)
    hours: dict[str, float] = {}
    first = GPU.seconds(costs.step_work(job.net, batch=share, new_classes=job.new, first=True))
    step = GPU.seconds(costs.step_work(job.net, batch=share, new_classes=job.new))
    exchange = sum(sent["step"].values())
    hours["first task, four rotations"] = 4 * steps * (first + sum(at_first["step"].values()) / GPU.sent)
    hours["later tasks: steps"] = (job.tasks - 1) * steps * step
    hours["later tasks: exchange of gradients"] = (job.tasks - 1) * steps * exchange / GPU.sent
    once = GPU.seconds(costs.refresh_work(job.net, images=job.images_a_task // PROCESSES))
    hours["anchor refreshes"] = (job.tasks - 1) * (job.epochs // job.refresh) * once
    transported = sum(task * job.new for task in range(1, job.tasks))
    hours["transport"] = GPU.seconds(
        costs.transport_work(transported // PROCESSES, samples=draws(job.net.dim), dim=job.net.dim)
    )
    learnt = costs.statistics_work(job.net, images=job.images // PROCESSES)
    hours["class statistics"] = GPU.seconds(learnt)
    seen = sum((task + 1) / job.tasks for task in range(job.tasks))
    tested = costs.forward_work(job.net, images=int(seen * job.test_images) // PROCESSES)
    scored = costs.scoring_work(
        "full", images=job.test_images // PROCESSES, classes=job.classes, dim=job.net.dim, rank=RANK
    )
    hours["evaluation"] = GPU.seconds(tested) + job.tasks * GPU.seconds(scored, double=True)
    hours = {name: seconds / 3600 for name, seconds in hours.items()}
    trained = costs.parameters(job.net, new_classes=job.new)
    stored = bytes_kept("full", dim=job.net.dim)
    memory = {
        "student, maps, gradients and their buckets, momentum": 4 * costs.FLOAT * trained,
        "teacher": costs.FLOAT * costs.backbone_parameters(job.net),
        "activations": costs.kept_for_backward(job.net, batch=share),
        "Gaussians": job.classes * stored,
        "readout of the Gaussians": job.classes * bytes_read("full", dim=job.net.dim),
        "test scores": EVALUATION_BATCH * job.classes * BYTES_A_SCORE,
    }
    return {
        "dim": job.net.dim, "batch": job.batch, "trained_parameters": trained, "steps_a_task": steps,
        "images_a_second": job.batch / (step + exchange / GPU.sent),
        "hours": hours, "hours_in_all": sum(hours.values()),
        "bytes_a_process": memory, "bytes_sent": sent,
        "exchange_percent": {
            name: 100 * (exchange / speed) / (step + exchange / speed)
            for name, speed in (("one node", GPU.sent), ("Ethernet", ETHERNET))
        },
    }  # fmt: skip


# what grows with the number of classes

BYTES_A_SCORE = 2 * costs.DOUBLE + 1
"""A test image and a class: its score, a copy of it and a mask (evaluation/metrics.py)."""


def bytes_kept(kind: str, *, dim: int, rank: int = RANK) -> int:
    """Between tasks, a class: float32 mean and what is kept of its covariance (methods/parts/storage.py)."""
    covariance = {"full": dim * (dim + 1) // 2, "lowrank": (rank + 1) * dim, "diag": dim, "shared": 0}[kind]
    return costs.FLOAT * (dim + covariance)


def bytes_read(kind: str, *, dim: int, rank: int = RANK) -> int:
    """While scoring, on top, a class: centres and inverse factors in float64 (geometry/readout.py, compact.py)."""
    low_rank = 2 * dim + 1
    numbers = {
        "full": 2 * dim + dim**2,
        "lowrank": low_rank + rank * dim + rank,
        "diag": low_rank,
        "shared": dim,
    }
    return costs.DOUBLE * numbers[kind]


def many_classes(fitted: dict[str, Work], *, classes: int, dim: int) -> list[dict[str, Any]]:
    """So many classes, each kind of covariance: bytes, and seconds here and on a GPU."""
    rows = []
    transport = costs.transport_work(classes, samples=draws(dim), dim=dim)
    for kind in KINDS:
        alone = costs.scoring_work(kind, images=1, classes=classes, dim=dim, rank=RANK)
        many = costs.scoring_work(kind, images=256, classes=classes, dim=dim, rank=RANK)
        here = costs.predict(fitted["transport"], transport)
        if kind == "lowrank":
            here += costs.predict(fitted["fitting low rank"], costs.per_class_work(classes, dim=dim))
        rows.append({
            "dim": dim, "kind": kind, "classes": classes,
            "bytes_kept": classes * bytes_kept(kind, dim=dim), "bytes_read": classes * bytes_read(kind, dim=dim),
            "seconds_alone": costs.predict(fitted[f"scoring one image, {kind}"], alone),
            "seconds_in_batch": costs.predict(fitted[f"scoring 256 images, {kind}"], many) / 256,
            "transport_here": here, "transport_gpu": GPU.seconds(transport),
        })  # fmt: skip
    return rows


def training_of_a_task(fitted: dict[str, Work], job: Job) -> float:
    """Seconds here of a task after the first: steps and refreshes."""
    steps = job.epochs * (job.images_a_task // job.batch)
    step = costs.predict(fitted["training step"], costs.step_work(job.net, batch=job.batch, new_classes=job.new))
    work = costs.refresh_work(job.net, images=job.images_a_task)
    refresh = costs.predict(fitted["anchor refresh, pass"], work)
    return steps * step + job.epochs // job.refresh * refresh


def walls(fitted: dict[str, Work], dim: int) -> list[dict[str, Any]]:
    """Numbers of classes at which something ends, for each kind of covariance."""
    rows: list[dict[str, Any]] = []

    def add(what: str, by_kind: dict[str, float]) -> None:
        rows.append({"dim": dim, "what": what, "classes": {kind: int(count) for kind, count in by_kind.items()}})

    for limit, name in ((1e9, "1 GB"), (16e9, "16 GB")):
        add(f"kept Gaussians take {name}", {kind: limit / bytes_kept(kind, dim=dim) for kind in KINDS})
        add(
            f"Gaussians and readout take {name}",
            {kind: limit / (bytes_kept(kind, dim=dim) + bytes_read(kind, dim=dim)) for kind in KINDS},
        )
    add("scoring one image takes 100 ms here", {kind: _image_limit(fitted, kind, dim) for kind in KINDS})
    train = training_of_a_task(fitted, CPU_RECIPE)
    add(
        "transport takes as long as training, here, recipe cifar100-cpu",
        {kind: train / _transport_a_class(fitted, kind, dim) for kind in KINDS},
    )
    job = imagenet(dim)
    result = on_gpus(job)
    per_task = 3600 * sum(result["hours"][name] for name in result["hours"] if name.startswith("later"))
    per_class = GPU.seconds(costs.transport_work(1, samples=draws(dim), dim=dim)) / PROCESSES
    add(
        "transport takes as long as training, 8 GPUs, a task of ImageNet-1k",
        dict.fromkeys(KINDS, per_task / (job.tasks - 1) / per_class),
    )
    return rows


def _slope(coefficients: Work, one: Work, two: Work) -> float:
    return costs.predict(coefficients, two) - costs.predict(coefficients, one)


def _image_limit(fitted: dict[str, Work], kind: str, dim: int, limit: float = 0.1) -> float:
    """Classes after which one image alone takes longer than the limit."""
    coefficients = fitted[f"scoring one image, {kind}"]
    one, two = (costs.scoring_work(kind, images=1, classes=count, dim=dim, rank=RANK) for count in (1, 2))
    slope = _slope(coefficients, one, two)
    return (limit - costs.predict(coefficients, one)) / slope + 1 if slope > 0 else float("inf")


def _transport_a_class(fitted: dict[str, Work], kind: str, dim: int) -> float:
    one, two = (costs.transport_work(count, samples=draws(dim), dim=dim) for count in (1, 2))
    seconds = _slope(fitted["transport"], one, two)
    if kind == "lowrank":
        few, more = (costs.per_class_work(count, dim=dim) for count in (1, 2))
        seconds += _slope(fitted["fitting low rank"], few, more)
    return seconds


def everything(fitted: dict[str, Work]) -> dict[str, Any]:
    """All that is said, with what it rests on."""
    return {
        "assumptions": {
            "gpu": asdict(GPU), "ethernet": ETHERNET, "processes": PROCESSES, "samples_a_dimension": draws(1),
            "rank": RANK,
        },
        "imagenet": [on_gpus(imagenet(dim)) for dim in (64, 512)],
        "many_classes": [row for dim in DIMS for row in many_classes(fitted, classes=100_000, dim=dim)],
        "walls": [row for dim in DIMS for row in walls(fitted, dim)],
    }  # fmt: skip
