import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import Ridge

from gatf.geometry.encoder_maps import (
    PairedVectors,
    candidates,
    class_corrections,
    folds,
    pairs_needed,
    recall_at,
    simulated,
    transport,
)
from gatf.geometry.readout import nearest_mean_distances

F64 = torch.float64


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def linear_pairs(seed=0, count=60, old=5, new=7, noise=0.1):
    vectors, weight = 3 + normal(seed, count, old), normal(seed + 1, new, old)
    return vectors, vectors @ weight.T - 2 + noise * normal(seed + 2, count, new), weight


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9999), st.integers(3, 40), st.integers(1, 12), st.integers(1, 12), st.floats(1e-3, 10))
def test_ridge_is_scikit_learns(seed, count, old, new, ridge):
    pairs = PairedVectors(normal(seed, count, old), normal(seed + 1, count, new))
    found = pairs.map("ridge", ridge).affine
    oracle = Ridge(alpha=ridge * pairs.level).fit(pairs.old.numpy(), pairs.new.numpy())
    assert np.allclose(found(pairs.old).numpy(), oracle.predict(pairs.old.numpy()).reshape(count, new), atol=1e-8)


def test_errors_are_those_of_refits_without_the_pair():
    old, new, _ = linear_pairs(count=12)
    pairs = PairedVectors(old, new)
    errors = pairs.map("ridge", 0.3).errors
    for left_out in range(12):
        rest = [row for row in range(12) if row != left_out]
        oracle = Ridge(alpha=0.3 * pairs.level).fit(old[rest].numpy(), new[rest].numpy())
        expected = new[left_out].numpy() - oracle.predict(old[left_out : left_out + 1].numpy())[0]
        assert np.allclose(errors[left_out].numpy(), expected, atol=1e-9)


def test_without_noise_a_small_ridge_finds_the_map():
    old, new, weight = linear_pairs(noise=0.0)
    pairs = PairedVectors(old, new)
    found = pairs.map("ridge", 1e-10)
    assert torch.allclose(found.affine.weight, weight, atol=1e-6)
    assert float(found.residual.abs().max()) < 1e-10
    assert pairs.least_error() == pytest.approx(1e-4)  # the smallest on offer


def test_strong_shrinkage_ends_at_zero_or_at_the_identity():
    old = normal(0, 30, 4)
    pairs = PairedVectors(old, old + 0.1 * normal(1, 30, 4))
    assert float(pairs.map("ridge", 1e9).affine.weight.abs().max()) < 1e-6
    assert torch.allclose(pairs.map("identity", 1e9).affine.weight, torch.eye(4, dtype=F64), atol=1e-6)
    with pytest.raises(ValueError, match="as many new as old"):
        PairedVectors(old, normal(2, 30, 5)).map("identity", 1.0)


def test_rotation_is_scipys_between_whitened_vectors():
    old, new = normal(0, 200, 4) @ normal(1, 4, 4), normal(2, 200, 4) @ normal(3, 4, 4)
    weight = PairedVectors(old, new).map("procrustes", 0.0).affine.weight

    def whitened(vectors):
        values, basis = torch.linalg.eigh(vectors.T @ vectors)
        return (
            vectors @ (basis / values.sqrt()) @ basis.T,
            (basis * values.sqrt()) @ basis.T,
            (basis / values.sqrt()) @ basis.T,
        )

    (white_old, _, shrink_old), (white_new, grow_new, _) = (whitened(each - each.mean(0)) for each in (old, new))
    turn = torch.from_numpy(orthogonal_procrustes(white_old.numpy(), white_new.numpy())[0])
    assert torch.allclose(weight, grow_new @ turn.T @ shrink_old, atol=1e-8)


def test_low_rank_map_has_that_rank():
    old, new = normal(0, 300, 100), normal(1, 300, 90)
    assert int(torch.linalg.matrix_rank(PairedVectors(old, new).map("lowrank", 0.1).affine.weight)) == 64


