"""ADC, by the checks of its specification."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gatf.config import RunConfig
from gatf.data.loader import TaskData
from gatf.errors import NotFinite
from gatf.experiment import Experiment
from gatf.methods import adc
from gatf.methods.adc import ADCConfig
from gatf.methods.lwf import local_cross_entropy, softened_cross_entropy
from gatf.methods.parts import attack
from gatf.methods.sdc import sdc_shift
from gatf.nets.heads import CosineHeads

UNLIMITED = torch.tensor(-math.inf), torch.tensor(math.inf)
Tiny = Callable[..., RunConfig]
Learn = Callable[..., Experiment]


@pytest.fixture
def all_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every perturbed image counts as one of its class."""
    monkeypatch.setattr("gatf.methods.adc.successes", lambda prototypes, landed: landed[..., 0] == landed[..., 0])


class Drift:
    """ADC's functions with some settings."""

    def __init__(self, **settings: Any) -> None:
        config = ADCConfig(**settings)
        self.attack, self.resolve = partial(adc.attack, config), partial(adc.resolve, config)
        self.resurrect = partial(adc.resurrect, config)

    def transport(self, prototypes: Tensor, old: nn.Module, new: nn.Module, data: TaskData) -> tuple[Tensor, Any]:
        at, to, unmoved = self.resurrect(prototypes, old.eval(), new.eval(), data)
        return self.resolve(prototypes, at, to - at, unmoved)


