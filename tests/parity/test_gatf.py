"""Method `gatf-release` against the authors' released code, on small tasks with the settings of three scripts."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gatf.data.loader import TaskData
from gatf.geometry import gaussians
from gatf.methods.gatf_release import GATFRelease, GATFReleaseConfig
from gatf.methods.parts.anchor import RunningAnchorConfig
from gatf.methods.parts.mapped import TrainedMapConfig
from gatf.settings import OptimisationConfig, StageConfig

FLOAT64 = {"rtol": 1e-8, "atol": 1e-9}
"""Training has no float32 in it, on either side."""
STORED = {"rtol": 2e-6, "atol": 1e-7}
"""We keep Gaussians in float32."""
RIDGE = 0.01 * 96 / 95
"""The release divides covariances by n, we by n − 1; a task has 96 images."""
SCRIPTS: dict[str, dict[str, Any]] = {
    "cifar": {},
    "refined": {"cycle": 0.0, "refine": True},
    "cub": {
        "topology": 0.5, "cycle": 0.5, "pairwise": 0.0, "perturb": 0.5,
        "map": TrainedMapConfig(expansion=3, lr=0.005, weight_decay=1e-4),
    },
}  # fmt: skip
"""What each differs in from the preset."""
RUNS = [("cifar", 1), ("cifar", 2), ("refined", 1), ("cub", 1)]


class Run:
    """A recorded run again, by this package's code: what it was after each task."""

    def __init__(
        self, case: dict[str, Tensor], method: GATFRelease, tasks: list[TaskData], train: Callable[..., Any]
    ) -> None:
        self.method = method
        self.nets: list[dict[str, Tensor]] = []
        self.maps: list[dict[str, dict[str, Tensor]]] = []
        self.terms: list[dict[str, list[float]]] = []
        self.gradients: list[dict[str, Tensor]] = []
        self.running: list[list[tuple[Tensor, Tensor]]] = []
        for task, data in enumerate(tasks):
            method.begin_task(data.info)
            load(method.head, case, f"task{task}/input/head.")
            running: list[tuple[Tensor, Tensor]] = []
            if task > 0:
                load(method.distiller, case, f"task{task}/input/distiller.")
                update = method.anchor.update

                def forward(*args: Any, update: Any = update, to: Any = running, **how: Any) -> None:
                    update(*args, **how)
                    average = method.anchor.value()
                    to.append((average.weight, average.bias))

                method.anchor.update = forward
            terms: dict[str, list[float]] = {}
            gradients: dict[str, Tensor] = {}
            for phase in method.phases(data.info):
                losses, steps = train(phase, data)
                terms |= {f"{phase.name}/{name}": values for name, values in losses.items()}
                gradients |= steps[0]
            self.terms.append(terms)
            self.gradients.append(gradients)
            self.running.append(running)
            self.nets.append({name: value.clone() for name, value in method.backbone.state_dict().items()})
            self.maps.append({} if task == 0 else {"residual": method.residual.state_dict()})
            method.eval()
            method.end_task(data)


def load(module: nn.Module, case: dict[str, Tensor], prefix: str) -> None:
    module.load_state_dict({name.removeprefix(prefix): t for name, t in case.items() if name.startswith(prefix)})


@pytest.fixture(scope="module")
def runs(recorded: Any, bottleneck_net: Any, toy_tasks: Any, traced_training: Any) -> Iterator[Callable[[str], Run]]:
    """`runs("cub")`: all images of a task in one batch, a quarter of it loaded at task 0."""
    shared, done = recorded("gatf", "input/"), dict[str, Run]()
    stage = StageConfig(epochs=40, batch_size=96, lr=0.02)
    optimisation = OptimisationConfig(first=stage, next=stage.model_copy(update={"lr": 0.002}))

    def run(script: str) -> Run:
        if script not in done:
            config = GATFReleaseConfig(
                anchor=RunningAnchorConfig(ridge=RIDGE), samples=24,
                **{"map": TrainedMapConfig(expansion=3)} | SCRIPTS[script],
            )  # fmt: skip
            method = GATFRelease(config, bottleneck_net(recorded("gatf", "input/net/")), optimisation, 0)
            tasks = toy_tasks(shared["images"], shared["labels"], [2, 2, 2] if script == "cifar" else [2, 2])
            done[script] = Run(recorded("gatf", f"{script}/"), method, tasks, traced_training)
        return done[script]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaussians, "white_noise", lambda *args, **how: shared["noise"])
        yield run


@pytest.fixture
def expected(recorded: Any) -> Callable[[str, int], dict[str, Tensor]]:
    return lambda script, task: recorded("gatf", f"{script}/task{task}/expected/")


Expected = Callable[[str, int], dict[str, Tensor]]


