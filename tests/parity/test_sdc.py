"""SDC against its authors' code (sdc.md). Both run in float64; prototypes are stored in float32."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gatf.data.loader import TaskData
from gatf.methods.base import Phase
from gatf.methods.parts.triplets import triplet_loss
from gatf.methods.sdc import SDC, SDCConfig, sdc_shift
from gatf.settings import OptimisationConfig, StageConfig, deep_merge

from .conftest import Net, Recorded, Tasks

STAGE = StageConfig(
    optimiser="adam", epochs=4, batch_size=16, lr=1e-3, weight_decay=2e-4, schedule="constant", clip=None, warmup=0.0
)
RUNS: dict[str, dict[str, Any]] = {
    "none": {"base": {"regulariser": "none"}},
    "lwf": {"base": {"regulariser": "lwf"}},
    "ewc": {"base": {"regulariser": "ewc"}},
    "mas": {"base": {"regulariser": "mas"}},
    "pretrained": {"base": {"regulariser": "mas"}, "preset": "paper_pretrained"},
}


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@pytest.mark.parametrize("run", RUNS)
def test_three_tasks(
    run: str, recorded: Recorded, exact_net: Net, toy_tasks: Tasks, train: Callable[[Phase, TaskData], None]
) -> None:
    """Trained weights, importances, compensated prototypes and distances of the four base learners, and of one that
    trains batch-norm in later tasks."""
    given, expected = recorded("sdc", "input/"), recorded("sdc", f"{run}/expected/")
    base = {"name": "triplet", "embedding": 5, "images_per_class": 4, "margin": 0.1, "triplets": "hard"}
    settings = deep_merge({"base": base, "sigma": 0.2}, RUNS[run])
    method = SDC(
        SDCConfig.model_validate(settings), exact_net(under(given, "backbone.")),
        OptimisationConfig(first=STAGE, next=STAGE), 0,
    )  # fmt: skip
    method.double().base.layer.load_state_dict(under(given, "layer."))
    for data in toy_tasks(given["images"], torch.arange(12).repeat_interleave(4), [4, 4, 4]):
        method.begin_task(data.info)
        (phase,) = method.phases(data.info)
        train(phase, data)
        method.end_task(data)
        importance = {name: each[0] for name, each, _ in method.base.springs.items()}
        assert_close(importance, under(expected, f"importance{data.info.index}/"), rtol=1e-10, atol=1e-13)
        prototypes = method.prototypes.means.double()
        assert_close(prototypes, expected[f"prototypes{data.info.index}"], rtol=0, atol=3e-7)
    state = method.base.network(method).state_dict()
    for name, weights in under(expected, "trained/").items():
        assert_close(state[name], weights, rtol=1e-10, atol=1e-13)
    with torch.no_grad():
        distances = (-method.eval().scores(given["test"] * (1 / 255))).sqrt()
    assert_close(distances, expected["distances"], rtol=0, atol=3e-7)


@pytest.mark.parametrize("rule", ["hard", "official"])
@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_triplet_losses(rule: Any, margin: float, recorded: Recorded) -> None:
    given, expected = recorded("sdc", "loss/input/"), recorded("sdc", f"loss/expected/{rule}/{margin}/")
    embeddings = given["embeddings"].requires_grad_()
    draws = torch.Generator()
    loss = triplet_loss(embeddings, given["labels"], rule=rule, margin=margin, per_class=8, draws=draws)
    (gradient,) = torch.autograd.grad(loss, embeddings)
    assert_close(loss.detach(), expected["value"], rtol=1e-12, atol=0)
    assert_close(gradient, expected["gradient"], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("source", "floor"), [("release", 0.0), ("comparison", 1e-5)])
@pytest.mark.parametrize("sigma", [0.2, 0.3])
def test_drift_at_the_prototypes(source: str, floor: float, sigma: float, recorded: Recorded) -> None:
    """As in SDC's own release, and with the floor of later comparisons, here ADC's."""
    given, expected = recorded("sdc", "drift/input/"), recorded("sdc", f"drift/expected/{source}/")
    shift, _ = sdc_shift(given["old"], given["new"], given["prototypes"], sigma=sigma, floor=floor)
    assert_close(shift, expected[str(sigma)], rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(("preset", "net"), [("paper", "resnet32"), ("paper_pretrained", "resnet18")])
def test_first_weights_of_the_embedding_layer(preset: str, net: str, recorded: Recorded, exact_net: Net) -> None:
    """How they scatter: 3072 draws of ours and at least as many of theirs know the deviation to 2 %."""
    given, expected = recorded("sdc", "input/backbone."), recorded("sdc", f"start/expected/{net}/")
    stages = OptimisationConfig(first=STAGE, next=STAGE)
    layer = SDC(SDCConfig(preset=preset), exact_net(given), stages, 0).base.layer
    assert_close(layer.weight.detach().double().std(), expected["deviation"], rtol=0.05, atol=0)
    assert_close(layer.bias.detach().double().abs().max(), expected["bias"], rtol=0, atol=0)
