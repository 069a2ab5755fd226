"""EFC against its authors' code (efc.md): three little tasks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gatf.data.loader import TaskData
from gatf.methods import efc
from gatf.methods.efc import EFC, EFCConfig, drift_weights, feature_matrix
from gatf.nets.small import SmallNet
from gatf.settings import OptimisationConfig, StageConfig

from .conftest import Recorded, RecordedRun, under

close = partial(torch.testing.assert_close, check_dtype=False)
SHORT = {"first": {"epochs": 2, "batch_size": 64, "schedule": "constant"}, "next": {"epochs": 2, "batch_size": 16}}
STAGES = OptimisationConfig(
    **{name: StageConfig(**stage | SHORT[name]) for name, stage in EFC.defaults["optimisation"].items()}
)
FLOAT64 = {"rtol": 1e-10, "atol": 1e-12}
TASKS = [0, 1, 2]
LATER = [1, 2]


def in_order(labels: Tensor, draws: torch.Generator) -> Tensor:
    return torch.arange(len(labels))


def network(weights: dict[str, Tensor]) -> SmallNet:
    net = SmallNet(3, width=2, bottleneck=None)
    net.double().load_state_dict(weights, strict=False)
    net.register_forward_pre_hook(lambda net, images: (images[0].double(),))
    return net


def give(patch: pytest.MonkeyPatch, classes: Tensor, noise: Tensor) -> None:
    """The recorded draws instead of random ones: as many classes as are asked for, and their noise."""
    taken = [0]

    def labels(old: int, batch: int, count: int, draws: torch.Generator) -> Tensor:
        taken.append(taken[-1] + count)
        return classes[taken[-2] : taken[-1]]

    patch.setattr(efc, "prototype_labels", labels)
    patch.setattr(torch, "randn", lambda *args, **how: noise[taken[-2] : taken[-1], :, None])


@pytest.fixture(scope="module")
def case(recorded: Recorded) -> dict[str, Tensor]:
    return recorded("efc")


@pytest.fixture(scope="module")
def tasks(case: dict[str, Tensor], toy_tasks: Callable[..., list[TaskData]]) -> list[TaskData]:
    """35 images each: two batches of 16 and one of 3, which the feature matrix leaves out."""
    return toy_tasks(case["input/images"], case["input/labels"], [3, 2, 2])


@pytest.fixture(scope="module")
def run(case: dict[str, Tensor], tasks: list[TaskData], traced_steps: Any) -> RecordedRun:
    method = EFC(EFCConfig(prototype_batch=16), network(under(case, "input/net/")), STAGES, 0).double()

    def begin(task: int, given: dict[str, Tensor], patch: pytest.MonkeyPatch) -> None:
        patch.setattr(efc, "shuffled", in_order)
        if task == 0:
            method.rotated.load_state_dict(under(given, "rotated."))
        else:
            method.backbone.load_state_dict(under(given, "net/"), strict=False)  # away from the teacher
            give(patch, given["prototypes"], given["noise"])

    return RecordedRun(method, case, tasks, traced_steps, begin)


@pytest.mark.parametrize("task", TASKS)
def test_every_term_of_every_step(run: RecordedRun, case: dict[str, Tensor], task: int) -> None:
    """Cross-entropy with rotations; later of the new head, the elastic drift, and the asymmetric rehearsal of
    prototypes and of the first images of the batch before."""
    assert run.terms[task].keys() == ({"ce"} if task == 0 else {"ce", "drift", "rehearsal"})
    for name, found in run.terms[task].items():
        expected = case[f"task{task}/expected/{name}"]
        assert len(expected) == 6
        close(found, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("task", TASKS)
def test_gradients_of_the_last_step(run: RecordedRun, case: dict[str, Tensor], task: int) -> None:
    """Of every head, old or new, but not of batch-norm after task 0."""
    names = {"net/": "backbone.", "heads.": "heads.layers.", "rotated.": "rotated."}
    found = run.gradients[task]
    expected = {}
    for theirs, ours in names.items():
        for name, value in under(case, f"task{task}/expected/gradient/{theirs}").items():
            expected[f"{ours}{name}.weight" if theirs == "heads." else ours + name] = value
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        close(found[name], value, rtol=0.0, atol=1e-9 + 1e-5 * value.abs().max().item())


@pytest.mark.parametrize("task", TASKS)
def test_networks(run: RecordedRun, case: dict[str, Tensor], task: int) -> None:
    expected, found = under(case, f"task{task}/expected/trained/"), run.states[task]
    for name, value in under(expected, "net/").items():
        close(found[f"backbone.{name}"], value, rtol=0.0, atol=1e-8)
    for name, value in under(expected, "heads.").items():
        close(found[f"heads.layers.{name}.weight"], value, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("task", TASKS)
def test_what_is_kept(run: RecordedRun, case: dict[str, Tensor], task: int) -> None:
    """In float32: the feature matrix, means that moved, covariances that stay."""
    expected = under(case, f"task{task}/expected/")
    covariances = torch.cat([case[f"task{index}/expected/covariances"] for index in range(task + 1)])
    close(run.states[task]["efm"], expected["efm"], rtol=1e-6, atol=1e-6)
    close(run.memories[task].means, expected["means"], rtol=1e-6, atol=1e-6)
    close(run.memories[task].covs, covariances, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_scores(run: RecordedRun, case: dict[str, Tensor], task: int) -> None:
    expected = under(case, f"task{task}/expected/")
    close(run.scores[task], expected["logits"], rtol=1e-6, atol=1e-6)
    close(run.scores[task].softmax(1), expected["probabilities"], rtol=1e-6, atol=1e-6)


def features(case: dict[str, Tensor], data: TaskData, task: int) -> Tensor:
    """Of the task's images by the network that the release had after a task, float64."""
    net = network(under(case, f"task{task}/expected/trained/net/")).eval()
    with torch.no_grad():
        return torch.cat([net(batch.images) for batch in data.batches("train", batch_size=16)])


@pytest.mark.parametrize("task", TASKS)
def test_the_feature_matrix_alone(case: dict[str, Tensor], tasks: list[TaskData], task: int) -> None:
    heads = [case[f"task{task}/expected/trained/heads.{index}"] for index in range(task + 1)]
    found = feature_matrix(features(case, tasks[task], task)[:32], torch.cat(heads))
    close(found, case[f"task{task}/expected/efm"], **FLOAT64)


@pytest.mark.parametrize("task", LATER)
def test_moves_of_the_means_alone(case: dict[str, Tensor], tasks: list[TaskData], task: int) -> None:
    before = under(case, f"task{task - 1}/expected/")
    old, new = (features(case, tasks[task], index) for index in (task - 1, task))
    moves = drift_weights(old, before["means"], before["efm"], width=0.2) @ (new - old)
    close(moves, case[f"task{task}/expected/moves"], **FLOAT64)
