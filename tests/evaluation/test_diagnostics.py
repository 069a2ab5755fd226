"""Diagnostics on cases whose answer is known."""

import math

import pytest
import torch
from torch import Tensor

from gatf.evaluation import diagnostics
from gatf.geometry.anchor import Affine
from gatf.geometry.gaussians import Gaussians, push_affine

TASKS = torch.tensor([0, 0, 1])


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=draws(seed), dtype=torch.float64)


def some_gaussians(classes: int = 3, dim: int = 4) -> Gaussians:
    roots = normal(classes, dim, dim, seed=1)
    return Gaussians(3 * normal(classes, dim), roots @ roots.mT + 0.5 * torch.eye(dim, dtype=torch.float64))


def values(table: diagnostics.Table, column: str) -> list[float]:
    return [float(row[column]) for row in table]


def exactly(means: Tensor, spread: float = 1.0) -> diagnostics.TrueMeans:
    """Means that are known without noise."""
    ones = torch.ones(len(means), dtype=torch.float64)
    return diagnostics.TrueMeans(means.double(), spread * ones, 0 * ones)


def test_drift_is_the_mean_distance_within_a_task_in_spreads() -> None:
    true = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 1.0]])
    estimated = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert diagnostics.prototype_drift(estimated, exactly(true, 2.0), TASKS) == [
        {"past_task": 0, "drift": 1.5, "floor": 0.0},
        {"past_task": 1, "drift": 0.0, "floor": 0.0},
    ]


def test_a_rotation_without_transport_drifts_by_the_chord() -> None:
    """‖Rμ − μ‖ = 2 sin(θ/2)·‖μ‖ in the plane."""
    angle = 0.7
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    means = torch.tensor([[2.0, 0.0], [0.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    found = values(diagnostics.prototype_drift(means, exactly(means @ turn.T), TASKS), "drift")
    assert found == pytest.approx([2 * math.sin(angle / 2) * 2, 2 * math.sin(angle / 2) * 5])


def test_true_means_by_hand() -> None:
    """Class 0: (0, 0), (2, 0), of four images; class 1: (1, 1), (1, 5), which are all it has."""
    features = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0], [1.0, 5.0]])
    true = diagnostics.true_means(features, torch.tensor([0, 1, 0, 1]), torch.tensor([4, 2]))
    assert true.means.tolist() == [[1.0, 0.0], [1.0, 3.0]]
    assert true.spread.square().tolist() == pytest.approx([2.0, 8.0])
    assert true.noise.tolist() == pytest.approx([2 * (1 / 2 - 1 / 4), 0.0])
    # mirror images that lie 2 above: wider, but the pairs' means are as far from each other as before
    mirrored = torch.cat([features, features + torch.tensor([0.0, 2.0])])
    true = diagnostics.true_means(mirrored, torch.tensor([0, 1, 0, 1] * 2), torch.tensor([4, 2]), mirrored=True)
    assert true.means.tolist() == [[1.0, 1.0], [1.0, 4.0]]
    assert true.spread.square().tolist() == pytest.approx([8 / 3, 20 / 3])
    assert true.noise.tolist() == pytest.approx([2 * (1 / 2 - 1 / 4), 0.0])


def test_a_mean_that_has_not_moved_has_no_drift_on_average() -> None:
    """Stored over 500 images, measured on 50 of them: without the floor it would seem to have moved by 0.13 spreads."""
    squares, floors = [], []
    for seed in range(40):
        features = normal(500, 16, seed=seed)
        true = diagnostics.true_means(features[:50], torch.zeros(50, dtype=torch.int64), torch.tensor([500]))
        offset = (true.means - features.mean(0)).square().sum()
        squares.append(float((offset - true.noise) / true.spread.square()))
        floors.append(float(true.noise.sqrt() / true.spread))
    assert sum(floors) / 40 == pytest.approx((1 / 50 - 1 / 500) ** 0.5, rel=0.02)
    assert sum(squares) / 40 == pytest.approx(0, abs=0.003)


