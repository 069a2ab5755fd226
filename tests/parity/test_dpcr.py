"""DPCR against the authors' code (dpcr.md)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gatf.data.loader import TaskData
from gatf.geometry import spd
from gatf.methods.dpcr import DPCR, DPCRConfig, ridge_classifier, row_space, shift_projection
from gatf.settings import OptimisationConfig

from .conftest import Recorded

SIZES, RIDGE = [3, 2, 2], 5.0
OPTIMISATION = OptimisationConfig.model_validate(DPCR.defaults["optimisation"])
close = torch.testing.assert_close


@pytest.fixture(scope="module")
def tasks(recorded: Recorded, toy_tasks: Callable[..., list[TaskData]]) -> list[TaskData]:
    given = recorded("dpcr", "tasks/input/")
    return toy_tasks(given["train_images"], given["train_labels"], SIZES)


@pytest.fixture(scope="module")
def learn(recorded: Recorded, toy_net: Callable[..., Any], tasks: list[TaskData]) -> Callable[..., DPCR]:
    """`learn(1, at_end=look)`: DPCR with task 1 behind it, trained to the recorded networks; `look(method, data)` is
    called when a task's training is over and its statistics are not yet taken."""

    def run(last: int, at_end: Callable[[DPCR, TaskData], None] = lambda method, data: None) -> DPCR:
        config = DPCRConfig(ridge=RIDGE)
        method = DPCR(config, toy_net(recorded("dpcr", "tasks/input/net0/")), OPTIMISATION, 0)
        with torch.no_grad():
            for data in tasks[: last + 1]:
                method.begin_task(data.info)
                weights = recorded("dpcr", f"tasks/input/net{data.info.index}/")
                method.backbone.load_state_dict(weights, strict=False)
                method.eval()
                at_end(method, data)
                method.end_task(data)
        return method

    return run


