"""PASS against its authors' code (pass.md): three little tasks of the code for TinyImageNet, a step of ImageNet's."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gatf.data.loader import TaskData
from gatf.methods import pass_
from gatf.methods.pass_ import PASS, PASSConfig
from gatf.nets.small import SmallNet
from gatf.settings import OptimisationConfig, StageConfig

from .conftest import Recorded, RecordedRun, under

close = partial(torch.testing.assert_close, check_dtype=False)
SHORT = {"epochs": 3, "batch_size": 48, "schedule": "constant", "drop_last": True}
STAGES = OptimisationConfig(
    **{name: StageConfig(**stage | SHORT) for name, stage in PASS.defaults["optimisation"].items()}
)
TWICE = 1 - (1 - 0.1) ** 2
"""The momentum at which batch-norm's statistics move in one pass as they do at 0.1 in two with the same images."""
LOSSES = {"rtol": 2e-6, "atol": 1e-6}
"""Networks are float64 on both sides; losses are taken in float32 here, noisy prototypes are rounded to it there."""
WEIGHTS = {"rtol": 0.0, "atol": 1e-7}
STORED = {"rtol": 0.0, "atol": 1e-6}
"""NoisyPrototypes are kept in float32."""


def in_order(labels: Tensor, draws: torch.Generator) -> Tensor:
    return torch.arange(len(labels))


def method_with(weights: dict[str, Tensor], **settings: Any) -> PASS:
    net = SmallNet(3, width=2, bottleneck=None)
    net.double().load_state_dict(weights, strict=False)
    net.register_forward_pre_hook(lambda net, images: (images[0].double(),))
    config = PASSConfig(proto_aug_view=True, **settings)
    return PASS(config, net, STAGES, 0).double()


def give(patch: pytest.MonkeyPatch, classes: Tensor, noise: Tensor) -> None:
    """The recorded draws instead of random ones: a row for each step."""
    drawn_classes, drawn_noise = iter(classes.view(-1, 12)), iter(noise.view(-1, 12, 8))
    patch.setattr(torch, "randint", lambda *args, **how: next(drawn_classes))
    patch.setattr(torch, "randn", lambda *args, **how: next(drawn_noise))


def rows(tensors: dict[str, Tensor], kind: str) -> Tensor:
    """Rows of all heads, as one classifier."""
    return torch.cat([value for name, value in sorted(tensors.items()) if name.endswith(kind)])


def run_again(case: dict[str, Tensor], tasks: list[TaskData], train: Any, momentum: float = TWICE) -> RecordedRun:
    method = method_with(under(case, "input/net/"))

    def begin(task: int, given: dict[str, Tensor], patch: pytest.MonkeyPatch) -> None:
        patch.setattr(pass_, "shuffled", in_order)
        for module in method.backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.1 if task == 0 else momentum
        if task > 0:
            give(patch, given["classes"], given["noise"])

    return RecordedRun(method, case, tasks, train, begin)


@pytest.fixture(scope="module")
def case(recorded: Recorded) -> dict[str, Tensor]:
    return recorded("pass", "tiny/") | recorded("pass")


@pytest.fixture(scope="module")
def tasks(case: dict[str, Tensor], toy_tasks: Callable[..., list[TaskData]]) -> list[TaskData]:
    """26 images each: two batches of 12, and two images that are left out of training and of the prototypes."""
    return toy_tasks(case["input/images"], case["input/labels"], [3, 2, 2])


@pytest.fixture(scope="module")
def run(case: dict[str, Tensor], tasks: list[TaskData], traced_steps: Any) -> RecordedRun:
    return run_again(case, tasks, traced_steps)


@pytest.mark.parametrize("task", [0, 1, 2])
def test_every_term_of_every_step(run: RecordedRun, case: dict[str, Tensor], task: int) -> None:
    """Cross-entropy of rotated images; after task 0 that of noisy prototypes and the distillation, each times 10."""
    weights = {"ce": 1.0} if task == 0 else {"ce": 1.0, "prototype": 10.0, "distill": 10.0}
    assert run.terms[task].keys() == weights.keys()
    for name, weight in weights.items():
        expected = weight * case[f"task{task}/expected/{name}"]
        assert len(expected) == 6
        close(run.terms[task][name], expected, **LOSSES)


