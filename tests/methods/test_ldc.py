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
from gatf.geometry.moments import PairedMoments
from gatf.methods.adc import AdversarialDrift
from gatf.methods.dpcr import GramMemory, shift_projection
from gatf.methods.ldc import LDCConfig, LearnedDrift, build_projector, projector_phase, projector_stage, ridge_projector
from gatf.methods.lwf import local_cross_entropy, softened_cross_entropy
from gatf.methods.parts.distillation import LwfBaseConfig

Tiny = Callable[..., RunConfig]
Learn = Callable[..., Experiment]


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def fitted(old: Tensor, new: Tensor, ridge: float = 1e-14, *, bias: bool = False) -> Callable[[Tensor], Tensor]:
    return ridge_projector(PairedMoments.of(old, new), ridge, bias=bias)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestRidge:
    def test_a_rotation_by_hand(self) -> None:
        old = torch.eye(2, dtype=torch.float64)
        turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
        moved = fitted(old, old @ turn.T)(torch.tensor([[1.0, 2.0]], dtype=torch.float64))
        assert moved[0].tolist() == pytest.approx([-2.0, 1.0])

    def test_a_scale_by_hand(self) -> None:
        assert fitted(column(1, 2, 3), column(2, 4, 6))(column(4)).item() == pytest.approx(8.0)

    def test_a_translation_needs_the_bias(self) -> None:
        assert fitted(column(1, 3), column(2, 4))(column(2)).item() == pytest.approx(2.8)
        assert fitted(column(1, 3), column(2, 4), bias=True)(column(2)).item() == pytest.approx(3.0)

    def test_is_homogeneous_without_bias(self) -> None:
        old, new, prototypes = normal(40, 5), normal(40, 5, seed=1), normal(3, 5, seed=2)
        linear, affine = fitted(old, new), fitted(old, new + 1, bias=True)
        assert torch.allclose(linear(7 * prototypes), 7 * linear(prototypes))
        assert not torch.allclose(affine(7 * prototypes), 7 * affine(prototypes))

    def test_no_drift_is_the_identity(self) -> None:
        old = normal(60, 20).relu()
        assert torch.allclose(fitted(old, old)(torch.eye(20, dtype=torch.float64)), torch.eye(20).double(), atol=1e-9)

    def test_a_linear_drift_is_found_and_carries_class_means_exactly(self) -> None:
        """The old classes' images are not in the fit, and yet their means in the new space come out; ADC with a perfect
        attack says the same."""
        matrix, current, gone = normal(6, 6, seed=3), normal(50, 6), normal(30, 6, seed=1) + 2
        moved = fitted(current, current @ matrix.T)(gone.mean(0, keepdim=True))
        assert torch.allclose(moved[0], (gone @ matrix.T).mean(0), atol=1e-9)
        landed = gone.mean(0).expand(1, 4, 6)
        by_attack, _ = AdversarialDrift().resolve(
            gone.mean(0, keepdim=True), landed, landed @ matrix.T - landed, torch.zeros(1, 6)
        )
        assert torch.allclose(by_attack.double(), moved, atol=1e-5)

    def test_is_dpcrs_shift_projection(self) -> None:
        """Without DPCR's projection on a class's row space, which acts from the right, prototypes move alike."""
        old, new, prototypes = normal(60, 5), normal(60, 5, seed=1), normal(3, 5, seed=2)
        projection, _ = shift_projection(old.T @ old, old.T @ new, 1e-9)
        memory = GramMemory(5)
        memory.triangles, memory.counts = torch.zeros(3, 15), torch.ones(3)
        memory.means = prototypes.float()
        memory.move(projection, cip=False, tolerance=None)
        assert torch.allclose(fitted(old, new)(prototypes), prototypes @ projection, atol=1e-9)
        assert torch.allclose(memory.means.double(), fitted(old, new)(prototypes), atol=1e-5)

    def test_fewer_samples_than_dimensions(self) -> None:
        old, new = normal(10, 32).relu(), normal(10, 32, seed=1)
        projector = fitted(old, new, 1e-6)
        assert projector(normal(4, 32, seed=2)).isfinite().all()
        assert torch.allclose(projector(old), new, atol=1e-3)

    def test_dead_columns_are_zero(self) -> None:
        old = normal(40, 5).relu()
        old[:, 2] = 0
        assert torch.allclose(
            fitted(old, normal(40, 5, seed=1), 1e-6)(torch.eye(5).double())[2], torch.zeros(5).double()
        )


