"""What a model is and what it keeps, as `GET /v1/model` tells it."""

from typing import Any

from gatf import __version__
from gatf.serve.live import Served
from gatf.serve.schemas import Record

RECORDED = tuple(name for name in Record.model_fields if name != "text")


def described(served: Served, name: str, versions: list[int]) -> dict[str, Any]:
    """As `schemas.ModelInfo` has it; `versions` are those that were kept."""
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
        "versions": versions,
    }


def _kept(served: Served) -> list[dict[str, Any]]:
    """Everything that is in the file, in bytes: no picture is."""
    model = served.model
    classes = len(model.labels)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.method.backbone.state_dict().values())
    of_classes = "what the method stores of classes"
    if served.keeps_gaussians:
        stored = model.judge.stored
        features = stored.means.shape[1]
        of_classes = f"for each of {classes} classes a mean of {features} numbers and a covariance"
        if stored.common is not None:
            of_classes = f"for each of {classes} classes a mean of {features} numbers, and one covariance for all"
    rest = served.bytes - weights - classes * model.history[-1].bytes_per_class
    return [
        {"what": f"the network's weights: {model.config.backbone}", "bytes": weights},
        {"what": of_classes, "bytes": classes * model.history[-1].bytes_per_class},
        {"what": "names, numbers of pictures, what those kept back showed, the history", "bytes": max(0, rest)},
    ]
