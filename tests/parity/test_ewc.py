"""EWC against FACIL's and PyCIL's code; ewc.md says what was run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gatf.data.loader import Batch, TaskInfo
from gatf.methods.ewc import EWC, EWCConfig
from gatf.settings import OptimisationConfig, StageConfig

from .conftest import ConvNet as Net

CASE = load_file(Path(__file__).with_name("ewc.safetensors"))
BATCH, IMAGES, CLASSES = 8, 21, (3, 2)
INFOS = (TaskInfo(0, 0, 3, IMAGES), TaskInfo(1, 3, 2, IMAGES))
EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-16}
"""Both run in float64."""


class Recorded:
    """The task's images in the batches that the official code was given: 8, 8 and 5."""

    def __init__(self, task: int) -> None:
        self.info = INFOS[task]
        self._images, self._labels = CASE[f"images/{task}"], CASE[f"labels/{task}"]

    def steps(self, batch_size: int, drop_last: bool) -> int:
        return len(list(self.batches("train", batch_size=batch_size, drop_last=drop_last)))

    def batches(self, view: str, *, batch_size: int, drop_last: bool, **_: Any) -> Iterator[Batch]:
        assert (view, batch_size) == ("train", BATCH)
        for step, start in enumerate(range(0, IMAGES, BATCH)):
            images, labels = self._images[start : start + BATCH], self._labels[start : start + BATCH]
            if len(labels) == BATCH or not drop_last:
                yield Batch(images, labels, 0, step, torch.Generator())


def part(prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in CASE.items() if name.startswith(prefix)}


def put(method: EWC, stage: str, heads: list[str]) -> None:
    """Weights as recorded, and the running statistics with them."""
    method.backbone.load_state_dict(part(f"weights/{stage}/"), strict=False)
    for layer, name in zip(method.heads.layers, heads, strict=True):
        layer.load_state_dict(part(f"heads/{name}/"))


def build(**settings: Any) -> EWC:
    """EWC at the end of the first task, before the Fisher pass."""
    stage = StageConfig(batch_size=BATCH, warmup=0.0)
    method = EWC(EWCConfig(**settings), Net().double(), OptimisationConfig(first=stage, next=stage), 0)
    method.begin_task(INFOS[0])
    put(method, "start", ["0"])
    return method


def learn(method: EWC, heads: list[str]) -> None:
    """The first task's importances, then the second task up to `middle`."""
    method.end_task(Recorded(0))  # type: ignore[arg-type]
    method.begin_task(INFOS[1])
    put(method, "middle", heads)


def importances(method: EWC) -> dict[str, Tensor]:
    return {name: importance[0] for name, importance, _ in method.springs.items()}


def gradients(method: EWC) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The terms of the second task's loss on its first batch, and the gradient of their sum by parameter."""
    (phase,) = method.phases(INFOS[1])
    assert phase.set_mode is not None
    phase.set_mode()
    terms = phase.loss(next(Recorded(1).batches("train", batch_size=BATCH, drop_last=True)))
    trained = dict(method.named_parameters())
    found = torch.autograd.grad(sum(terms.values(), torch.tensor(0.0)), list(trained.values()), allow_unused=True)
    return terms, {name: given for name, given in zip(trained, found, strict=True) if given is not None}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("recorded", "official", "settings"),
    [("half/max_pred", "max_pred", {}), ("share/true", "true", {"alpha": "class_share", "label_mode": "ground_truth"})],
)
class TestFacil:
    def test_importance_of_a_task(self, recorded: str, official: str, settings: dict[str, Any]) -> None:
        method = build(preset="facil", **settings | {"alpha": 0.0})  # nothing merged: F_new itself
        method.end_task(Recorded(0))  # type: ignore[arg-type]
        same(importances(method), backbone(part(f"facil/new/{official}/")))

    def test_importance_after_two_tasks(self, recorded: str, official: str, settings: dict[str, Any]) -> None:
        method = build(preset="facil", **settings)
        method.end_task(Recorded(0))  # type: ignore[arg-type]
        same(importances(method), backbone(part(f"facil/{recorded}/after0/")))
        method.begin_task(INFOS[1])
        put(method, "end", ["0", "1/1"])
        method.end_task(Recorded(1))  # type: ignore[arg-type]
        same(importances(method), backbone(part(f"facil/{recorded}/after1/")))
        anchors = {name: anchor[0] for name, _, anchor in method.springs.items()}
        ends = backbone(part("weights/end/"))
        same(anchors, {name: ends[name] for name in anchors})


def backbone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"backbone.{name}": tensor for name, tensor in tensors.items()}


def test_facils_loss_its_gradient_and_scores() -> None:
    method = build(preset="facil")
    learn(method, ["0", "1/1"])
    terms, found = gradients(method)
    torch.testing.assert_close(terms["ce"] + terms["penalty"], CASE["facil/loss"], **EXACT)
    heads = {f"heads.layers.1.{name}": tensor for name, tensor in part("facil/gradient/head/").items()}
    same(found, backbone(part("facil/gradient/backbone/")) | heads)
    put(method, "middle", ["0", "1/1"])  # the running statistics moved with the batch
    method.eval()
    torch.testing.assert_close(method.scores(CASE["images/1"]), CASE["facil/scores"], **EXACT)


def test_facils_scores_within_heads() -> None:
    method = build(preset="facil", multi_softmax=True)
    learn(method, ["0", "1/1"])
    method.eval()
    torch.testing.assert_close(method.scores(CASE["images/1"]), CASE["facil/scores/softmax"], **EXACT)


def pycil(prefix: str, *, classes: int) -> dict[str, Tensor]:
    """Recorded tensors by parameter, PyCIL's one classifier cut into our heads."""
    tensors = part(prefix)
    for kind in ("weight", "bias"):
        rows = tensors.pop(f"fc.{kind}")
        assert len(rows) == classes
        tensors |= {f"heads.layers.{at}.{kind}": given for at, given in enumerate(rows.split(CLASSES[0]))}
    return tensors


def test_pycils_importances_penalty_gradient_and_scores() -> None:
    method = build(preset="pycil")
    learn(method, ["1/0", "1/1"])
    same(importances(method), pycil("pycil/after0/", classes=3))
    terms, found = gradients(method)
    torch.testing.assert_close(terms["penalty"], 1000 * CASE["pycil/penalty"], **EXACT)
    same(found, pycil("pycil/gradient/", classes=5))
    put(method, "middle", ["1/0", "1/1"])
    method.eval()
    torch.testing.assert_close(method.scores(CASE["images/1"]), CASE["pycil/scores"], **EXACT)
    put(method, "end", ["1/0", "1/1"])
    method.end_task(Recorded(1))  # type: ignore[arg-type]
    same(importances(method), pycil("pycil/after1/", classes=5))


def test_the_cap_is_felt_and_not_by_all() -> None:
    new = torch.cat([tensor.flatten() for tensor in part("pycil/new/").values()])
    assert 0.2 < (new == 1e-4).double().mean() < 0.8
