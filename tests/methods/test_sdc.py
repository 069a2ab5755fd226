"""SDC, by the checks of its specification."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gatf.config import RunConfig
from gatf.experiment import Experiment
from gatf.methods.parts.prototypes import Prototypes
from gatf.methods.sdc import sdc_shift

Tiny = Callable[..., RunConfig]
Learn = Callable[..., Experiment]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shift(old: Tensor, new: Tensor, prototypes: Tensor, sigma: float, floor: float = 0.0) -> Tensor:
    return sdc_shift(old, new, prototypes, sigma=sigma, floor=floor)[0]


class TestShift:
    @pytest.mark.parametrize("floor", [0.0, 1e-5])
    @pytest.mark.parametrize("sigma", [1e-3, 0.3, math.inf])
    def test_a_constant_drift_is_found(self, sigma: float, floor: float) -> None:
        old, drift = normal(50, 8), normal(8, seed=1)
        assert torch.allclose(shift(old, old + drift, normal(5, 8, seed=2), sigma, floor), drift.expand(5, 8))

    @pytest.mark.parametrize("floor", [0.0, 1e-5])
    def test_no_drift_leaves_the_bits(self, floor: float) -> None:
        old = normal(50, 8)
        assert not shift(old, old.clone(), normal(5, 8, seed=2), 0.3, floor).any()

    @pytest.mark.parametrize(
        ("sigma", "floor", "expected"),
        [
            (0.3, 0.0, (0.996149, 0.003851)),
            (0.3, 1e-5, (0.996139, 0.003861)),
            (0.2, 0.0, (0.999996, 3.7e-6)),
            (0.2, 1e-5, (0.999986, 1.37e-5)),
        ],
    )
    def test_by_hand(self, sigma: float, floor: float, expected: tuple[float, float]) -> None:
        old = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
        found = shift(old, old + torch.eye(2), torch.zeros(1, 2), sigma, floor)[0]
        assert found[0].item() == pytest.approx(expected[0], abs=5e-7)
        assert found[1].item() == pytest.approx(expected[1], abs=5e-7, rel=1e-2)

    def test_a_wide_kernel_gives_the_mean_and_a_narrow_one_the_nearest(self) -> None:
        old, new, prototypes = normal(30, 4), normal(30, 4, seed=1), normal(3, 4, seed=2)
        for floor in (0.0, 1e-5, 0.1):
            mean = (new - old).mean(0).expand(3, 4)
            assert torch.allclose(shift(old, new, prototypes, math.inf, floor), mean)
        nearest = torch.cdist(prototypes, old).argmin(1)
        assert torch.allclose(shift(old, new, prototypes, 1e-4), (new - old)[nearest])

    def test_scales_with_the_features(self) -> None:
        old, new, prototypes = normal(30, 4), normal(30, 4, seed=1), normal(3, 4, seed=2)
        assert torch.allclose(shift(7 * old, 7 * new, 7 * prototypes, 2.1), 7 * shift(old, new, prototypes, 0.3))

    def test_samples_may_be_permuted_together_only(self) -> None:
        """400 unit vectors in R⁸, drift 0.1 a coordinate: mispaired, a component of 0.1 becomes something else."""
        old = torch.nn.functional.normalize(normal(400, 8), dim=1)
        new, order = old + 0.1, torch.randperm(400, generator=torch.Generator().manual_seed(1))
        prototypes = old[:5]
        right = shift(old, new, prototypes, 0.3)
        assert torch.allclose(shift(old[order], new[order], prototypes, 0.3), right)
        wrong = shift(old, new[order], prototypes, 0.3)
        assert (wrong - right).abs().max() > 0.4

    def test_is_no_longer_than_the_longest_drift(self) -> None:
        old, new = normal(30, 4), normal(30, 4, seed=1)
        shifts = shift(old, new, normal(20, 4, seed=2), 0.3)
        assert (shifts.norm(dim=1) <= (new - old).norm(dim=1).max() + 1e-12).all()

    def test_far_prototypes_stay_finite(self) -> None:
        old, new = normal(30, 4), normal(30, 4, seed=1)
        assert shift(old, new, 1e3 + normal(3, 4, seed=2), 0.2).isfinite().all()
        flat = shift(old, new, 1e3 + normal(3, 4, seed=2), 0.2, floor=1e-5)
        assert torch.allclose(flat, (new - old).mean(0).expand(3, 4))

    def test_effective_sample_sizes(self) -> None:
        old = torch.tensor([[0.0, 0.0], [100.0, 0.0], [100.0, 1e-9]])
        _, sizes = sdc_shift(old, old, torch.tensor([[0.0, 0.0], [100.0, 0.0]]), sigma=0.3, floor=0.0)
        assert sizes.tolist() == pytest.approx([1.0, 2.0])

    @pytest.mark.parametrize("sigma", [0.2, 0.3])
    def test_between_unit_vectors_no_weight_vanishes(self, sigma: float) -> None:
        """‖z − μ‖² ≤ 4: the plain kernel in float32, without floor, is the softmax; the opposite point still counts."""
        old = torch.nn.functional.normalize(normal(60, 5), dim=1)
        new, prototypes = old + normal(60, 5, seed=1), -old[:4]  # means of classes may lie anywhere in the ball
        weights = (-(prototypes[:, None] - old).float().square().sum(-1) / (2 * sigma**2)).exp()
        assert weights.min() > 1e-22
        expected = (weights.double() / weights.double().sum(1, keepdim=True)) @ (new - old)
        assert torch.allclose(shift(old, new, prototypes, sigma), expected, atol=1e-4)
        opposite = shift(-prototypes[:1], new[:1], prototypes[:1], sigma)
        assert torch.allclose(opposite, new[:1] - old[:1])

    def test_prototypes_are_taken_in_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        old, new, prototypes = normal(30, 4), normal(30, 4, seed=1), normal(7, 4, seed=2)
        whole = shift(old, new, prototypes, 0.3)
        monkeypatch.setattr("gatf.methods.sdc.KERNEL_ELEMENTS", 60)
        assert torch.allclose(shift(old, new, prototypes, 0.3), whole)


def test_without_compensation_it_is_lwf_with_nearest_means(tiny_config: Tiny, learn: Learn) -> None:
    off = tiny_config("sdc", **{"method.compensate": False})
    lwf = tiny_config("lwf", **{"method.preset": "ncm"}).model_copy(update={"optimisation": off.optimisation})
    images = normal(9, 1, 8, 8).float()
    ours, theirs = learn(off, tasks=3).method, learn(lwf, tasks=3).method
    assert torch.equal(ours.scores(images), theirs.scores(images))


def test_prototypes_follow_the_sum_of_shifts(tiny_config: Tiny, learn: Learn) -> None:
    """An infinitely wide kernel: each task adds the mean drift of its images, one shift upon the other."""
    wide = tiny_config("sdc", **{"method.sigma": math.inf, "method.floor": 0.0})
    stages = [learn(wide, tasks=tasks) for tasks in (1, 2, 3)]
    expected = stages[0].method.prototypes.means
    for task in (1, 2):
        old, new = stages[task - 1].method, stages[task].method
        batches = list(stages[task].task_data(task).batches("test"))
        with torch.no_grad():
            drift = torch.cat([new.backbone(batch.images) - old.backbone(batch.images) for batch in batches])
        assert drift.mean(0).abs().max() > 1e-3
        expected = expected + drift.mean(0)
        assert torch.allclose(new.prototypes.means[:2], expected, atol=1e-5)


def test_a_network_that_did_not_move_moves_no_prototype(tiny_config: Tiny, learn: Learn) -> None:
    experiment = learn(tiny_config("sdc"), tasks=1)
    method, data = experiment.method, experiment.task_data(1)
    before = method.prototypes.means.clone()
    method.begin_task(data.info)
    method.end_task(data)
    assert torch.allclose(method.prototypes.means[:2], before, atol=1e-6)  # a teacher's batch-norm is folded: rounding


def test_the_report_has_the_effective_number_of_samples(tiny_config: Tiny, learn: Learn) -> None:
    method = learn(tiny_config("sdc"), tasks=2).method
    (note,) = [notice for notice in method.notices if notice.name == "sdc"]
    assert 1 <= note.values["effective_min"] <= note.values["samples"]


def test_prototypes_are_class_means(tiny_config: Tiny, learn: Learn) -> None:
    experiment = learn(tiny_config("sdc"), tasks=1)
    method, data = experiment.method, experiment.task_data(0)
    with torch.no_grad():
        (batch,) = list(data.batches("test"))
        mean = method.backbone(batch.images)[batch.labels == 1].mean(0)
    assert torch.allclose(method.prototypes.means[1], mean, atol=1e-6)
    assert method.bytes_per_class() == 4 * 32


def test_nearest_means() -> None:
    memory = Prototypes(2)
    memory.means = torch.tensor([[3.0, 0.0], [0.0, 0.1]])
    between = torch.tensor([[0.5, 0.4]])  # points along the first, lies by the second
    assert memory.scores(between).argmax() == 0
    memory.metric = "euclidean"
    assert memory.scores(between).argmax() == 1
