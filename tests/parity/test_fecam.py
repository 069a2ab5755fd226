"""FeCAM against the authors' code (fecam.md)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gatf.data.loader import Batch, TaskData
from gatf.geometry import spd
from gatf.methods.fecam import FeCAM, FeCAMConfig, shrink
from gatf.settings import OptimisationConfig

from .conftest import Recorded

Learn = Callable[..., tuple[FeCAM, list[Tensor]]]
SIZES = [3, 2, 2]
close = torch.testing.assert_close


@pytest.fixture(scope="module")
def tasks(recorded: Recorded, toy_tasks: Callable[..., list[TaskData]]) -> list[TaskData]:
    given = recorded("fecam", "input/")
    return toy_tasks(given["train_images"], given["train_labels"], SIZES)


@pytest.fixture(scope="module")
def learn(recorded: Recorded, toy_net: Callable[..., Any], tasks: list[TaskData]) -> Learn:
    """`learn(covariance="diag")`: FeCAM with the recorded network and head after all tasks, and the scores of the test
    images after each. Zeros are masked, as in the release."""

    def run(**settings: Any) -> tuple[FeCAM, list[Tensor]]:
        given, scores = recorded("fecam", "input/"), []
        config = FeCAMConfig(mask_zeros=True, **settings)
        method = FeCAM(config, toy_net(recorded("fecam", "input/net/")), OptimisationConfig(), 0)
        with torch.no_grad():
            for data in tasks:
                method.begin_task(data.info)
                method.head.weight.copy_(given["head"])
                method.head.scale.copy_(given["head_scale"])
                method.end_task(data)
                scores.append(method.eval().scores(given["test_images"] / 255))
        return method, scores

    return run


def test_statistics_of_the_classes(recorded: Recorded, learn: Learn) -> None:
    """Means are stored in float32 here and there; covariances in float64 there, in float32 here."""
    expected = recorded("fecam", "per_class/expected/")
    method, _ = learn()
    close(method.memory.means, expected["means"], rtol=1e-6, atol=1e-6)
    covs = spd.unpack(method.memory.spreads.double(), 8)
    for passes, name in ((1, "shrunk_once"), (2, "shrunk_twice")):
        close(shrink(covs, 1, 1, passes=passes, mask_zeros=True), expected[name], rtol=1e-6, atol=1e-7)
    close(method.memory.matrices(method.memory.spreads), expected["correlation"], rtol=1e-6, atol=1e-7)


def test_the_second_pass_and_the_correlation_alone(recorded: Recorded) -> None:
    """From the release's own matrices; it rounds what it adds to float32."""
    expected = recorded("fecam", "per_class/expected/")
    close(shrink(expected["shrunk_once"], 1, 1, mask_zeros=True), expected["shrunk_twice"], rtol=2e-7, atol=1e-9)
    close(spd.correlation(expected["shrunk_twice"]), expected["correlation"], rtol=1e-14, atol=1e-15)


def test_masked_zeros_are_the_difference_to_the_default(recorded: Recorded) -> None:
    """Classes 0, 1 and 4 have a feature that no image activates; the others are shrunk alike without a mask."""
    once, twice = (recorded("fecam", "per_class/expected/")[name] for name in ("shrunk_once", "shrunk_twice"))
    dead = (recorded("fecam", "per_class/expected/")["means"] == 0).any(1)
    assert dead.tolist() == [True, True, False, False, True, False, False]
    close(shrink(once[~dead], 1, 1), twice[~dead], rtol=2e-7, atol=1e-9)


def test_distances(recorded: Recorded, learn: Learn) -> None:
    """Of 21 images after tasks 1 and 2: float32 there, from a rounded inverse."""
    expected = recorded("fecam", "per_class/expected/")
    _, scores = learn()
    for task in (1, 2):
        close(-scores[task], expected[f"distances{task}"].double(), rtol=5e-6, atol=2e-6)


