"""APR against its author's code (apr.md)."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gatf.geometry import spd
from gatf.methods import apr
from gatf.methods.apr import APR, APRConfig
from gatf.settings import OptimisationConfig, StageConfig

from .conftest import under

ROUNDED: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6, "check_dtype": False}
"""Prototypes and attacked images are float32 here."""
OLD = 3


@pytest.fixture(scope="module")
def learnt(recorded: Any, toy_net: Any, toy_tasks: Any, traced_steps: Any) -> Any:
    """The recorded second task again, by this package's code."""
    given = recorded("apr", "input/")
    net = toy_net(under(given, "backbone."), rectified=False).double()
    net.register_forward_pre_hook(lambda module, images: (images[0].double(),))
    stage = StageConfig(
        epochs=8, batch_size=64, optimiser="sgd", lr=0.05, momentum=0.9, weight_decay=2e-4, schedule="cosine",
        clip=None, warmup=0.0, drop_last=False,
    )  # fmt: skip
    config = APRConfig(
        candidates=5, step_size=2.0, pseudo_batch=15, transport_candidates=10, transport_steps=3,
        transport_step_size=6.0, transfer_epochs=30, transfer_lr=0.01,
    )  # fmt: skip
    method = APR(config, net, OptimisationConfig(next=stage), 0)
    method.double()
    method.memory.set(given["means"], spd.pack(given["covs"]))
    heads = method.base.heads
    heads.grow(OLD)
    heads.load_state_dict({"weight": given["head"][:OLD], "scale": given["scale"][0]})
    data = toy_tasks(given["images"], given["labels"], [OLD, 2])[1]
    method.begin_task(data.info)
    with torch.no_grad():
        heads.weight[OLD:] = given["head"][OLD:]
    pseudo: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apr, "drawn", lambda candidates, count, dim, draws: (torch.arange(count), given["noise"]))
        replayed = method._pseudo_replay
        patch.setattr(method, "_pseudo_replay", lambda batch: pseudo.append(replayed(batch)) or pseudo[-1])
        (phase,) = method.phases(data.info)
        terms, _ = traced_steps(phase, data)
    trained = {name: value.clone() for name, value in method.state_dict().items()}
    pool = method._pool
    method.eval()
    method.end_task(data)
    return SimpleNamespace(method=method, terms=terms, trained=trained, pseudo=pseudo, pool=pool)


def test_candidates_and_pseudo_replay_images(learnt: Any, recorded: Callable[..., dict[str, Tensor]]) -> None:
    """The images nearest to each prototype, and what four steps of the attack make of them."""
    expected = recorded("apr", "expected/")
    images, chosen, _ = learnt.pool
    assert_close(images[chosen].flatten(0, 1), expected["candidates"], **ROUNDED)
    assert torch.arange(OLD).repeat_interleave(chosen.shape[1]).tolist() == expected["classes"].tolist()
    assert_close(learnt.pseudo[0], expected["pseudo"], **ROUNDED)


def test_losses_and_weights(learnt: Any, recorded: Callable[..., dict[str, Tensor]]) -> None:
    """Cross-entropy of the new images, distillation from all, over eight epochs."""
    expected = recorded("apr", "expected/")
    assert_close(learnt.terms["ce"], expected["loss_cls"], **ROUNDED)
    assert_close(learnt.terms["distill"], expected["loss_kd"], **ROUNDED)
    for name, weights in under(expected, "backbone.").items():
        assert_close(learnt.trained[f"backbone.{name}"], weights, **ROUNDED)
    assert_close(learnt.trained["base.heads.weight"], expected["head"], **ROUNDED)
    assert_close(learnt.trained["base.heads.scale"], expected["scale"][0], **ROUNDED)


def test_transported_and_new_gaussians(learnt: Any, recorded: Callable[..., dict[str, Tensor]]) -> None:
    expected, stored = recorded("apr", "expected/"), learnt.method.stored()
    assert_close(stored.means, expected["means"], **ROUNDED)
    assert_close(stored.covs, expected["covs"], **ROUNDED)
    (report,) = [notice.values for notice in learnt.method.notices if notice.name == "apr"]
    assert report["successes_mean"] == expected["successes"].double().mean()
    assert 0 < int(expected["successes"].min()) < 10  # some attacks of every class succeed, and not all


def test_mahalanobis_distances(learnt: Any, recorded: Callable[..., dict[str, Tensor]]) -> None:
    test = recorded("apr", "input/")["test"] * (1 / 255)
    with torch.no_grad():
        scores = learnt.method.scores(test)
    assert_close(-scores, recorded("apr", "expected/")["distances"], **ROUNDED)