def test_the_exact_map_of_an_affine_drift_has_no_tail() -> None:
    old = normal(200, 4) * torch.tensor([3.0, 1.0, 0.5, 0.1], dtype=torch.float64)
    exact = Affine(normal(4, 4, seed=2), normal(4, seed=3))
    new = exact(old)
    assert max(values(diagnostics.mahalanobis_tail(exact(old), new), "tail")) < 1e-18
    unmoved = values(diagnostics.mahalanobis_tail(old, new), "tail")
    assert unmoved == sorted(unmoved)
    assert unmoved[-1] > 1


def test_the_tail_of_a_known_error() -> None:
    """Features with variances 4 and 1, off by 2 along the first and 3 along the second axis: 4/4, then + 9/1."""
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    new = corners * torch.tensor([2.0, 1.0], dtype=torch.float64) * math.sqrt(3 / 4) + 7
    transported = new + torch.tensor([2.0, 3.0], dtype=torch.float64)
    assert values(diagnostics.mahalanobis_tail(transported, new), "tail") == pytest.approx([1.0, 10.0])


def test_the_tail_survives_dead_directions() -> None:
    new = normal(50, 3) * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    assert all(math.isfinite(value) for value in values(diagnostics.mahalanobis_tail(new + 0.1, new), "tail"))


def test_margins_by_hand() -> None:
    """d = (z − μ)²/(σ²(1 + shrink)); z = 1 between N(0, 1) and N(3, 4): 1 and 1, so no margin; likelihood prefers the
    narrow one by ½·log 4."""
    stored = Gaussians(torch.tensor([[0.0], [3.0]]), torch.tensor([[[1.0]], [[4.0]]]))
    found = diagnostics.margin_forms(torch.tensor([[1.0]]), stored, torch.tensor([0]))
    assert float(found["mahalanobis"]) == pytest.approx(0, abs=1e-12)
    assert float(found["likelihood"]) == pytest.approx(math.log(4) / 2)
    scores = torch.tensor([[0.2, 0.9, 0.4]])
    assert float(diagnostics.score_margins(scores, torch.tensor([1]))) == pytest.approx(0.5)
    assert float(diagnostics.score_margins(scores, torch.tensor([0]))) == pytest.approx(-0.7)


def test_a_density_integrates_to_one_and_counts_what_is_wrong() -> None:
    table = diagnostics.margin_density(torch.linspace(-1, 3, 401))
    mass = sum((float(row["high"]) - float(row["low"])) * float(row["density"]) for row in table)
    assert mass == pytest.approx(1)
    assert float(table[0]["wrong"]) == pytest.approx(101 / 401)
    assert diagnostics.margin_density(torch.full((5,), 2.0))[0]["unit"] == 2.0
    assert diagnostics.margin_density(torch.tensor([math.inf])) == []


def test_old_to_new_by_hand() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2])
    predicted = torch.tensor([0, 2, 2, 2, 2])
    assert diagnostics.old_to_new(predicted, labels, TASKS) == [{"past_task": 0, "to_new": 0.75, "right": 0.25}]
    assert diagnostics.old_to_new(torch.tensor([0]), torch.tensor([0]), torch.tensor([0])) == []


def test_accuracies_by_hand() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2])
    predicted = torch.tensor([0, 2, 2, 2, 2])
    assert diagnostics.accuracy_by_task(predicted, labels, TASKS) == [
        {"past_task": 0, "accuracy": 0.25},
        {"past_task": 1, "accuracy": 1.0},
    ]
    assert diagnostics.accuracy_by_class(predicted, labels, TASKS) == [
        {"class": 0, "past_task": 0, "accuracy": 0.5},
        {"class": 1, "past_task": 0, "accuracy": 0.0},
        {"class": 2, "past_task": 1, "accuracy": 1.0},
    ]


def test_the_plane_shows_the_drift() -> None:
    """Two classes far apart along one axis and a shift along another: the arrows have the shift's length."""
    labels = torch.tensor([0] * 20 + [1] * 20)
    old = 0.01 * normal(40, 5)
    old[20:, 2] += 10
    new = old.clone()
    new[:, 4] += 3
    table = diagnostics.transport_plane(old, new, new, labels)
    place = {(row["class"], row["kind"]): complex(float(row["x"]), float(row["y"])) for row in table}
    for number in (0, 1):
        assert abs(place[number, "new"] - place[number, "old"]) == pytest.approx(3, abs=0.05)
        assert place[number, "transported"] == pytest.approx(place[number, "new"])
    assert abs(place[0, "old"] - place[1, "old"]) == pytest.approx(10, abs=0.05)
    assert not [row for row in diagnostics.transport_plane(old, new, None, labels) if row["kind"] == "transported"]


