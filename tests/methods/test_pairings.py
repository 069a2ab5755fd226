"""Any drift compensator on any base learner that keeps prototypes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gatf.config import RunConfig
from gatf.experiment import Experiment

Tiny = Callable[..., RunConfig]
Learn = Callable[..., Experiment]

COMPENSATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "sdc": ("sdc", {}),
    "adc": ("adc", {"method.candidates": 10}),
    "ldc trained": ("ldc", {"method.projector_updates": 20}),
}
BASES: dict[str, dict[str, Any]] = {
    "lwf": {"method.base": "lwf"},
    "lwf with linear heads": {"method.base": "lwf", "method.base.cosine_head": False},
    "lwf on unit vectors": {"method.base": "lwf", "method.normalise": True},
    "feature distillation": {"method.base": "feature"},
    "triplet": {"method.base": "triplet", "method.base.embedding": 16},
    "triplet without layer": {
        "method.base": "triplet",
        "method.base.embedding": None,
        "method.base.regulariser": "ewc",
    },
}


UNCOMPENSATED: dict[str, Any] = {}
"""By base: the method whose prototypes stay, which all compensators share."""


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("compensator", COMPENSATORS)
def test_a_compensator_moves_the_prototypes_of_any_base(
    tiny_config: Tiny, learn: Learn, compensator: str, base: str
) -> None:
    """It moves the old prototypes, and nothing else: network and new prototypes are the base's alone."""
    name, settings = COMPENSATORS[compensator]
    if base not in UNCOMPENSATED:
        stays = tiny_config("sdc", **BASES[base], **{"method.compensate": False})
        UNCOMPENSATED[base] = learn(stays, tasks=2).method
    on, off = learn(tiny_config(name, **settings, **BASES[base]), tasks=2).method, UNCOMPENSATED[base]
    assert not torch.equal(on.prototypes.means[:2], off.prototypes.means[:2])
    assert torch.equal(on.prototypes.means[2:], off.prototypes.means[2:])
    weights = off.backbone.state_dict()
    assert all(torch.equal(tensor, weights[key]) for key, tensor in on.backbone.state_dict().items())
    scores = on.scores(torch.rand(5, 1, 8, 8))
    assert scores.shape == (5, 4)
    assert scores.isfinite().all()
    assert not any("teacher" in key or "projector" in key for key in on.state_dict())
    dim = on.prototypes.means.shape[1]
    assert dim == (16 if base == "triplet" else 32)
    assert on.bytes_per_class() == 4 * dim
    elsewhere = base.startswith("triplet") or base == "lwf on unit vectors"
    assert (on.centres() is None) == elsewhere  # prototypes are not in the backbone's space
