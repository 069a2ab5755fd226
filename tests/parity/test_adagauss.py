"""AdaGauss as its authors run it: three little tasks, from the first step to the last score."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gatf.data.loader import TaskData
from gatf.geometry import gaussians
from gatf.methods.adagauss import AdaGauss, AdaGaussConfig
from gatf.methods.parts import losses, mapped
from gatf.methods.parts.mapped import MLPConfig
from gatf.settings import OptimisationConfig, StageConfig

SIZES = [2, 2, 2]
FLOAT64 = {"rtol": 1e-9, "atol": 1e-10}
"""Training has no float32 in it, on either side."""
STORED = {"rtol": 2e-6, "atol": 1e-7}
"""We keep Gaussians in float32."""


class Run:
    """The recorded run again, by this package's code: what it was after each task."""

    def __init__(
        self, case: dict[str, Tensor], method: AdaGauss, tasks: list[TaskData], train: Callable[..., Any]
    ) -> None:
        self.method = method
        self.nets: list[dict[str, Tensor]] = []
        self.adapters: list[dict[str, Tensor]] = []
        self.memories: list[gaussians.Gaussians] = []
        self.terms: list[dict[str, list[float]]] = []
        self.gradients: list[dict[str, Tensor]] = []
        for task, data in enumerate(tasks):
            method.begin_task(data.info)
            for part in ("head",) if task == 0 else ("head", "projector", "adapter"):
                load(getattr(method, part), case, f"task{task}/input/{part}.")
            terms: dict[str, list[float]] = {}
            gradients: dict[str, Tensor] = {}
            for phase in method.phases(data.info):
                losses, steps = train(phase, data)
                terms |= {f"{phase.name}/{name}": values for name, values in losses.items()}
                gradients |= steps[1 if phase.name == "backbone" else 0]  # the first step is one of warm-up
            self.terms.append(terms)
            self.gradients.append(gradients)
            self.nets.append({name: value.clone() for name, value in method.backbone.state_dict().items()})
            self.adapters.append({} if task == 0 else method.adapter.state_dict())
            method.eval()
            method.end_task(data)
            self.memories.append(method.memory.get())


def load(module: nn.Module, case: dict[str, Tensor], prefix: str) -> None:
    module.load_state_dict({name.removeprefix(prefix): t for name, t in case.items() if name.startswith(prefix)})


@pytest.fixture(scope="module")
def case(recorded: Callable[..., dict[str, Tensor]]) -> dict[str, Tensor]:
    return recorded("adagauss")


@pytest.fixture(scope="module")
def run(case: dict[str, Tensor], bottleneck_net: Any, toy_tasks: Any, traced_training: Any, recorded: Any) -> Any:
    """All images of a task in one batch, a quarter of it loaded at task 0, where each image is turned four times."""
    stage = StageConfig(epochs=100, batch_size=96, lr=0.02)
    config = AdaGaussConfig(map=MLPConfig(expansion=3), samples=24, matched_noise=False)
    net = bottleneck_net(recorded("adagauss", "input/net/"))
    method = AdaGauss(config, net, OptimisationConfig(first=stage, next=stage.model_copy(update={"lr": 0.002})), 0)
    tasks = toy_tasks(case["input/images"], case["input/labels"], SIZES)
    with pytest.MonkeyPatch.context() as patch:
        exact = partial(losses.anti_collapse, jitter=0.0)  # the release factorises without jitter
        patch.setattr(mapped, "anti_collapse", exact)
        patch.setattr(gaussians, "white_noise", lambda *args, **how: case["input/noise"])
        yield Run(case, method, tasks, traced_training)


TASKS = [0, 1, 2]
LATER = [1, 2]


@pytest.mark.parametrize("task", TASKS)
def test_losses_of_every_epoch(run: Run, case: dict[str, Tensor], task: int) -> None:
    """Cross-entropy, 10·projected distillation and anti-collapse, through warm-up, clipping and three milestones."""
    weights = {"distill": 10.0}
    for name in ("ce", "anti_collapse", "distill")[: 2 if task == 0 else 3]:
        expected = weights.get(name, 1.0) * case[f"task{task}/expected/backbone/{name}"]
        torch.testing.assert_close(
            torch.tensor(run.terms[task][f"backbone/{name}"], dtype=torch.float64), expected, **FLOAT64
        )


@pytest.mark.parametrize("task", LATER)
def test_losses_of_every_epoch_of_the_adapter(run: Run, case: dict[str, Tensor], task: int) -> None:
    """Fifty epochs: the rate falls at the thirtieth and then no more."""
    for ours, theirs in (("adapter", "adapter"), ("adapter_anti_collapse", "anti_collapse")):
        expected = case[f"task{task}/expected/adapter/{theirs}"]
        torch.testing.assert_close(
            torch.tensor(run.terms[task][f"adapter/{ours}"], dtype=torch.float64), expected, **FLOAT64
        )


@pytest.mark.parametrize("task", TASKS)
def test_gradients(run: Run, case: dict[str, Tensor], task: int) -> None:
    """Of the first step after warm-up, and of the adapter's first step."""
    prefix = f"task{task}/expected/gradient/"
    expected = {name.removeprefix(prefix): value for name, value in case.items() if name.startswith(prefix)}
    assert run.gradients[task].keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(run.gradients[task][name], value, **FLOAT64)


@pytest.mark.parametrize("task", TASKS)
def test_networks(run: Run, case: dict[str, Tensor], task: int) -> None:
    for name, value in run.nets[task].items():
        if value.is_floating_point():
            torch.testing.assert_close(value, case[f"task{task}/expected/net/{name}"], **FLOAT64)
    for name, value in run.adapters[task].items():
        torch.testing.assert_close(value, case[f"task{task}/expected/adapter.{name}"], **FLOAT64)


@pytest.mark.parametrize("task", TASKS)
def test_gaussians_of_old_and_new_classes(run: Run, case: dict[str, Tensor], task: int) -> None:
    """Old ones carried by the same 24 points, new ones from images and their mirror images."""
    torch.testing.assert_close(run.memories[task].means, case[f"task{task}/expected/means"], **STORED)
    torch.testing.assert_close(run.memories[task].covs, case[f"task{task}/expected/covariances"], **STORED)


def test_classifier_and_scores(run: Run, case: dict[str, Tensor]) -> None:
    images = case["input/test_images"] / 255
    with torch.no_grad():
        scores = run.method.eval().scores(images)
    torch.testing.assert_close(-scores, case["expected/distances"], **STORED)
    whiteners = run.method.memory.readout().whiteners
    torch.testing.assert_close(whiteners.mT @ whiteners, case["expected/inverse"], **STORED)
