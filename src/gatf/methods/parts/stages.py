"""Optimisers and schedules that several releases share, as layers of the `optimisation` section."""

from collections.abc import Sequence
from typing import Any


def facil_stage(lr: float) -> dict[str, Any]:
    """What FACIL's EWC and LwF have of their own; SGD, steps and clipping are the common ones (AdaGauss, BiCyc)."""
    return {"optimiser": "sgd", "lr": lr, "warmup": 0.0, "drop_last": False}


def pycil_stage(epochs: int, milestones: Sequence[int], weight_decay: float) -> dict[str, Any]:
    """How PyCIL trains EWC and LwF: SGD at 0.1 in batches of 128, ×0.1 after these epochs, no gradient clipping."""
    return {
        "optimiser": "sgd", "epochs": epochs, "batch_size": 128, "lr": 0.1, "momentum": 0.9,
        "weight_decay": weight_decay, "schedule": "steps",
        "milestones": [round(epoch / epochs, 4) for epoch in milestones], "decay": 0.1, "clip": None, "warmup": 0.0,
        "drop_last": False,
    }  # fmt: skip


LWF_OPTIMISATION: dict[str, Any] = {
    "first": {
        "optimiser": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "steps",
        "milestones": [0.3, 0.6, 0.8], "decay": 0.1, "clip": None, "warmup": 0.0, "drop_last": False,
    },
    "next": {
        "optimiser": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 2e-4, "schedule": "steps",
        "milestones": [0.45, 0.9], "decay": 0.1, "clip": None, "warmup": 0.0, "drop_last": False,
    },
}  # fmt: skip
"""How the ADC, LDC and DPCR releases train LwF on CIFAR-100 and ImageNet-100 (200 then 100 epochs, batch 128)."""

FIRST_TASK_OPTIMISATION: dict[str, Any] = {
    "first": {
        "optimiser": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine", "clip": None,
        "drop_last": False, "warmup": 0.0,
    }
}  # fmt: skip
"""How PyCIL trains a network that is frozen after the first task (FeTrIL, FeCAM)."""