def test_the_first_task_is_classified_by_the_head(recorded: Recorded, learn: Learn) -> None:
    """There: squared distances 2 − 2·cos to the rows of the head, without the power transform. Here: scale·cos."""
    given, expected = recorded("fecam", "input/"), recorded("fecam", "per_class/expected/")
    _, scores = learn()
    close(2 - 2 * scores[0] / given["head_scale"], expected["distances0"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("common", {"covariance": "common"}),
        ("diag", {"covariance": "diag"}),
        ("identity", {"covariance": "identity"}),
        ("no_norm", {"correlation": False}),
        ("weights", {"shrink_diagonal": 0.7, "shrink_off_diagonal": 0.3, "tukey": 0.8}),
    ],
)
def test_variants(recorded: Recorded, learn: Learn, name: str, settings: dict[str, Any]) -> None:
    """One covariance of mirrored images; variances; none; no correlation; other weights and another power."""
    expected = recorded("fecam", f"{name}/expected/")
    method, scores = learn(**settings)
    for task in (1, 2):
        close(-scores[task], expected[f"distances{task}"].double(), rtol=5e-6, atol=2e-6)
    if name == "common":
        close(method.memory.matrices(method.memory.spreads)[0], expected["covariance"], rtol=1e-6, atol=1e-7)
    if name == "diag":
        close(method.memory.matrices(method.memory.spreads), expected["matrices"], rtol=1e-6, atol=1e-7)


def test_loss_and_gradients_of_the_first_task(
    recorded: Recorded, toy_net: Callable[..., Any], tasks: list[TaskData]
) -> None:
    """Cross-entropy of the scaled cosine head, the network in train mode."""
    given, expected = recorded("fecam", "input/"), recorded("fecam", "training/expected/")
    optimisation = OptimisationConfig.model_validate(FeCAM.defaults["optimisation"])
    method = FeCAM(FeCAMConfig(), toy_net(recorded("fecam", "input/net/")), optimisation, 0)
    method.begin_task(tasks[0].info)
    with torch.no_grad():
        method.head.weight.copy_(given["head"])
        method.head.scale.copy_(given["head_scale"])
    (phase,) = method.phases(tasks[0].info)
    batch: Batch = next(iter(tasks[0].batches("train")))
    method.train()
    loss = phase.loss(batch)["ce"]
    loss.backward()
    close(loss.detach(), expected["loss"], rtol=1e-5, atol=0)
    for name, parameter in method.backbone.named_parameters():
        close(parameter.grad, expected[f"grad/net/{name}"], rtol=1e-4, atol=1e-6)
    close(method.head.weight.grad, expected["grad/head/weight"], rtol=1e-4, atol=1e-6)
    close(method.head.scale.grad, expected["grad/head/sigma"][0], rtol=1e-4, atol=1e-6)


def test_pretrained_vit(
    recorded: Recorded, toy_net: Callable[..., Any], toy_tasks: Callable[..., list[TaskData]]
) -> None:
    """Two tasks of ten classes on signed features: unit length first, no power, the diagonal shrunk once. Nothing is
    trained, so there is no head to tell the first task's classes apart by."""
    given, expected = recorded("fecam", "vit/input/"), recorded("fecam", "vit/expected/")
    config = FeCAMConfig.model_validate({"name": "fecam", "preset": "vit"})
    net = toy_net(recorded("fecam", "vit/input/net/"), rectified=False)
    method = FeCAM(config, net, OptimisationConfig(), 0)
    with torch.no_grad():
        for data in toy_tasks(given["train_images"], given["train_labels"], [10, 10]):
            method.begin_task(data.info)
            assert method.phases(data.info) == []
            method.end_task(data)
            scores = method.eval().scores(given["test_images"] / 255)
            close(-scores, expected["distances"][:, : data.info.seen], rtol=5e-6, atol=2e-6)
    close(method.memory.means, expected["means"], rtol=1e-5, atol=1e-6)
    close(spd.unpack(method.memory.spreads.double(), 5), expected["covariances"], rtol=1e-5, atol=1e-6)
    close(method.memory.matrices(method.memory.spreads), expected["correlation"], rtol=1e-5, atol=1e-6)
