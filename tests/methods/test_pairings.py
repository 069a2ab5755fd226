"""Any drift compensation on any base learner."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gatf.config import RunConfig
from gatf.experiment import Experiment

Tiny = Callable[..., RunConfig]
Learn = Callable[..., Experiment]

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "sdc": ("sdc", {}),
    "adc": ("adc", {"method.candidates": 10}),
    "ldc trained": ("ldc", {"method.projector_updates": 20}),
}
BASES: dict[str, dict[str, Any]] = {
    "lwf": {"method.base": "lwf"},
    "triplet": {"method.base": "triplet", "method.base.embedding": 16},
    "triplet without layer": {
        "method.base": "triplet",
        "method.base.embedding": None,
        "method.base.regulariser": "ewc",
    },
}


UNCOMPENSATED: dict[str, Any] = {}
"""By base: the method whose prototypes stay, which all methods share."""


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("method", METHODS)
def test_compensation_moves_the_prototypes_of_any_base(tiny_config: Tiny, learn: Learn, method: str, base: str) -> None:
    """It moves the old prototypes, and nothing else: network and new prototypes are the base's alone."""
    name, settings = METHODS[method]
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
    assert (on.centres() is None) == base.startswith("triplet")  # prototypes are not in the backbone's space