@pytest.mark.parametrize("task", [0, 1, 2])
def test_gradients_of_the_last_step(run: RecordedRun, case: dict[str, Tensor], task: int) -> None:
    expected = under(case, f"task{task}/expected/gradient/")
    found = run.gradients[task]
    for name, value in under(expected, "net/").items():
        close(found[f"backbone.{name}"], value, rtol=0.0, atol=1e-5 * value.abs().max().item())
    for kind in ("weight", "bias"):
        value = expected[f"head.{kind}"]
        close(rows(under(found, "heads."), kind), value, rtol=0.0, atol=1e-5 * value.abs().max().item())


@pytest.mark.parametrize("task", [0, 1, 2])
def test_networks(run: RecordedRun, case: dict[str, Tensor], task: int) -> None:
    """Weights, and batch-norm's statistics, which the release moves twice per step after task 0."""
    expected, found = under(case, f"task{task}/expected/trained/"), run.states[task]
    for name, value in under(expected, "net/").items():
        close(found[f"backbone.{name}"], value, **WEIGHTS)
    for kind in ("weight", "bias"):
        close(rows(under(found, "heads."), kind), expected[f"head.{kind}"], **WEIGHTS)


@pytest.mark.parametrize("task", [0, 1, 2])
def test_prototypes_and_scores(run: RecordedRun, case: dict[str, Tensor], task: int) -> None:
    expected = under(case, f"task{task}/expected/")
    found = under(run.states[task], "prototypes.")
    close(found["means"], expected["prototypes"], **STORED)
    close(found["squared_radius"].sqrt().double(), expected["radius"], **STORED)
    close(run.scores[task], expected["scores"], **STORED)


def test_one_pass_of_the_student_changes_the_statistics_alone(
    case: dict[str, Tensor], tasks: list[TaskData], traced_steps: Any
) -> None:
    """At the usual momentum task 1 has the release's losses and weights, while batch-norm's statistics lag behind."""
    once = run_again(case, tasks[:2], traced_steps, momentum=0.1)
    for name, weight in {"ce": 1.0, "prototype": 10.0, "distill": 10.0}.items():
        close(once.terms[1][name], weight * case[f"task1/expected/{name}"], **LOSSES)
    for name, value in under(case, "task1/expected/trained/net/").items():
        found = once.states[1][f"backbone.{name}"]
        if "running" in name:
            before = case[f"task0/expected/trained/net/{name}"]
            assert (found - value).abs().max() > 0.1 * (value - before).abs().max()
        else:
            close(found, value, **WEIGHTS)


def test_the_imagenet_code(recorded: Recorded, tasks: list[TaskData]) -> None:
    """Mean deviation as radius, no temperature; a first step of task 1."""
    given, expected = recorded("pass", "imagenet/input/"), recorded("pass", "imagenet/expected/")
    method = method_with(under(given, "net/"), temperature=1.0, radius="deviation")
    method.begin_task(tasks[0].info)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pass_, "shuffled", in_order)
        method.end_task(tasks[0])
    close(method.prototypes.means, expected["prototypes"], **STORED)
    close(method.prototypes.squared_radius.sqrt(), expected["radius"], **STORED)
    info = tasks[1].info
    method.begin_task(info)
    for layer, taken in zip(method.heads.layers, (slice(0, 12), slice(12, 20)), strict=True):
        layer.load_state_dict({kind: given[f"head.{kind}"][taken] for kind in ("weight", "bias")})
    method.backbone.train()
    (phase,) = method.phases(info)
    batch = next(iter(tasks[1].batches("train", batch_size=12)))
    with pytest.MonkeyPatch.context() as patch:
        give(patch, given["classes"], given["noise"])
        terms = phase.loss(batch)
    for name, weight in {"ce": 1.0, "prototype": 10.0, "distill": 10.0}.items():
        close(terms[name].detach(), weight * expected[name], **LOSSES)
    sum(terms.values()).backward()  # type: ignore[union-attr]
    gradients = under(expected, "gradient/")
    for name, parameter in method.backbone.named_parameters():
        value = gradients[f"net/{name}"]
        close(parameter.grad, value, rtol=0.0, atol=1e-5 * value.abs().max().item())
    heads = {name: parameter.grad for name, parameter in method.heads.named_parameters()}
    for kind in ("weight", "bias"):
        close(rows(heads, kind), gradients[f"head.{kind}"], rtol=0.0, atol=1e-5)
