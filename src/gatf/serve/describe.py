"""The description of a model that `GET /v1/model` returns."""

from typing import Any

from torch import Tensor

from gatf import __version__
from gatf.model.record import FEWEST_TO_REPORT
from gatf.model.state import Model
from gatf.serve.atlas import last_update
from gatf.serve.live import Served
from gatf.serve.schemas import Record

RECORDED = tuple(name for name in Record.model_fields if name != "text")


def describe(served: Served, name: str, versions: list[int]) -> dict[str, Any]:
    """The fields of `schemas.ModelInfo`; `versions` are the numbers of the versions that a rollback can restore."""
    model = served.model
    known = len(model.novelty) if len(model.novelty) >= FEWEST_TO_REPORT else 0
    return {
        "name": name,
        "digest": served.digest,
        "bytes": served.bytes,
        "gatf": __version__,
        "method": model.config.method.name,
        "network": str(model.config.backbone),
        "shape": list(model.preprocessing.shape),
        "classes": len(model.labels),
        "certifies": served.certifies,
        "adapt": None if model.adapts is None else model.adapt,
        "unknown": {
            "available": known > 0 and model.rejection != "withdrawn",
            "status": model.rejection,
            "smallest_rate": 1 / (known + 1) if known else None,
        },
        "kept": _kept(served),
        "history": [
            {"text": str(record), **{field: getattr(record, field) for field in RECORDED}} for record in model.history
        ],
        "updates": last_update(model),
        "versions": versions,
    }


def describe_classes(served: Served) -> dict[str, Any]:
    """The response of `GET /v1/classes`."""
    model = served.model
    since = {label: record.number for record in reversed(model.history) for label in record.added}
    complete = len(model.history) == last_update(model) + 1
    return {
        "classes": [
            {
                "label": label, "images": int(count), "since": since.get(label, 0 if complete else None),
                "bytes": model.history[-1].bytes_per_class, "accuracy": accuracy, "similar": similar,
            }
            for label, count, accuracy, similar in zip(
                model.labels, model.counts, class_accuracies(model), served.similar, strict=True
            )
        ]
    }  # fmt: skip


def class_accuracies(model: Model) -> list[float | None]:
    """Of every class in percent: measured when it was learnt, times the declines since then. None where fewer than
    twenty of its images measured it."""
    if not len(model.measured):
        return [None] * len(model.labels)
    rows = model.measured.tolist()
    return [100 * share if images >= FEWEST_TO_REPORT else None for share, images, _ in rows]


def _kept(served: Served) -> list[dict[str, Any]]:
    """The contents of the file and their sizes in bytes, which add up to its size. No image is among them."""
    model, state = served.model, served.model.method.state_dict()
    classes, left = len(model.labels), served.bytes
    parts: list[tuple[str, int]] = []

    def part(what: str, *tensors: Tensor) -> None:
        nonlocal left
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        left -= size
        if size:
            parts.append((what, size))

    def those(*names: str) -> list[Tensor]:
        return [state.pop(name) for name in names if name in state]

    part(f"the network's weights: {model.config.backbone}", *those(*(n for n in state if n.startswith("backbone."))))
    part(f"the mean of each of {classes} classes and its number of images", *those("memory.means", "memory.counts"))
    part("one covariance of features, shared by all classes", *those("memory.triangle"))
    part(f"a covariance of features for each of {classes} classes", *those("memory.triangles"))
    part("the classifier computed from them", *those("rule.weight", "rule.bias"))
    part("other statistics of the method", *those(*state))
    numbers = "one number" if model.novelty.shape[1] == 1 else "two numbers"
    part(f"how unusual each of {len(model.novelty):,} images was, {numbers} per image", model.novelty)
    part("calibration, accuracies and transport errors of classes", model.calibration, model.measured, model.errors)
    if served.beside:
        parts.append(("the frozen classifier beside the adapted one", served.beside))
        left -= served.beside
    names = "class names, image counts, settings, history with dates and accuracies"
    return [{"what": what, "bytes": size} for what, size in [*parts, (names, left)]]