def test_spectra_are_geometric_means() -> None:
    covs = torch.diag_embed(torch.tensor([[4.0, 1.0], [1.0, 0.25], [9.0, 9.0]]))
    table = diagnostics.spectra(covs, TASKS)
    assert values(table, "eigenvalue") == pytest.approx([2.0, 0.5, 9.0, 9.0])
    assert values(table, "rank") == [1, 2, 1, 2]


def test_symmetric_kl_by_hand_and_its_invariance() -> None:
    """1-D: N(0, 1) and N(1, 4): ½(1/4 + 4 − 2 + 1 + 1/4) = 1.75."""
    one = Gaussians(torch.tensor([[0.0]]), torch.tensor([[[1.0]]]))
    other = Gaussians(torch.tensor([[1.0]]), torch.tensor([[[4.0]]]))
    assert float(diagnostics.symmetric_kl(one, other)) == pytest.approx(1.75)
    here, there = some_gaussians(), push_affine(some_gaussians(), Affine(1.3 * torch.eye(4), torch.ones(4)))
    change = Affine(normal(4, 4, seed=5), normal(4, seed=6))
    before = diagnostics.symmetric_kl(here, there)
    torch.testing.assert_close(diagnostics.symmetric_kl(push_affine(here, change), push_affine(there, change)), before)
    torch.testing.assert_close(diagnostics.symmetric_kl(there, here), before)


def test_errors_vanish_after_exact_transport_and_are_known_without() -> None:
    before = some_gaussians()
    shift = Affine(torch.eye(4, dtype=torch.float64), torch.tensor([3.0, 0.0, 4.0, 0.0], dtype=torch.float64))
    true = push_affine(before, shift)
    for row in diagnostics.transport_errors(push_affine(before, shift), true):
        assert row["cov_frobenius"] == 0
        assert float(row["symmetric_kl"]) == pytest.approx(0, abs=1e-9)
    doubled = Gaussians(before.means, 2 * before.covs)
    assert values(diagnostics.transport_errors(doubled, before), "cov_relative") == pytest.approx([1, 1, 1])
    table = diagnostics.mean_errors(before.means, exactly(true.means, 2.0), TASKS)
    assert values(table, "mean_l2") == pytest.approx([5, 5, 5])
    assert table[2] == {"class": 2, "past_task": 1, "mean_l2": pytest.approx(5), "drift": pytest.approx(2.5)}


def test_perfect_knowledge_certifies_everything_and_bad_knowledge_nothing() -> None:
    stored = some_gaussians()
    features = normal(30, 4, seed=8)
    (perfect,) = diagnostics.certified_share(features, stored, stored)
    shares = ("certified", "valid", "whitened", "valid_whitened", "range", "range_shrunk")
    assert [perfect[share] for share in shares] == [1] * 6
    (poor,) = diagnostics.certified_share(features, stored, Gaussians(stored.means + 5, 9 * stored.covs))
    assert [poor[share] for share in shares] == [0] * 6


def test_small_errors_in_thin_directions_are_certified_only_where_the_covariance_is_the_identity() -> None:
    """Two classes far apart, of which one direction is a thousandth of the other as wide: an error of a tenth of each
    width is nothing in units of the class and everything in units of its thinnest direction."""
    widths = torch.tensor([1.0, 1e-3], dtype=torch.float64)
    true = Gaussians(torch.tensor([[0.0, 0.0], [20.0, 0.0]]), torch.diag(widths**2).expand(2, 2, 2))
    stored = Gaussians(true.means + 0.1 * widths, 1.1 * true.covs)
    features = torch.cat([mean + normal(50, 2, seed=9) * widths for mean in true.means])
    (found,) = diagnostics.certified_share(features, stored, true)
    assert (found["certified"], found["valid"]) == (0, 0)
    assert (found["valid_whitened"], found["whitened"], found["range"]) == (1, 1, 1)
    assert found["eta_cov_whitened"] == pytest.approx(0.1 / 1.1, rel=1e-2)
