"""The first weights of a bottleneck, and the rate a pretrained backbone learns at."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gatf.config import RunConfig
from gatf.experiment import Experiment
from gatf.geometry.moments import Moments
from gatf.methods.parts.bottleneck import start_bottleneck, whitening
from gatf.methods.parts.extraction import own_features
from gatf.nets.small import SmallNet
from gatf.settings import StageConfig


def test_principal_axes_by_hand() -> None:
    """Points (1 ± 2, 2), (1, 2 ± 1): mean (1, 2), covariance diag(8/3, 2/3); the wide axis is halved by √(8/3)."""
    points = torch.tensor([[3.0, 2.0], [-1.0, 2.0], [1.0, 3.0], [1.0, 1.0]])
    weight, bias = whitening(Moments.of(points), 1)
    scale = (3 / 8) ** 0.5
    sign = float(weight[0, 0].sign())
    torch.testing.assert_close(sign * weight, torch.tensor([[scale, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(sign * bias, torch.tensor([-scale], dtype=torch.float64))


def test_directions_without_variance_are_not_blown_up() -> None:
    """Two points show one direction; the other is scaled as if it had a thousandth of its variance, 2."""
    weight, _ = whitening(Moments.of(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 2)
    torch.testing.assert_close(weight.norm(dim=1), torch.tensor([0.5**0.5, 500**0.5], dtype=torch.float64))


@pytest.fixture
def pretrained(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> Callable[..., Experiment]:
    """An experiment whose backbone starts from a file."""
    save_file(SmallNet(1, width=8, bottleneck=None).state_dict(), tmp_path / "w.safetensors")

    def build(**settings: object) -> Experiment:
        overrides = {
            "backbone.width": 8,
            "backbone.bottleneck": 6,
            "backbone.pretrained": str(tmp_path / "w.safetensors"),
        }
        return Experiment(tiny_config("gatf", **(overrides | settings)))

    return build


@pytest.mark.parametrize(
    ("settings", "whitened"),
    [
        ({}, True),
        ({"backbone.bottleneck_init": "random"}, False),
        ({"backbone.pretrained": None}, False),
        ({"backbone.pretrained": None, "backbone.bottleneck_init": "pca"}, True),
    ],
    ids=["pretrained", "random", "from nothing", "pca"],
)
def test_the_first_task_decides_what_the_bottleneck_keeps(
    pretrained: Callable[..., Experiment], settings: dict[str, object], whitened: bool
) -> None:
    experiment = pretrained(**settings)
    backbone, data = experiment.method.backbone, experiment.task_data(0)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    start_bottleneck(backbone, experiment.config.backbone, data)
    changed = {name for name, value in backbone.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == ({"bottleneck.weight", "bottleneck.bias"} if whitened else set())
    seen = Moments.of(own_features(backbone, data, mirror=True)[0])
    identity = torch.eye(6, dtype=torch.float64)
    assert torch.allclose(seen.covariance(), identity, atol=1e-3) == whitened
    if whitened:
        torch.testing.assert_close(seen.mean, torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-4)


def test_a_run_begins_with_it_once(pretrained: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first task's training, neither before another task's nor after a resume, which would undo training."""
    from gatf import session
    from gatf.training.context import RunContext
    from gatf.training.loop import Position
    from gatf.training.task import Resumed

    started: list[int] = []
    monkeypatch.setattr(session, "start_bottleneck", lambda backbone, config, data: started.append(data.info.index))
    monkeypatch.setattr(session, "train_task", lambda *args, **given: None)
    experiment = pretrained()
    quiet = RunContext()
    for task, resumed in ((0, Resumed(0, Position(), {})), (0, None), (1, None)):
        experiment.session.learn_task(experiment.task_data(task), quiet, resumed=resumed, end=lambda data: None)
    assert started == [0]


def test_a_pretrained_backbone_learns_slowly(pretrained: Callable[..., Experiment]) -> None:
    fine, plain = pretrained().method, pretrained(**{"backbone.pretrained": None}).method
    stage = StageConfig(lr=0.1)
    assert fine.backbone_rate(stage) == pytest.approx(0.001)
    assert plain.backbone_rate(stage) == 0.1
    assert fine.backbone_rate(StageConfig(lr=0.1, lr_backbone=None)) == 0.1
    assert fine.backbone_rate(StageConfig(lr=0.1, lr_backbone=0.02)) == 0.02
    assert [group.get("lr") for group in fine.train_groups(stage)] == [pytest.approx(0.001), None]
