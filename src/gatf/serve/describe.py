"""The description of a model that `GET /v1/model` returns."""

from typing import Any

from gatf import __version__
from gatf.serve.atlas import last_update
from gatf.serve.live import Served
from gatf.serve.schemas import Record

RECORDED = tuple(name for name in Record.model_fields if name != "text")


def describe(served: Served, name: str, versions: list[int]) -> dict[str, Any]:
    """The fields of `schemas.ModelInfo`; `versions` are the numbers of the versions that a rollback can restore."""
    model = served.model
    known = len(model.novelty)
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


def _kept(served: Served) -> list[dict[str, Any]]:
    """The contents of the file and their sizes in bytes. No image is among them."""
    model = served.model
    classes = len(model.labels)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.method.backbone.state_dict().values())
    of_classes = "the method's statistics of the classes"
    if served.keeps_gaussians:
        stored = model.stored
        features = stored.means.shape[1]
        of_classes = f"a mean of {features} numbers and a covariance for each of {classes} classes"
        if stored.common is not None:
            of_classes = f"a mean of {features} numbers for each of {classes} classes, and one covariance for all"
    rest = served.bytes - weights - classes * model.history[-1].bytes_per_class
    return [
        {"what": f"the network's weights: {model.config.backbone}", "bytes": weights},
        {"what": of_classes, "bytes": classes * model.history[-1].bytes_per_class},
        {"what": "class names, image counts, calibration and history", "bytes": max(0, rest)},
    ]