def test_transported_statistics_are_those_of_mapped_items():
    old, new, _ = linear_pairs(count=5000, noise=0.5)
    found = PairedVectors(old, new).map("ridge", 1e-6)
    items = normal(7, 20_000, 5) @ normal(8, 5, 5) + 1
    embedded = found.affine(items) + 0.5 * normal(9, 20_000, 7)
    means, cov = transport(items.mean(0, keepdim=True), torch.cov(items.T), found)
    assert torch.allclose(means[0], embedded.mean(0), atol=0.03)
    assert torch.allclose(cov, torch.cov(embedded.T), rtol=0.05, atol=0.2)


def test_corrections_follow_the_pairs_of_a_class_by_precision():
    classes, each = 6, 400
    offsets, labels = normal(0, classes, 3), torch.arange(classes).repeat_interleave(each)
    errors = offsets[labels] + normal(1, len(labels), 3)
    found, weight = class_corrections(errors, labels, classes)
    assert torch.allclose(found, offsets, atol=0.25)
    assert float(weight.min()) > 0.97
    few = torch.cat([torch.arange(classes) * each, torch.tensor([1])])
    assert float(class_corrections(errors[few], labels[few], classes)[1].max()) < float(weight.min())


def test_corrections_are_zero_where_labels_tell_nothing():
    errors = normal(0, 50, 3)
    assert not class_corrections(errors, torch.full((50,), -1), 4)[0].any()
    assert not class_corrections(errors, torch.zeros(50, dtype=torch.int64), 4)[0].any()
    alike = torch.arange(50) % 2
    found, weight = class_corrections(torch.ones(50, 3, dtype=F64), alike, 4)
    assert not found.any()
    assert not weight.any()


def test_recall_counts_shared_neighbours():
    vectors = normal(0, 30, 6)
    rows = torch.arange(30)
    assert recall_at(rows, vectors, vectors, 5) == 1.0
    assert recall_at(rows, vectors, 7 * vectors, 5) == 1.0  # by cosine
    assert recall_at(rows, vectors, normal(1, 30, 6), 5) < 0.5


def test_pairs_needed_follows_a_power_law():
    assert pairs_needed([100, 200, 400], [8.0, 4.0, 2.0], 1.0) == pytest.approx(800, abs=1)
    assert pairs_needed([100, 200, 400], [8.0, 4.0, 2.0], 4.0) == 200
    assert pairs_needed([100, 200, 400], [5.0, 5.0, 5.0], 1.0) is None


def test_simulation_predicts_each_pair_with_the_others():
    means = 20 * torch.eye(4, dtype=F64)
    labels = torch.arange(80) % 4
    old = means[labels] + normal(0, 80, 4)
    pairs = PairedVectors(old, old @ normal(1, 3, 4).T + 0.1 * normal(2, 80, 3))

    def scorer(transported, cov, rows):
        assert cov.shape == (3, 3)
        return -nearest_mean_distances(pairs.new[rows], transported)

    parts = folds(80, 4, torch.Generator().manual_seed(0))
    assert torch.cat(parts).sort().values.tolist() == list(range(80))
    kinds = candidates(pairs)
    assert {kind for kind, _ in kinds} == {"ridge"}  # few pairs, other dimensions
    found = simulated(pairs, means, torch.eye(4, dtype=F64), kinds=kinds, scorer=scorer, parts=parts)
    assert found.shape == (3, 80, 4)
    assert float((found[0].argmax(1) == labels).double().mean()) > 0.9
    alone = simulated(pairs, means, torch.eye(4, dtype=F64), kinds=kinds[:1], scorer=scorer, parts=parts[:1])
    assert torch.equal(alone[0, parts[0]], found[0, parts[0]])
    assert not alone[0, parts[1]].any()


@pytest.mark.parametrize(("old", "new"), [(1, 1), (3, 2)])
def test_too_few_or_unequal_pairs_are_refused(old, new):
    with pytest.raises(ValueError, match="at least two pairs"):
        PairedVectors(normal(0, old, 3), normal(1, new, 3))