def same_history(terms: dict[str, list[float]], name: str, theirs: Tensor) -> None:
    torch.testing.assert_close(torch.tensor(terms[name], dtype=torch.float64), theirs, **FLOAT64)


@pytest.mark.parametrize(("script", "task"), RUNS)
def test_terms_of_every_epoch(runs: Any, expected: Expected, script: str, task: int) -> None:
    """Forward, backward, cycle and pairwise term, each with its weight, beside cross-entropy and anti-collapse."""
    run, theirs = runs(script), expected(script, task)
    terms, config = run.terms[task], run.method.config
    for name in ("ce", "anti_collapse"):
        same_history(terms, f"backbone/{name}", theirs[f"backbone/{name}"])
    for name in ("forward", "backward"):
        same_history(terms, f"backbone/{name}", config.topology * theirs[f"backbone/{name}"])
    for name, weight in (("cycle", config.cycle), ("pairwise", config.pairwise)):
        assert (f"backbone/{name}" in terms) == (weight > 0)
        if weight:
            both = theirs[f"backbone/{name}_new"] + theirs[f"backbone/{name}_old"]
            same_history(terms, f"backbone/{name}", weight * both)


@pytest.mark.parametrize("script", ["cifar", "cub"])
def test_terms_of_task_0(runs: Any, expected: Expected, script: str) -> None:
    """With perturbation: the loss at the moved features and the norm of its gradient there."""
    terms, theirs = runs(script).terms[0], expected(script, 0)
    names = ["ce", "anti_collapse"] + (["adversarial", "gradient_norm"] if script == "cub" else [])
    assert set(terms) == {f"backbone/{name}" for name in names}
    for name in names:
        same_history(terms, f"backbone/{name}", theirs[f"backbone/{name}"])


def test_terms_of_refinement(runs: Any, expected: Expected) -> None:
    terms, theirs = runs("refined").terms[1], expected("refined", 1)
    same_history(terms, "adapter/adapter", theirs["adapter/adapter"])
    same_history(terms, "adapter/adapter_anti_collapse", theirs["adapter/anti_collapse"])


@pytest.mark.parametrize(("script", "task"), [("cifar", 0), ("cifar", 1), ("refined", 1), ("cub", 0), ("cub", 1)])
def test_gradients_of_the_first_step(runs: Any, expected: Expected, script: str, task: int) -> None:
    gradients = runs(script).gradients[task]
    theirs = {name.split("/")[1]: t for name, t in expected(script, task).items() if name.startswith("gradient/")}
    assert gradients.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(gradients[name], value, **FLOAT64)


@pytest.mark.parametrize(("script", "task"), RUNS)
def test_anchor(runs: Any, expected: Expected, script: str, task: int) -> None:
    """The first estimate is the start, three more count a tenth each; refinement begins with a new one."""
    ours, theirs = runs(script).running[task], expected(script, task)
    assert len(ours) == (5 if script == "refined" else 4)
    weights, biases = (torch.stack(part) for part in zip(*ours, strict=True))
    torch.testing.assert_close(weights[0], theirs["anchor/estimates"][0], **FLOAT64)
    torch.testing.assert_close(biases[0], theirs["anchor/estimated_biases"][0], **FLOAT64)
    torch.testing.assert_close(weights[1:4], theirs["anchor/running"], **FLOAT64)
    torch.testing.assert_close(biases[1:4], theirs["anchor/running_biases"], **FLOAT64)
    torch.testing.assert_close(weights[-1], theirs["anchor/final_weight"], **FLOAT64)
    torch.testing.assert_close(biases[-1], theirs["anchor/final_bias"], **FLOAT64)


@pytest.mark.parametrize(("script", "task"), [("cifar", 0), ("cub", 0), *RUNS])
def test_networks(runs: Any, expected: Expected, script: str, task: int) -> None:
    run, theirs = runs(script), expected(script, task)
    for name, value in run.nets[task].items():
        if value.is_floating_point():
            torch.testing.assert_close(value, theirs[f"net/{name}"], **FLOAT64)
    for part, weights in run.maps[task].items():
        for name, value in weights.items():
            torch.testing.assert_close(value, theirs[f"{part}.{name}"], **FLOAT64)


@pytest.mark.parametrize("script", SCRIPTS)
def test_gaussians_and_scores(runs: Any, recorded: Any, script: str) -> None:
    run, theirs = runs(script), recorded("gatf", f"{script}/expected/")
    kept = run.method.memory.get()
    torch.testing.assert_close(kept.means, theirs["means"], **STORED)
    torch.testing.assert_close(kept.covs, theirs["covariances"], **STORED)
    images = recorded("gatf", "input/")["test_images"][: len(theirs["distances"])] / 255
    with torch.no_grad():
        torch.testing.assert_close(-run.method.eval().scores(images), theirs["distances"], **STORED)