@pytest.mark.parametrize("task", [0, 1, 2])
def test_statistics_weights_and_scores(recorded: Recorded, learn: Callable[..., DPCR], task: int) -> None:
    """Gram matrices and means of all classes after they were moved, unit columns of the classifier, scores of 21
    images. All float32 there, with an inverse of condition 600 and 2800 in tasks 1 and 2."""
    expected = recorded("dpcr", f"tasks/expected/task{task}/")
    method = learn(task)
    grams = spd.unpack(method.memory.triangles.double(), 8)
    close(grams, expected["grams"].double(), rtol=1e-4, atol=1e-3)
    close(method.memory.means, expected["means"], rtol=1e-4, atol=1e-4)
    close(method.readout.weight.T, expected["weight"], rtol=1e-4, atol=1e-5)
    images = recorded("dpcr", "input/")["test_images"] / 255
    with torch.no_grad():
        close(method.eval().scores(images), expected["scores"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("task", [1, 2])
def test_sums_over_a_task(recorded: Recorded, learn: Callable[..., DPCR], task: int) -> None:
    """Mirrored training images through the old and the new network: Σ x_oᵀx_o, Σ x_oᵀx_n, Σ x_nᵀx_n, Σ x_nᵀ·onehot(y).
    Of the last two the release has sums with those of old classes, which count 500 images each."""
    expected, seen = recorded("dpcr", f"tasks/expected/task{task}/"), {}

    def forward(method: DPCR, data: TaskData) -> None:
        if data.info.index == task:
            seen["grams"], seen["targets"] = method._task_statistics(data)

    method = learn(task, forward)
    grams, targets = seen["grams"], seen["targets"]
    old = sum(SIZES[:task])
    close(grams["old"], expected["old_gram"].double(), rtol=1e-5, atol=1e-5)
    close(grams["cross"], expected["cross"].double(), rtol=1e-5, atol=1e-5)
    close(targets[:, old:], expected["ridge_targets"][:, old:].double(), rtol=1e-5, atol=1e-5)
    assert targets[:, :old].abs().max() == 0
    moved = expected["grams"][:old].double().sum(0)
    total = moved + grams["new"] + RIDGE * torch.eye(8, dtype=torch.float64)
    close(total, expected["ridge_gram"].double(), rtol=1e-5, atol=1e-4)
    close(500 * method.memory.means[:old].T, expected["ridge_targets"][:, :old], rtol=1e-4, atol=0.05)


@pytest.mark.parametrize("task", [1, 2])
def test_projections_from_the_same_sums(recorded: Recorded, task: int) -> None:
    """TSSP and the ridge classifier with CN from the release's own sums, which leaves the rounding of its inverse."""
    expected = recorded("dpcr", f"tasks/expected/task{task}/")
    projection, _ = shift_projection(expected["old_gram"].double(), expected["cross"].double(), 1e-9)
    close(projection, expected["projection"].double(), rtol=1e-4, atol=1e-4)
    weight = ridge_classifier(expected["ridge_gram"].double(), expected["ridge_targets"].double(), 0.0)
    close(weight.T, expected["weight"].double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("task", [0, 1, 2])
def test_row_spaces(recorded: Recorded, task: int) -> None:
    """CIP: the feature that no image of class 1 activates is no part of its row space, now and after it was moved."""
    expected = recorded("dpcr", f"tasks/expected/task{task}/")
    found = row_space(expected["grams"].double(), torch.full((len(expected["grams"]),), 99.0), 0.0)
    close(found, expected["row_spaces"].double(), rtol=0, atol=2e-6)
    assert found[1].diagonal().sum().item() == pytest.approx(7)
    assert found[1, 7].abs().max() == 0


def test_row_space_of_few_images_and_dead_features(recorded: Recorded) -> None:
    """40 images, 64 features, 10 of them dead: rounding makes all singular values positive, so everything is kept."""
    given, expected = recorded("dpcr", "row_space/input/"), recorded("dpcr", "row_space/expected/")
    features = given["features"].double()
    close(row_space(features.T @ features, torch.tensor(40), 0.0), expected["projector"].double(), rtol=0, atol=2e-6)
    close(row_space(given["gram"].double(), torch.tensor(40), 0.0), expected["small"].double(), rtol=0, atol=1e-6)


def test_loss_and_gradients(recorded: Recorded, toy_net: Callable[..., Any], tasks: list[TaskData]) -> None:
    """Of one batch of task 1: cross-entropy of the new classes, λ = 10 times the distillation of the old ones."""
    given, expected = recorded("dpcr", "training/input/"), recorded("dpcr", "training/expected/")
    method = DPCR(DPCRConfig(), toy_net(recorded("dpcr", "tasks/input/net0/")), OPTIMISATION, 0)
    method.begin_task(tasks[0].info)
    heads: Any = method.base.heads
    with torch.no_grad():
        heads.weight.copy_(given["old_head"])
        heads.scale.copy_(given["scale"][0])
        method.begin_task(tasks[1].info)
        heads.weight.copy_(given["head"])
        heads.scale.copy_(given["new_scale"][0])
    method.backbone.load_state_dict(recorded("dpcr", "tasks/input/net1/"), strict=False)
    (phase,) = method.phases(tasks[1].info)
    for module in phase.modules.values():
        module.train()
    terms = phase.loss(next(iter(tasks[1].batches("train"))))
    sum(terms.values()).backward()
    close(terms["ce"].detach(), expected["ce"], rtol=1e-5, atol=0)
    close(terms["distill"].detach(), 10 * expected["kd"], rtol=1e-5, atol=0)
    for name, parameter in method.backbone.named_parameters():
        close(parameter.grad, expected[f"grad/convnet.{name}"], rtol=1e-4, atol=1e-5)
    old, new = expected["grad/fc.fc1.weight"], expected["grad/fc.fc2.weight"]
    close(heads.weight.grad, torch.cat([old, new]), rtol=1e-4, atol=1e-5)
    close(heads.scale.grad, expected["grad/fc.sigma"][0], rtol=1e-4, atol=1e-5)
