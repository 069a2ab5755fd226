"""Shared by all tests: one thread a process (tests run side by side), and a run small enough to repeat often."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gatf.config import RunConfig, load_config

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., RunConfig]:
    """`tiny_config("gatf", **{"seed": 1})`: three tasks of digits in about a second."""

    def build(method: str, **overrides: Any) -> RunConfig:
        small = {
            "data.max_per_class": 40,
            "scenario.stop_after": 3,
            "backbone.width": 8,
            "optimisation.first.epochs": 3,
            "optimisation.next.epochs": 3,
            "optimisation.first.batch_size": 48,
            "optimisation.next.batch_size": 48,
            "checkpoint_every": 1,
        }
        if method in ("gatf", "adagauss"):
            small |= {"backbone.bottleneck": 8, "method.samples": 200}
        return load_config("digits", method=method, overrides=small | overrides)

    return build
