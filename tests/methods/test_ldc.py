"""LDC, by the checks of its specification."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gatf.config import RunConfig
from gatf.data.augment import Pipeline
from gatf.data.loader import Batch, TaskData, TaskInfo
from gatf.experiment import Experiment
from gatf.methods.ldc import LDCConfig, projector_phase, projector_stage
from gatf.methods.lwf import local_cross_entropy, softened_cross_entropy
from gatf.methods.parts.distillation import LwfBaseConfig

Tiny = Callable[..., RunConfig]
Learn = Callable[..., Experiment]


class TestAdam:
    def test_no_drift_converges_to_the_identity(self, tiny_config: Tiny, train: Any) -> None:
        """d = 4, rate 0.01, 800 epochs of one batch."""
        pixels = torch.randint(0, 256, (128, 1, 2, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        data = task_data(pixels)
        config = LDCConfig(projector_lr=1e-2, projector_updates=800)
        torch.manual_seed(0)
        projector = nn.Linear(4, 4, bias=False)
        phase = projector_phase(projector, nn.Flatten(), nn.Flatten(), projector_stage(config, len(data)))
        assert phase.stage.epochs == 800
        train(Experiment(tiny_config("finetune")), phase, data)
        assert (projector.weight - torch.eye(4)).abs().max() < 1e-5

    @pytest.mark.parametrize(
        ("settings", "epochs"),
        [
            ({}, 20),
            ({"projector_updates": 400}, 10),
            ({"projector_epochs": 100, "projector_lr": 5e-3}, 100),
            ({"projector_updates": 1}, 1),
        ],
    )
    def test_the_budget_is_in_updates(self, settings: dict[str, Any], epochs: int) -> None:
        stage = projector_stage(LDCConfig(**settings), 5000)
        assert stage.epochs == epochs
        assert (stage.optimiser, stage.weight_decay, stage.schedule, stage.clip) == ("adam", 0.0, "constant", None)

    def test_labels_are_not_read(self) -> None:
        projector = nn.Linear(4, 4, bias=False)
        phase = projector_phase(projector, nn.Flatten(), nn.Flatten(), projector_stage(LDCConfig(), 10))
        batch = Batch(torch.randn(3, 1, 2, 2), None, 0, 0, torch.Generator())  # type: ignore[arg-type]
        assert phase.loss(batch)["projector"].item() > 0


def task_data(pixels: Tensor) -> TaskData:
    from gatf.data.base import ImageSet

    labels = torch.zeros(len(pixels), dtype=torch.int64)
    return TaskData(
        TaskInfo(0, 0, 1, len(pixels)), ImageSet(pixels, labels), (torch.arange(len(pixels)), labels),
        pipeline=Pipeline((), (0.5,), (0.29,)), seed=0, device=torch.device("cpu"),
    )  # fmt: skip


def test_the_loss_by_hand() -> None:
    """Old logits (2,0), teacher (1,1), τ = 2: 0.81326; new logits (1,0), first class: 0.31326; with λ = 10, 8.44588."""
    logits = torch.tensor([[2.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    base = LwfBaseConfig()
    distilled = softened_cross_entropy(logits[:, :2], torch.ones(1, 2, dtype=torch.float64), base.temperature)
    learnt = local_cross_entropy(logits, torch.tensor([2]), 2)
    assert distilled.item() == pytest.approx(0.81326, abs=1e-5)
    assert learnt.item() == pytest.approx(0.31326, abs=1e-5)
    assert (learnt + base.distill * distilled).item() == pytest.approx(8.44588, abs=1e-5)


class TestMethod:
    def test_the_projector_phase_trains_nothing_else(self, tiny_config: Tiny, learn: Learn, train: Any) -> None:
        experiment = learn(tiny_config("ldc"), tasks=1)
        method, data = experiment.method, experiment.task_data(1)
        method.begin_task(data.info)
        training, projecting = method.phases(data.info)
        train(experiment, training, data)
        before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
        train(experiment, projecting, data)
        changed = {name for name, tensor in method.state_dict().items() if not torch.equal(tensor, before[name])}
        assert changed == {"projector.weight"}
        projector, old = method.projector, method.prototypes.means.clone()
        method.end_task(data)
        assert torch.equal(method.prototypes.means[:2], projector(old))
        assert not any("projector" in name or "teacher" in name for name in method.state_dict())

    def test_new_prototypes_and_network_do_not_depend_on_the_projector(self, tiny_config: Tiny, learn: Learn) -> None:
        on, off = (learn(tiny_config("ldc", **{"method.compensate": use}), tasks=2).method for use in (True, False))
        assert torch.equal(on.prototypes.means[2:], off.prototypes.means[2:])
        assert not torch.equal(on.prototypes.means[:2], off.prototypes.means[:2])
        weights = off.backbone.state_dict()
        assert all(torch.equal(tensor, weights[name]) for name, tensor in on.backbone.state_dict().items())

    def test_the_identity_leaves_lwf_with_nearest_means(self, tiny_config: Tiny, learn: Learn) -> None:
        method = learn(tiny_config("ldc"), tasks=1).method
        method.projector = nn.Identity()
        data = Experiment(tiny_config("ldc")).task_data(1)
        moved, report = method.moved(method.prototypes.means, method.backbone, method.backbone, data)
        assert torch.equal(moved, method.prototypes.means)
        assert report["norm_ratio"] == pytest.approx(1.0)
