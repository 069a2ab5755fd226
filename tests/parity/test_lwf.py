"""LwF against FACIL's and PyCIL's code; lwf.md says what was run."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from gatf.data.loader import Batch, TaskInfo
from gatf.methods.lwf import LwF, LwFConfig
from gatf.settings import OptimisationConfig, StageConfig

from .conftest import ConvNet as Net

CASE = load_file(Path(__file__).with_name("lwf.safetensors"))
BATCH, OLD = 8, 3
INFOS = (TaskInfo(0, 0, OLD, 21), TaskInfo(1, OLD, 2, 21))
EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-13}
"""Both run in float64."""
RELEASED: dict[str, Any] = {"rtol": 1e-3, "atol": 3e-4}
"""FACIL mixes a uniform 1e-5 into the student's probabilities, so its gradients are no closer."""


def part(prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in CASE.items() if name.startswith(prefix)}


def put(method: LwF, stage: str, heads: list[str]) -> None:
    """Weights as recorded, and the running statistics with them."""
    method.backbone.load_state_dict(part(f"weights/{stage}/"), strict=False)
    for layer, name in zip(method.heads.layers, heads, strict=True):
        layer.load_state_dict(part(f"heads/{name}/"))


def at_task_1(preset: str, heads: list[str]) -> tuple[LwF, Any, Batch]:
    """LwF in the middle of the second task, its phase and the batch that the official code was given."""
    stage = StageConfig(warmup=0.0)
    optimisation = OptimisationConfig(first=stage, next=stage)
    method = LwF(LwFConfig.model_validate({"preset": preset}), Net().double(), optimisation, 0)
    method.begin_task(INFOS[0])
    put(method, "start", ["0"])
    method.eval()
    method.begin_task(INFOS[1])  # the teacher is the network as it is now
    put(method, "middle", heads)
    (phase,) = method.phases(INFOS[1])
    assert phase.set_mode is not None
    phase.set_mode()
    return method, phase, Batch(CASE["images/1"][:BATCH], CASE["labels/1"][:BATCH], 0, 0, torch.Generator())


def gradients(method: LwF, terms: dict[str, Tensor]) -> dict[str, Tensor]:
    trained = {name: weight for name, weight in method.named_parameters() if weight.requires_grad}
    found = torch.autograd.grad(sum(terms.values(), torch.tensor(0.0)), list(trained.values()))
    return dict(zip(trained, found, strict=True))


def same(found: dict[str, Tensor], expected: dict[str, Tensor], precision: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **precision, msg=lambda text, name=name: f"{name}: {text}")


def scores(method: LwF, heads: list[str]) -> Tensor:
    put(method, "middle", heads)  # the running statistics moved with the batch
    method.eval()
    with torch.no_grad():
        return method.scores(CASE["images/1"])


def facil(recorded: str) -> dict[str, Tensor]:
    head = {f"heads.layers.1.{name}": tensor for name, tensor in part(f"{recorded}/gradient/head/").items()}
    return head | {f"backbone.{name}": tensor for name, tensor in part(f"{recorded}/gradient/backbone/").items()}


def test_facils_distillation_loss_gradients_and_scores() -> None:
    method, phase, batch = at_task_1("facil", ["0", "1/1"])
    terms = phase.loss(batch)
    torch.testing.assert_close(terms["distill"] / 10, CASE["facil/plain/distillation"], **EXACT)
    torch.testing.assert_close(terms["ce"] + terms["distill"], CASE["facil/plain/loss"], **EXACT)
    same(gradients(method, terms), facil("facil/plain"), EXACT)
    torch.testing.assert_close(scores(method, ["0", "1/1"]), CASE["facil/scores"], **EXACT)


def test_facils_uniform_share_is_all_that_differs() -> None:
    """As released, epsilon included: close, and not the same."""
    method, phase, batch = at_task_1("facil", ["0", "1/1"])
    terms = phase.loss(batch)
    loss = terms["ce"] + terms["distill"]
    torch.testing.assert_close(loss, CASE["facil/released/loss"], **RELEASED)
    assert abs(float(loss.detach() - CASE["facil/released/loss"])) > 1e-7
    same(gradients(method, terms), facil("facil/released"), RELEASED)


def test_pycils_distillation_gradients_and_scores() -> None:
    method, phase, batch = at_task_1("pycil", ["1/0", "1/1"])
    terms = phase.loss(batch)
    torch.testing.assert_close(terms["distill"] / 3, CASE["pycil/distillation"], **EXACT)
    expected = {name: tensor for name, tensor in part("pycil/gradient/").items() if name.startswith("backbone")}
    for kind in ("weight", "bias"):
        rows = CASE[f"pycil/gradient/fc.{kind}"].split(OLD)
        expected |= {f"heads.layers.{at}.{kind}": given for at, given in enumerate(rows)}
    same(gradients(method, terms), expected, EXACT)
    torch.testing.assert_close(scores(method, ["1/0", "1/1"]), CASE["pycil/scores"], **EXACT)