class Moved(nn.Module):
    """Features of another network, mapped."""

    def __init__(self, net: nn.Module, mapping: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.mapping = net, mapping

    def forward(self, images: Tensor) -> Tensor:
        return self.mapping(self.net(images))


@pytest.fixture(scope="module")
def trained(tiny_config: Tiny, learn: Learn) -> tuple[nn.Module, Tensor, Experiment]:
    """A frozen network, two old prototypes in its space, and the experiment whose task 1 comes next."""
    experiment = learn(tiny_config("adc"), tasks=1)
    method = experiment.method
    return method.frozen_copy(method.backbone), method.prototypes.means, experiment


Trained = tuple[nn.Module, Tensor, Experiment]


def pixels(*points: tuple[float, float]) -> Tensor:
    """2-pixel images of one class, [1, m, 1, 1, 2]."""
    return torch.tensor(points, dtype=torch.float64)[None, :, None, None, :]


class TestAttack:
    target = torch.tensor([[3.0, 4.0]], dtype=torch.float64)

    def walk(self, start: Tensor, grad_norm: str, candidates: int) -> list[list[float]]:
        attack = Drift(candidates=candidates, step_size=1.0, grad_norm=grad_norm)  # type: ignore[arg-type]
        return attack.attack(nn.Flatten(), start, self.target, UNLIMITED)[0, :, 0, 0].tolist()

    @pytest.mark.parametrize("grad_norm", ["batch", "sample"])
    def test_one_image_by_hand(self, grad_norm: str) -> None:
        (end,) = self.walk(pixels((0, 0)), grad_norm, 1)
        assert end == pytest.approx([1.8, 2.4])

    def test_two_images_by_hand(self) -> None:
        first, second = self.walk(pixels((0, 0), (6, 8)), "batch", 2)
        assert first == pytest.approx([1.2728, 1.6971], abs=1e-4)
        assert second == pytest.approx([4.7272, 6.3029], abs=1e-4)
        first, second = self.walk(pixels((0, 0), (6, 8)), "sample", 2)
        assert first == pytest.approx([1.8, 2.4])
        assert second == pytest.approx([4.2, 5.6])

    def test_fewer_candidates_take_as_long_a_step_each(self) -> None:
        few = self.walk(pixels((0, 0), (6, 8)), "batch", 8)
        many = self.walk(pixels(*[(0, 0), (6, 8)] * 4), "batch", 8)
        assert few[0] == pytest.approx(many[0])

    def test_at_the_target_nothing_moves(self) -> None:
        (end,) = self.walk(pixels((3, 4)), "batch", 1)
        assert end == [3.0, 4.0]

    def test_pixels_stay_within_limits(self) -> None:
        limits = torch.tensor(0.0), torch.tensor(2.0)
        end = Drift(candidates=1, step_size=1.0).attack(nn.Flatten(), pixels((0, 0)), self.target, limits)
        assert end.flatten().tolist() == pytest.approx([1.8, 2.0])

    def test_classes_do_not_disturb_each_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        draws = torch.Generator().manual_seed(0)
        images = torch.randn(3, 4, 1, 1, 2, generator=draws, dtype=torch.float64)
        targets = torch.randn(3, 2, generator=draws, dtype=torch.float64)
        attack = Drift(candidates=4, step_size=0.3)
        together = attack.attack(nn.Flatten(), images, targets, UNLIMITED)
        alone = [attack.attack(nn.Flatten(), images[k : k + 1], targets[k : k + 1], UNLIMITED) for k in range(3)]
        assert torch.allclose(together, torch.cat(alone))
        monkeypatch.setattr("gatf.methods.parts.attack.NETWORK_BATCH", 5)
        assert torch.allclose(attack.attack(nn.Flatten(), images, targets, UNLIMITED), together)


def test_a_linear_drift_moves_a_reached_prototype_as_the_map_does() -> None:
    """A step as long as the distance lands on Q = (3, 4): P = A·Q, which is what LDC gives."""
    matrix = torch.tensor([[0.0, -1.0], [2.0, 1.0]], dtype=torch.float64)
    target = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    attack = Drift(candidates=1, steps=1, step_size=5.0)
    landed = attack.attack(nn.Flatten(), pixels((0, 0)), target, UNLIMITED).flatten(2)  # [1, 1, 2]
    moved, _ = attack.resolve(target, landed, landed @ matrix.T - landed, torch.zeros(1, 2))
    assert moved[0].tolist() == pytest.approx([-4.0, 10.0])


class TestTransport:
    def test_no_drift_leaves_the_bits(self, trained: Trained) -> None:
        net, prototypes, experiment = trained
        moved, _ = Drift().transport(prototypes, net, net, experiment.task_data(1))
        assert torch.equal(moved, prototypes)

    def test_a_constant_drift_is_found(self, trained: Trained) -> None:
        net, prototypes, experiment = trained
        offset = torch.linspace(-1, 1, 32)
        moved, report = Drift().transport(prototypes, net, Moved(net, lambda z: z + offset), experiment.task_data(1))
        assert torch.allclose(moved, prototypes + offset, atol=1e-5)
        assert report["classes"] == 2

    def test_without_attack_it_is_the_mean_drift_of_the_nearest(self, trained: Trained, all_succeed: None) -> None:
        net, prototypes, experiment = trained
        data, new = experiment.task_data(1), Moved(net, torch.square)
        still = Drift(candidates=10, step_size=0.0)
        moved, _ = still.transport(prototypes, net, new, data)
        old = torch.cat([net(batch.images) for batch in data.batches("train", purpose="adc pool")])
        near = torch.cdist(prototypes, old).topk(10, largest=False).indices
        assert torch.allclose(moved, prototypes + (old.square() - old)[near].mean(1), atol=1e-5)

    def test_with_all_candidates_and_no_attack_it_is_sdc_without_kernel(
        self, trained: Trained, all_succeed: None
    ) -> None:
        net, prototypes, experiment = trained
        data, new = experiment.task_data(1), Moved(net, torch.square)
        still = Drift(candidates=1000, step_size=0.0)
        moved, _ = still.transport(prototypes, net, new, data)
        old = torch.cat([net(batch.images) for batch in data.batches("train", purpose="adc pool")])
        drift, _ = sdc_shift(old, old.square(), prototypes, sigma=math.inf, floor=0.0)
        assert torch.allclose(moved.double(), prototypes + drift, atol=1e-5)

    def test_the_attack_brings_images_closer(self, trained: Trained) -> None:
        net, prototypes, experiment = trained
        data = experiment.task_data(1)
        _, untouched = Drift(candidates=20, step_size=0.0).transport(prototypes, net, net, data)
        _, attacked = Drift(candidates=20, step_size=25.0).transport(prototypes, net, net, data)
        assert attacked["successes_mean"] > untouched["successes_mean"]

    def test_classes_in_small_groups_give_the_same(self, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
        net, prototypes, experiment = trained
        data, new = experiment.task_data(1), Moved(net, torch.square)
        whole, _ = Drift(candidates=10).transport(prototypes, net, new, data)
        monkeypatch.setattr("gatf.methods.parts.attack.PIXELS", 1)
        grouped, _ = Drift(candidates=10).transport(prototypes, net, new, data)
        assert torch.allclose(whole, grouped, atol=1e-5)

    def test_the_pixels_ranked_are_the_pixels_attacked(self, trained: Trained) -> None:
        data: TaskData = trained[2].task_data(1)
        everything = torch.cat([batch.images for batch in attack.pool(data, adc.POOL)])
        wanted = torch.tensor([0, 3, 7, len(everything) - 1])
        assert torch.equal(attack.pool_images(data, adc.POOL, wanted), everything[wanted])
        plain = torch.cat([batch.images for batch in data.batches("test")])
        assert not torch.equal(everything, plain)  # augmented, and yet the same every time


class TestSuccess:
    """Two prototypes on a line at 0 and 4; one candidate each that landed there, one astray."""

    prototypes = torch.tensor([[0.0], [4.0]])
    landed = torch.tensor([[[0.5], [3.5]], [[4.0], [3.0]]])
    drift = torch.tensor([[[10.0], [99.0]], [[1.0], [3.0]]])

    def test_only_landed_images_count(self) -> None:
        moved, report = Drift().resolve(self.prototypes, self.landed, self.drift, torch.zeros(2, 1))
        assert moved.flatten().tolist() == pytest.approx([10.0, 6.0])
        assert report["successes_mean"] == 1.5

    def test_without_success_the_unperturbed_candidates_count(self) -> None:
        astray = torch.full_like(self.landed, 4.0)
        moved, report = Drift().resolve(self.prototypes, astray, self.drift, torch.tensor([[-7.0], [0.0]]))
        assert moved.flatten().tolist() == pytest.approx([-7.0, 6.0])
        assert report["fallbacks"] == 1

    def test_in_place_sees_earlier_classes_moved(self) -> None:
        """Class 0 went to 3.2, so the image at 3 is now nearer to it than to 4: it no longer counts for class 1."""
        drift = torch.tensor([[[3.2], [99.0]], [[1.0], [3.0]]])
        frozen, _ = Drift().resolve(self.prototypes, self.landed, drift, torch.zeros(2, 1))
        inplace, _ = Drift(inplace=True).resolve(self.prototypes, self.landed, drift, torch.zeros(2, 1))
        assert frozen.flatten().tolist() == pytest.approx([3.2, 6.0])
        assert inplace.flatten().tolist() == pytest.approx([3.2, 5.0])

    def test_a_prototype_that_is_not_finite_is_an_error(self) -> None:
        with pytest.raises(NotFinite, match="not finite"):
            Drift().resolve(self.prototypes, self.landed, self.drift * math.nan, torch.zeros(2, 1))


class TestLoss:
    def test_by_hand(self) -> None:
        logits = torch.tensor([[2.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
        distill = softened_cross_entropy(logits[:, :2], torch.ones(1, 2, dtype=torch.float64), 2.0)
        ce = local_cross_entropy(logits, torch.tensor([2]), 2)
        assert distill.item() == pytest.approx(0.81326, abs=1e-5)
        assert ce.item() == pytest.approx(0.31326, abs=1e-5)
        assert (ce + 10 * distill).item() == pytest.approx(8.44588, abs=1e-5)

    def test_the_cross_entropy_does_not_touch_old_rows(self) -> None:
        torch.manual_seed(0)
        heads = CosineHeads(4).grow(3).grow(2)
        local_cross_entropy(heads(torch.randn(6, 4)), torch.tensor([3, 4, 3, 4, 3, 3]), 3).backward()
        assert heads.weight.grad is not None
        assert not heads.weight.grad[:3].any()
        assert heads.weight.grad[3:].any()


class TestMethod:
    def test_a_network_that_did_not_move_moves_no_prototype(self, tiny_config: Tiny, learn: Learn) -> None:
        experiment = learn(tiny_config("adc"), tasks=1)
        method, data = experiment.method, experiment.task_data(1)
        before = method.prototypes.means.clone()
        method.begin_task(data.info)
        method.end_task(data)
        torch.testing.assert_close(method.prototypes.means[:2], before, rtol=0, atol=1e-6)
        assert method.prototypes.means.shape == (4, 32)

    def test_what_is_kept_per_class(self, tiny_config: Tiny) -> None:
        assert Experiment(tiny_config("adc")).method.bytes_per_class() == 4 * 32

    def test_the_networks_keep_no_gradient_of_the_attack(self, tiny_config: Tiny, learn: Learn) -> None:
        method = learn(tiny_config("adc"), tasks=2).method
        assert all(parameter.grad is None for parameter in method.backbone.parameters())