class TestAdam:
    def test_no_drift_converges_to_the_identity(self, tiny_config: Tiny, train: Any) -> None:
        """d = 4, rate 0.01, 400 epochs of batches of 64."""
        pixels = torch.randint(0, 256, (128, 1, 2, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        data = task_data(pixels)
        config = LDCConfig(projector_lr=1e-2, projector_batch=64, projector_updates=800)
        torch.manual_seed(0)
        projector = build_projector("linear", 4)
        phase = projector_phase(projector, nn.Flatten(), nn.Flatten(), projector_stage(config, len(data)))
        assert phase.stage.epochs == 400
        train(Experiment(tiny_config("finetune")), phase, data)
        assert (projector.weight - torch.eye(4)).abs().max() < 1e-5

    @pytest.mark.parametrize(
        ("settings", "epochs"),
        [
            ({}, 20),
            ({"projector_batch": 256}, 40),
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
        projector = build_projector("linear", 4)
        phase = projector_phase(projector, nn.Flatten(), nn.Flatten(), projector_stage(LDCConfig(), 10))
        batch = Batch(torch.randn(3, 1, 2, 2), None, 0, 0, torch.Generator())  # type: ignore[arg-type]
        assert phase.loss(batch)["projector"].item() > 0

    def test_shapes(self) -> None:
        draws = torch.randn(5, 6)
        assert build_projector("linear", 6).bias is None
        assert build_projector("affine", 6).bias is not None
        assert (build_projector("linear_relu", 6)(draws) >= 0).all()
        assert len(build_projector("mlp", 6)) == 3
        with pytest.raises(ValueError, match="solver adam"):
            LDCConfig(solver="ridge", projector="mlp")


def task_data(pixels: Tensor) -> TaskData:
    from gatf.data.sources import ImageSet

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
        assert changed == {"compensator.projector.weight"}
        projector, old = method.compensator.projector, method.prototypes.means.clone()
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
        compensator = LearnedDrift(LDCConfig(), 32)
        compensator.projector = nn.Identity()
        data = Experiment(tiny_config("ldc")).task_data(1)
        moved, report = compensator.transport(method.prototypes.means, method.backbone, method.backbone, data)
        assert torch.equal(moved, method.prototypes.means)
        assert report["norm_ratio"] == pytest.approx(1.0)

    def test_solved_instead_of_trained(self, tiny_config: Tiny, learn: Learn) -> None:
        """Without training in between, the solved map keeps the prototypes where they are."""
        config = tiny_config("ldc", **{"method.solver": "ridge", "method.ridge": 1e-10})
        experiment = learn(config, tasks=1)
        method, data = experiment.method, experiment.task_data(1)
        before = method.prototypes.means.clone()
        method.begin_task(data.info)
        assert len(method.phases(data.info)) == 1
        method.end_task(data)
        assert torch.allclose(method.prototypes.means[:2], before, atol=1e-3)
        assert method.bytes_per_class() == 4 * 32

    def test_on_feature_distillation(self, tiny_config: Tiny, learn: Learn) -> None:
        overrides = {"method.base": "feature", "method.projector": "affine", "method.metric": "euclidean"}
        method = learn(tiny_config("ldc", **overrides), tasks=2).method
        assert method.scores(torch.zeros(3, 1, 8, 8)).shape == (3, 4)
