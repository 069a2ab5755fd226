"""BiCyc against its authors' code (bicyc.md)."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gatf.geometry import gaussians
from gatf.geometry.gaussians import Gaussians
from gatf.methods.base import TaskInfo
from gatf.methods.bicyc import BiCyc, BiCycConfig
from gatf.methods.parts.mapped import MLPConfig
from gatf.settings import OptimisationConfig, StageConfig

EXACT = {"rtol": 1e-9, "atol": 1e-10}
STORED = {"rtol": 2e-6, "atol": 1e-7}
"""We keep Gaussians in float32."""


@pytest.fixture(scope="module")
def trained(
    recorded: Callable[..., dict[str, Tensor]], bottleneck_net: Any, toy_tasks: Any, traced_training: Any
) -> Any:
    """The recorded second task again, by this package's code."""
    case = recorded("bicyc", "input/")
    stage = StageConfig(epochs=20, batch_size=48, lr=0.002)
    config = BiCycConfig(map=MLPConfig(expansion=3), samples=24, matched_noise=False)
    method = BiCyc(config, bottleneck_net(recorded("bicyc", "input/net/")), OptimisationConfig(next=stage), 0)
    data = toy_tasks(case["images"], case["labels"], [2, 2])[1]
    method.begin_task(TaskInfo(1, 2, 2, len(data)))
    for part in ("head", "distiller", "adapter"):
        getattr(method, part).load_state_dict(recorded("bicyc", f"input/{part}/"))
    training, fitting = method.phases(data.info)
    losses, _ = traced_training(training, data)
    after = {
        part: {k: v.clone() for k, v in getattr(method, part).state_dict().items()} for part in ("adapter", "distiller")
    }
    after["net"] = method.backbone.state_dict()
    traced_training(fitting, data)
    method.memory.set(Gaussians(case["means"].float(), case["covs"].float()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaussians, "white_noise", lambda *args, **how: case["noise"])
        method.eval()
        method.push_memory(method.adapter, 1)
    return SimpleNamespace(losses=losses, after=after, stored=method.memory.get())


def test_the_losses_of_both_maps_in_every_epoch(trained: Any, recorded: Callable[..., dict[str, Tensor]]) -> None:
    """λ_bi, λ_cycle and λ_pair terms together, over twenty epochs."""
    terms = torch.tensor([trained.losses[name] for name in ("forward", "backward", "cycle", "pairs")])
    expected = recorded("bicyc", "expected/")["alignment"]
    torch.testing.assert_close(terms.double().sum(0), expected, rtol=1e-6, atol=1e-6)  # terms are logged in float32
    assert bool((terms > 0).all())


@pytest.mark.parametrize(
    ("part", "name"), [("net", "net"), ("adapter", "trained adapter"), ("distiller", "trained distiller")]
)
def test_networks_and_maps_after_training(
    part: str, name: str, trained: Any, recorded: Callable[..., dict[str, Tensor]]
) -> None:
    for key, expected in recorded("bicyc", f"expected/{name}/").items():
        torch.testing.assert_close(trained.after[part][key], expected, **EXACT)


def test_transported_gaussians(trained: Any, recorded: Callable[..., dict[str, Tensor]]) -> None:
    """Through the adapter, which was fitted on from where training left it."""
    expected = recorded("bicyc", "expected/")
    torch.testing.assert_close(trained.stored.means.double(), expected["means"], **STORED)
    torch.testing.assert_close(trained.stored.covs.double(), expected["covs"], **STORED)
