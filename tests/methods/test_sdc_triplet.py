"""SDC on its own paper's base: an embedding network with a triplet loss."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gatf.config import RunConfig, load_config, validated
from gatf.data.loader import Batch, TaskInfo
from gatf.errors import UserError
from gatf.experiment import Experiment, resume
from gatf.io import container
from gatf.io.events import Epoch, Event
from gatf.methods.parts.embedding import TripletBaseConfig
from gatf.methods.parts.triplets import ClassBalanced, embedding_change, triplet_loss
from gatf.methods.sdc import SDC, SDCConfig
from gatf.settings import OptimisationConfig, StageConfig

Tiny = Callable[..., RunConfig]
Learn = Callable[..., Experiment]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def loss_of(
    points: Any, labels: list[int], rule: Any = "random", margin: float = 0.0, m: int = 2, seed: int = 0
) -> Any:
    embeddings = torch.as_tensor(points, dtype=torch.float32)
    return triplet_loss(embeddings, torch.tensor(labels), rule=rule, margin=margin, per_class=m, draws=seeded(seed))


CROSS = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
"""Two classes of two: 2 apart within a class, √2 between classes."""


class TestTripletLoss:
    @pytest.mark.parametrize(("margin", "expected"), [(0.0, (4 + 5 - 18**0.5) / 2), (1.0, (5 + 6 - 18**0.5) / 2)])
    def test_by_hand(self, margin: float, expected: float) -> None:
        """a and b of one class, c of another: d(a,b) = 5, d(a,c) = 1, d(b,c) = √18; c has no positive."""
        points = [[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]
        assert loss_of(points, [0, 0, 1], margin=margin).item() == pytest.approx(expected)
        assert loss_of(points, [0, 0, 1], "hard", margin).item() == pytest.approx(expected)

    def test_satisfied_triplets_count_as_zero(self) -> None:
        """On a line, 0 and 1 against 1.5: 1 − 1.5 < 0 and 1 − 0.5 = 0.5."""
        assert loss_of([[0.0], [1.0], [1.5]], [0, 0, 1]).item() == pytest.approx(0.25)

    def test_an_image_is_not_its_own_positive(self) -> None:
        """Every real triplet of the cross costs 2 − √2; a self-pair would cost nothing and lower the mean."""
        for rule in ("random", "hard"):
            assert loss_of(CROSS, [0, 0, 1, 1], rule).item() == pytest.approx(2 - 2**0.5)

    def test_the_release_pairs_half_of_two_with_themselves(self) -> None:
        assert loss_of(CROSS, [0, 0, 1, 1], "official").item() == pytest.approx((2 - 2**0.5) / 2, abs=1e-6)

    def test_the_release_by_hand(self) -> None:
        """Points 0, 1 | 3, 7, second of the class and second of the others: 1−7, 0−6, 4−2, 0−6, each plus 7."""
        points = [[0.0], [1.0], [3.0], [7.0]]
        assert loss_of(points, [0, 0, 1, 1], "official", margin=7.0).item() == pytest.approx((1 + 1 + 9 + 1) / 4)

    def test_the_release_as_it_describes_itself(self) -> None:
        points, labels = torch.randn(12, 5, generator=seeded()), [0] * 4 + [1] * 4 + [2] * 4
        apart = torch.cdist(points.double(), points.double())
        terms = []
        for a in range(12):
            same = [i for i in range(12) if labels[i] == labels[a]]
            other = [i for i in range(12) if labels[i] != labels[a]]
            terms += [max(0.0, float(apart[a, same[j]] - apart[a, other[j]]) + 0.3) for j in range(1, 4)]
        assert loss_of(points, labels, "official", 0.3, m=4).item() == pytest.approx(sum(terms) / 36, rel=1e-4)

    def test_hard_is_the_farthest_and_the_nearest(self) -> None:
        """Class 0 at 0, 1, 2, class 1 at 3, 9: anchors 0: 2−3, 1: 1−2, 2: 2−1, 3: 6−1, 9: 6−7."""
        points = [[0.0], [1.0], [2.0], [3.0], [9.0]]
        assert loss_of(points, [0, 0, 0, 1, 1], "hard").item() == pytest.approx((1 + 5) / 5)

    def test_negatives_are_drawn_from_all_other_classes(self) -> None:
        """One pair at 0 and 10, negatives at 1, 2 and 4: on average (10−x) and (10−(10−x)) over the three."""
        points, labels = [[0.0], [10.0], [1.0], [2.0], [4.0]], [0, 0, 1, 2, 3]
        found = torch.stack([loss_of(points, labels, seed=seed) for seed in range(600)])
        assert found.mean().item() == pytest.approx((10 - 7 / 3 + 7 / 3) / 2, abs=0.15)
        possible = {((10 - x) + y) / 2 for x in (1, 2, 4) for y in (1, 2, 4)}
        assert {round(value, 3) for value in found.tolist()} == possible
        assert torch.equal(loss_of(points, labels, seed=3), found[3])

    @pytest.mark.parametrize("rule", ["official", "hard"])
    def test_anchors_may_be_shared_out(self, rule: Any) -> None:
        """Each image is an anchor among all, also where two processes take half of them each."""
        points, labels = torch.randn(8, 3, generator=seeded()), torch.arange(8) // 2 % 2
        settings: dict[str, Any] = {"rule": rule, "margin": 0.2, "per_class": 4, "draws": seeded()}
        halves = [triplet_loss(points, labels, **settings, anchors=slice(i, i + 4)) for i in (0, 4)]
        assert halves[0] != halves[1]
        assert torch.stack(halves).mean().item() == pytest.approx(triplet_loss(points, labels, **settings).item())

    @pytest.mark.parametrize("rule", ["random", "official", "hard"])
    def test_identical_images_and_batches_without_triplets(self, rule: str) -> None:
        points = torch.ones(4, 3, requires_grad=True)
        loss = loss_of(points, [0, 0, 1, 1], rule, margin=1.0)
        loss.backward()
        assert loss.item() == pytest.approx(1.0, abs=1e-5)
        assert points.grad is not None
        assert not points.grad.any()
        lonely = torch.randn(4, 3, generator=seeded()).requires_grad_()
        loss = loss_of(lonely, [5, 5, 5, 5], rule, margin=1.0)
        loss.backward()
        assert loss.item() == 0
        assert lonely.grad is not None
        assert not lonely.grad.any()


class TestOrder:
    def test_batches_of_whole_classes_each_once(self) -> None:
        labels = torch.arange(300, 320).repeat_interleave(12)[torch.randperm(240, generator=seeded(1))]
        visited = ClassBalanced(8, 4)(labels, seeded())
        assert len(visited) == 20 * 8
        assert len(visited.unique()) == 20 * 8  # enough images: none twice
        blocks = labels[visited].view(20, 8)
        assert (blocks == blocks[:, :1]).all()
        assert sorted(blocks[:, 0].tolist()) == list(range(300, 320))
        assert blocks[:, 0].tolist() != list(range(300, 320))

    def test_epochs_differ_and_reach_every_image(self) -> None:
        labels = torch.arange(4).repeat(20)
        epochs = [ClassBalanced(8, 4)(labels, seeded(epoch)) for epoch in range(40)]
        assert not torch.equal(epochs[0], epochs[1])
        assert torch.equal(ClassBalanced(8, 4)(labels, seeded(1)), epochs[1])
        visits = torch.cat(epochs).bincount(minlength=80)
        assert visits.min() > 5  # 16 on average
        assert visits.max() < 30

    def test_small_classes_are_drawn_from_with_replacement(self) -> None:
        labels = torch.tensor([0] * 3 + [1] * 8 + [2])
        order = ClassBalanced(8, 3)
        found = torch.stack([order(labels, seeded(seed)) for seed in range(50)])
        drawn = labels[found]
        assert (drawn.view(50, 3, 8) == drawn.view(50, 3, 8)[:, :, :1]).all()
        counts = found.flatten().bincount(minlength=12)
        assert counts[3:11].tolist() == [50] * 8
        assert counts[11] == 400
        assert counts[:3].sum() == 400
        assert counts[:3].min() > 90

    @pytest.mark.parametrize(("classes", "kept"), [(1, 1), (3, 3), (4, 4), (7, 4), (10, 8)])
    def test_what_does_not_fill_a_batch_is_left_out_unless_it_is_all(self, classes: int, kept: int) -> None:
        labels = torch.arange(classes).repeat_interleave(9)
        lengths = {len(ClassBalanced(8, 4)(labels, seeded(seed))) for seed in range(3)}
        assert lengths == {8 * kept}

    def test_every_class_is_left_out_now_and_then(self) -> None:
        labels = torch.arange(5).repeat_interleave(9)
        absent = {
            (set(range(5)) - set(labels[ClassBalanced(8, 4)(labels, seeded(seed))].tolist())).pop()
            for seed in range(40)
        }
        assert absent == set(range(5))


def test_change_of_embeddings_by_hand() -> None:
    new, old = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert embedding_change(new, old, "squared", whole=2).item() == pytest.approx(13.0)  # (25 + 1)/2
    assert embedding_change(new, old, "norm", whole=2).item() == pytest.approx(3.0)  # (5 + 1)/2
    halves = [embedding_change(new[i : i + 1], old[i : i + 1], "squared", whole=2) for i in (0, 1)]
    assert torch.stack(halves).mean().item() == pytest.approx(13.0)  # two processes, an image each
    same = old.clone().requires_grad_()
    embedding_change(same, old, "norm", whole=2).backward()
    assert same.grad is not None
    assert not same.grad.any()  # no infinite slope where nothing has moved


class Plane(nn.Module):
    """Images of two pixels as they are, times a matrix."""

    feature_dim = 2

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(2))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.matrix.T


class Handed:
    """Task data of batches given by hand."""

    def __init__(self, *batches: tuple[list[list[float]], list[int]]) -> None:
        self.given, self.info = batches, TaskInfo(0, 0, 2, 4)

    def steps(self, *args: Any) -> int:
        return len(self.given)

    def batches(self, *args: Any, **settings: Any) -> Iterator[Batch]:
        for step, (points, labels) in enumerate(self.given):
            yield Batch(torch.tensor(points)[:, None, None], torch.tensor(labels), 0, step, seeded(step))


def plane(**settings: Any) -> SDC:
    stage = StageConfig(batch_size=4, warmup=0.0)
    config = SDCConfig(base={"name": "triplet", "embedding": None, "images_per_class": 2, **settings})
    return SDC(config, Plane(), OptimisationConfig(first=stage, next=stage), 0)


class TestRegularisers:
    def test_mas_by_hand(self) -> None:
        """‖x‖ by the matrix: x xᵀ/‖x‖. Batches of (3, 4) alone and of (0, 2) alone: squares, then the mean."""
        method = plane(regulariser="mas")
        found = method.base.importance(method, Handed(([[3.0, 4.0]], [0]), ([[0.0, 2.0]], [0])))
        expected = torch.tensor([[1.8**2 / 2, 2.4**2 / 2], [2.4**2 / 2, (3.2**2 + 2**2) / 2]])
        assert torch.allclose(found["backbone.matrix"], expected)
        (note,) = method.notices
        assert note.values["max"] == pytest.approx(7.12)

    def test_mas_adds_up_within_a_batch(self) -> None:
        method = plane(regulariser="mas")
        found = method.base.importance(method, Handed(([[3.0, 4.0], [0.0, 2.0]], [0, 1])))
        expected = torch.tensor([[1.8, 2.4], [2.4, 5.2]]).square()
        assert torch.allclose(found["backbone.matrix"], expected)

    def test_ewc_is_the_square_of_the_triplet_loss_gradient(self) -> None:
        """Against central differences of the loss of the whole batch."""
        method = plane(regulariser="ewc", triplets="hard", margin=0.5)
        points = torch.tensor([[1.0, 0.2], [0.3, 1.0], [1.0, 0.6], [-0.4, 1.0]])
        labels = [0, 0, 1, 1]
        found = method.base.importance(method, Handed((points.tolist(), labels)))["backbone.matrix"]

        def loss(matrix: Tensor) -> float:
            unit = nn.functional.normalize(points @ matrix.T, dim=1)
            return float(loss_of(unit, labels, "hard", margin=0.5))

        slopes = torch.zeros(2, 2)
        for row in range(2):
            for column in range(2):
                step = torch.zeros(2, 2)
                step[row, column] = 1e-2
                slopes[row, column] = (loss(torch.eye(2) + step) - loss(torch.eye(2) - step)) / 2e-2
        assert slopes.abs().max() > 0.1
        assert torch.allclose(found, slopes.square(), rtol=1e-2, atol=1e-4)

    def test_importance_is_replaced_not_added(self) -> None:
        method = plane(regulariser="mas")
        method.base.end(method, Handed(([[3.0, 4.0]], [0])))
        with torch.no_grad():
            method.backbone.matrix.mul_(2.0)
        method.base.end(method, Handed(([[0.0, 2.0]], [0])))
        ((name, importance, anchor),) = method.base.springs.items()
        assert name == "backbone.matrix"
        assert torch.allclose(importance[0], torch.tensor([[0.0, 0.0], [0.0, 4.0]]))
        assert torch.equal(anchor[0], 2 * torch.eye(2))

    @pytest.mark.parametrize(("regulariser", "weight"), [("mas", None), ("ewc", None), ("mas", 10.0)])
    def test_penalty_by_hand(self, regulariser: str, weight: float | None) -> None:
        """γ/2·F·0.1², F set by hand to 1.62."""
        method = plane(regulariser=regulariser, regulariser_weight=weight)
        method.begin_task(TaskInfo(1, 2, 2, 4))
        method.base.springs.set("backbone.matrix", torch.full((1, 2, 2), 1.62), torch.eye(2)[None].clone())
        with torch.no_grad():
            method.backbone.matrix[0, 1] += 0.1
        terms = self._terms(method)
        published = {"mas": 1e6, "ewc": 1e7}[regulariser]
        assert terms["penalty"].item() == pytest.approx((weight or published) / 2 * 1.62 * 0.01, rel=1e-5)
        assert set(terms) == {"triplet", "penalty"}

    @pytest.mark.parametrize(
        ("settings", "expected"), [({}, 2.0), ({"lwf_loss": "norm"}, 2**0.5 / 2), ({"regulariser_weight": 3.0}, 6.0)]
    )
    def test_old_embeddings_by_hand(self, settings: dict[str, Any], expected: float) -> None:
        """A quarter turn moves (2, 0) and (0, 3), of length 1 as embeddings, by √2; the others are at rest."""
        method = plane(regulariser="lwf", **settings)
        method.begin_task(TaskInfo(1, 2, 2, 4))
        quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        method.base.teacher.backbone.register_forward_hook(
            lambda module, images, features: torch.cat([features[:2] @ quarter, features[2:]])
        )
        assert self._terms(method)["distill"].item() == pytest.approx(expected, rel=1e-5)

    def test_nothing_is_added_at_task_0_nor_without_regulariser(self) -> None:
        method = plane(regulariser="none")
        method.begin_task(TaskInfo(1, 2, 2, 4))
        assert set(self._terms(method)) == {"triplet"}
        (phase,) = plane(regulariser="lwf").phases(TaskInfo(0, 0, 2, 4))
        assert set(phase.loss(next(Handed((CROSS, [0, 0, 1, 1])).batches()))) == {"triplet"}

    @staticmethod
    def _terms(method: SDC) -> dict[str, Tensor]:
        (phase,) = method.phases(TaskInfo(1, 2, 2, 4))
        points = [[2.0, 0.0], [0.0, 3.0], [1.0, 1.0], [-1.0, 2.0]]
        return phase.loss(next(Handed((points, [2, 2, 3, 3])).batches()))


class TestLayer:
    @pytest.mark.parametrize(
        ("settings", "deviation"),
        [
            ({"base": "triplet"}, 0.001),
            ({"preset": "paper"}, 0.001),
            ({"preset": "paper_pretrained"}, (2 / 512) ** 0.5),  # fan-out: the outputs count, not the two inputs
            ({"preset": "paper", "base": {"embedding_init": "fan_out"}}, (2 / 512) ** 0.5),
        ],
    )
    def test_first_weights(self, settings: dict[str, Any], deviation: float) -> None:
        """Normal around 0: of 1024 draws the deviation is known to 2 %, the fourth moment (uniform: 1.8) to 0.15."""
        stage = StageConfig(batch_size=32, warmup=0.0)
        method = SDC(SDCConfig(**settings), Plane(), OptimisationConfig(first=stage, next=stage), 0)
        layer = method.base.layer
        scaled = layer.weight.detach().double().flatten() / deviation
        assert len(scaled) == 1024
        assert scaled.square().mean().sqrt().item() == pytest.approx(1.0, abs=0.08)
        assert scaled.mean().item() == pytest.approx(0.0, abs=0.12)
        assert scaled.pow(4).mean().item() / scaled.square().mean().item() ** 2 == pytest.approx(3.0, abs=0.6)
        assert not layer.bias.any()

    def test_springs_are_as_stiff_as_published_weights_were_chosen_for(self) -> None:
        """The embedding's length, and so E-MAS's gradient by the backbone, grows with the layer: 62.5 times the weights
        make the importance 62.5² times as large."""
        found = []
        for start in ("small", "fan_out"):
            stage = StageConfig(batch_size=4, warmup=0.0)
            base = {"name": "triplet", "embedding_init": start, "images_per_class": 2, "regulariser": "mas"}
            config = SDCConfig.model_validate({"base": base})
            method = SDC(config, Plane(), OptimisationConfig(first=stage, next=stage), 0)
            found.append(method.base.importance(method, Handed(([[3.0, 4.0]], [0])))["backbone.matrix"])
        assert (found[1] / found[0]).mean().item() == pytest.approx(62.5**2, rel=1e-4)


@pytest.fixture(scope="session")
def triplet_config(tiny_config: Tiny) -> Tiny:
    """Two classes a task, 16 images per step, one step an epoch."""

    def build(method: str = "sdc", *, epochs: int = 3, **overrides: Any) -> RunConfig:
        stages = {
            f"optimisation.{stage}.{name}": value
            for stage in ("first", "next")
            for name, value in {
                "optimiser": "adam", "lr": 3e-3, "weight_decay": 2e-4, "schedule": "constant", "epochs": epochs,
                "batch_size": 32,
            }.items()
        }  # fmt: skip
        return tiny_config(method, **{"method.base": "triplet", "method.base.embedding": 16} | stages | overrides)

    return build


def accuracy(experiment: Experiment, task: int) -> float:
    scores, labels = experiment.test_scores(task)
    return (scores.argmax(1) == labels).double().mean().item()


class TestLearning:
    def test_two_tasks_are_learnt_and_remembered(self, triplet_config: Tiny, learn: Learn) -> None:
        experiment = learn(triplet_config(epochs=40), tasks=2)
        assert accuracy(experiment, 1) > 0.65  # chance 0.25; whoever forgets task 0 has 0.5
        method = experiment.method
        assert method.prototypes.means.shape == (4, 16)
        assert method.bytes_per_class() == 4 * 16
        assert method.centres() is None
        (note,) = [notice for notice in method.notices if notice.name == "sdc"]
        assert note.values["shift"] > 1e-4

    @pytest.mark.parametrize("overrides", [{"method.base.regulariser": "mas"}, {"method.base.triplets": "official"}])
    def test_other_settings_learn_too(self, triplet_config: Tiny, learn: Learn, overrides: dict[str, Any]) -> None:
        assert accuracy(learn(triplet_config(epochs=40, **overrides), tasks=2), 1) > 0.6

    def test_softmax_alone_makes_task_0_separable(self, triplet_config: Tiny, learn: Learn) -> None:
        """At a rate that learns nothing, like the published one, only the warm-up trains the network."""
        idle = {"optimisation.first.lr": 1e-8, "method.base.softmax_epochs": 20}
        experiment = learn(triplet_config(epochs=1, **idle), tasks=1)
        assert accuracy(experiment, 0) > 0.9
        assert not any("head" in key for key in experiment.method.state_dict())
        task = experiment.task_info(1)
        experiment.method.begin_task(task)
        assert [phase.name for phase in experiment.method.phases(task)] == ["train"]

    def test_embeddings_have_length_1_and_prototypes_their_means(self, triplet_config: Tiny, learn: Learn) -> None:
        experiment = learn(triplet_config(), tasks=1)
        method = experiment.method
        (batch,) = list(experiment.task_data(0).batches("test"))
        with torch.no_grad():
            embeddings = method.base.network(method).eval()(batch.images)
            plain = method.base.layer(method.backbone(batch.images))
        assert torch.allclose(embeddings.norm(dim=1), torch.ones(len(embeddings)))
        assert torch.allclose(embeddings, plain / plain.norm(dim=1, keepdim=True), atol=1e-6)
        mean = embeddings[batch.labels == 1].mean(0)
        assert torch.allclose(method.prototypes.means[1], mean, atol=1e-6)  # not made longer again
        nearest = -(embeddings[:, None] - method.prototypes.means).square().sum(-1)
        with torch.no_grad():
            assert torch.allclose(method.scores(batch.images), nearest.double(), atol=1e-5)

    def test_without_embedding_layer_the_features_are_embedded(self, triplet_config: Tiny, learn: Learn) -> None:
        method = learn(triplet_config(**{"method.base.embedding": None}), tasks=2).method
        assert method.prototypes.means.shape == (4, 32)
        assert method.bytes_per_class() == 4 * 32
        assert (method.prototypes.means.norm(dim=1)[2:] <= 1).all()
        assert method.centres() is None
        assert not any("layer" in key for key in method.base.state_dict())

    def test_prototypes_follow_the_drift_of_embeddings(self, triplet_config: Tiny, learn: Learn) -> None:
        """An infinitely wide kernel adds the mean change of current embeddings, layer and length included."""
        wide = triplet_config(epochs=10, **{"method.sigma": math.inf})
        before, after = (learn(wide, tasks=tasks) for tasks in (1, 2))
        (batch,) = list(after.task_data(1).batches("test"))
        with torch.no_grad():
            old, new = (e.method.base.network(e.method).eval()(batch.images) for e in (before, after))
        drift = (new - old).mean(0)
        assert drift.abs().max() > 1e-3
        assert torch.allclose(after.method.prototypes.means[:2], before.method.prototypes.means + drift, atol=1e-5)

    def test_the_teacher_is_the_whole_old_network(self, triplet_config: Tiny, learn: Learn) -> None:
        experiment = learn(triplet_config(), tasks=1)
        method, images = experiment.method, torch.rand(5, 1, 8, 8, generator=seeded())
        with torch.no_grad():
            before = method.base.network(method).eval()(images)
            method.begin_task(experiment.task_info(1))
            for parameter in (*method.backbone.parameters(), *method.base.layer.parameters()):
                parameter.add_(0.1)
            assert torch.allclose(method.base.teacher(images), before, atol=1e-6)
        assert not any(parameter.requires_grad for parameter in method.base.teacher.parameters())

    @pytest.mark.parametrize("fixed", [True, False])
    def test_batch_norm_statistics(self, triplet_config: Tiny, learn: Learn, fixed: bool) -> None:
        """At rest in later tasks or not, and never moved by the pass that measures importance."""
        settings = {"method.base.fix_bn": fixed, "method.base.regulariser": "ewc"}
        experiment = learn(triplet_config(**settings), tasks=1)
        method, data = experiment.method, experiment.task_data(1)
        before = {name: tensor.clone() for name, tensor in method.backbone.named_buffers()}
        method.begin_task(data.info)
        method.base.end(method, data)
        assert all(torch.equal(tensor, before[name]) for name, tensor in method.backbone.named_buffers())
        after = dict(learn(triplet_config(**settings), tasks=2).method.backbone.named_buffers())
        assert all(torch.equal(tensor, after[name]) for name, tensor in before.items()) == fixed

    @pytest.mark.parametrize("regulariser", ["ewc", "mas"])
    def test_importance_is_measured_on_batch_statistics(
        self, triplet_config: Tiny, learn: Learn, regulariser: str
    ) -> None:
        """Also in later tasks, where the running ones are kept and used while training (the release)."""
        experiment = learn(
            triplet_config(**{"method.base.fix_bn": True, "method.base.regulariser": regulariser}), tasks=1
        )
        method, data = experiment.method, experiment.task_data(1)
        method.begin_task(data.info)
        before = method.base.importance(method, data)
        for layer in method.backbone.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_var.mul_(4.0)
        after = method.base.importance(method, data)
        assert max(float(tensor.max()) for tensor in before.values()) > 0
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())

    def test_a_lonely_class_and_classes_of_few_images(self, triplet_config: Tiny, learn: Learn) -> None:
        few = {"data.max_per_class": 3, "scenario.task_sizes": [3, 1, 6], "method.base.regulariser": "ewc"}
        method = learn(triplet_config(**few), tasks=3).method
        assert method.scores(torch.rand(4, 1, 8, 8)).shape == (4, 10)
        assert all(parameter.isfinite().all() for parameter in method.parameters())


class Killed(Exception):
    pass


RESUMED: dict[str, tuple[dict[str, Any], tuple[int, str, int]]] = {
    "teacher": ({}, (1, "train", 1)),
    "importance": ({"method.base.regulariser": "ewc"}, (1, "train", 1)),
    "lengths": ({"method.base.regulariser": "mas", "method.base.embedding": None}, (1, "train", 0)),
    "softmax": ({"method.base.softmax_epochs": 2}, (0, "softmax", 0)),
    "after softmax": ({"method.base.softmax_epochs": 1}, (0, "train", 0)),
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_killed_run_resumes_to_the_same_bits(triplet_config: Tiny, tmp_path: Path, case: str) -> None:
    settings, (task, phase, epoch) = RESUMED[case]
    config = triplet_config(**settings, **{"scenario.stop_after": 2})

    def die(event: Event) -> None:
        if isinstance(event, Epoch) and (event.task, event.phase, event.epoch) == (task, phase, epoch + 1):
            raise Killed

    states = []
    for name, listeners in (("whole", ()), ("killed", (die,))):
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
        if listeners:
            with pytest.raises(Killed):
                Experiment(config).run(folder, listeners)
            assert not (folder / "summary.json").exists()
            assert list((folder / "checkpoints").glob(f"task{task:03d}-*-epoch{epoch + 1:04d}-*"))
            resume(folder)
        else:
            Experiment(config).run(folder, ())
        states.append(container.read(folder / "model.safetensors")[0])
    assert states[0].keys() == states[1].keys()
    for key in states[0]:
        assert torch.equal(states[0][key], states[1][key]), key


@pytest.mark.parametrize("regulariser", ["lwf", "ewc"])
def test_loading_gives_identical_scores(triplet_config: Tiny, learn: Learn, regulariser: str) -> None:
    config = triplet_config(**{"method.base.regulariser": regulariser})
    learnt, fresh = learn(config, tasks=2), Experiment(config)
    fresh.method.load_state_dict(learnt.method.state_dict())
    assert torch.equal(fresh.test_scores(1)[0], learnt.test_scores(1)[0])
    anchored = {name for name, _, _ in fresh.method.base.springs.items()}
    assert bool(anchored) == (regulariser == "ewc")
    assert anchored <= {name for name, _ in fresh.method.base.network(fresh.method).named_parameters()}


def test_the_layer_depends_on_the_seed_alone(triplet_config: Tiny) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = Experiment(triplet_config()).method.base.layer.weight
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(Experiment(triplet_config()).method.base.layer.weight, one)
    assert not torch.equal(Experiment(triplet_config(seed=1)).method.base.layer.weight, one)


class TestSettings:
    def test_defaults_go_with_the_base(self, tiny_config: Tiny) -> None:
        def chosen(**overrides: Any) -> tuple[str, float]:
            method = Experiment(
                tiny_config("sdc", **{f"method.{name}": value for name, value in overrides.items()})
            ).method
            return method.prototypes.metric, method.floor

        assert chosen() == ("cosine", 1e-5)
        assert chosen(base="triplet") == ("euclidean", 0.0)
        assert chosen(base="triplet", floor=1e-3, metric="cosine") == ("cosine", 1e-3)
        assert chosen(floor=0.0, metric="euclidean") == ("euclidean", 0.0)
        triplet = TripletBaseConfig()
        assert (triplet.embedding, triplet.margin, triplet.images_per_class, triplet.fix_bn) == (512, 0.0, 8, True)

    def test_presets(self) -> None:
        paper, pretrained = SDCConfig(preset="paper").base, SDCConfig(preset="paper_pretrained", base="triplet").base
        assert paper == TripletBaseConfig(softmax_epochs=200)
        assert pretrained == TripletBaseConfig(embedding_init="fan_out", triplets="hard", fix_bn=False)
        assert SDCConfig(preset="paper", base={"softmax_epochs": 3}).base == TripletBaseConfig(softmax_epochs=3)

    def test_a_recipe_can_be_run_as_in_the_paper_and_repeated(self) -> None:
        config = load_config("cifar100-t10", method="sdc", overrides={"method.preset": "paper", "method.sigma": 0.2})
        assert (config.method.base.name, config.method.floor, config.method.sigma) == ("triplet", None, 0.2)
        assert validated(config.model_dump(mode="json")) == config

    @pytest.mark.parametrize("size", [8, 36])
    def test_batches_must_hold_whole_classes(self, triplet_config: Tiny, size: int) -> None:
        with pytest.raises(UserError, match=rf"first.batch_size is {size}.*multiple of 8, at least 16"):
            Experiment(triplet_config(**{"optimisation.first.batch_size": size}))

    def test_a_warm_up_needs_a_layer_to_warm_up(self, triplet_config: Tiny, learn: Learn) -> None:
        warm = {"optimisation.first.warmup": 0.5}
        assert learn(triplet_config(**warm), tasks=1).method.prototypes.means.isfinite().all()
        with pytest.raises(UserError, match="embedding=null"):
            learn(triplet_config(**warm, **{"method.base.embedding": None}), tasks=1)
