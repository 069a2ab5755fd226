import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatf.geometry import Moments, PairedMoments, PooledMoments, class_moments, moments


def random_features(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(got, expected, tolerance=1e-12):
    torch.testing.assert_close(got.count, expected.count, rtol=0, atol=0)
    torch.testing.assert_close(got.mean, expected.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(got.scatter, expected.scatter, rtol=tolerance, atol=tolerance * 100)


def test_two_points_by_hand():
    got = Moments.of(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    assert got.count == 2
    assert got.mean.tolist() == [2, 4]
    assert got.scatter.tolist() == [[2, 4], [4, 8]]
    assert got.covariance().tolist() == [[2, 4], [4, 8]]
    assert got.covariance(unbiased=False).tolist() == [[1, 2], [2, 4]]
    assert got.scatter.dtype == torch.float64


def test_agrees_with_torch_cov_and_takes_batches():
    features = random_features(0, 3, 40, 5)
    batched = Moments.of(features)
    assert batched.count.tolist() == [40, 40, 40]
    for mean, cov, rows in zip(batched.mean, batched.covariance(), features, strict=True):
        torch.testing.assert_close(mean, rows.mean(0))
        torch.testing.assert_close(cov, torch.cov(rows.T))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 7), min_size=1, max_size=6), st.randoms())
def test_any_split_in_any_order_equals_one_pass(seed, sizes, shuffler):
    features = random_features(seed, sum(sizes), 3) * 5 + 2
    parts = [Moments.of(part) for part in features.split(sizes)]
    shuffler.shuffle(parts)
    merged = Moments.zeros(3)
    for part in parts:
        merged = merged.merge(part)
    assert_same(merged, Moments.of(features))


def test_merge_with_nothing_changes_no_bit():
    some, nothing = Moments.of(random_features(1, 9, 4)), Moments.zeros(4)
    for merged in (some.merge(nothing), nothing.merge(some)):
        assert_same(merged, some, tolerance=0)
    assert_same(nothing.merge(nothing), nothing, tolerance=0)


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("samples", [0, 1])
def test_fewer_than_two_samples_have_no_covariance(samples, unbiased):
    cov = Moments.of(random_features(2, samples, 3)).covariance(unbiased)
    assert cov.tolist() == [[0.0] * 3] * 3


def test_keeps_its_digits_when_the_mean_is_1e8_standard_deviations_away():
    features = random_features(3, 1000, 3) + 1e8
    expected = torch.cov((features - 1e8).T)  # the subtraction is exact
    labels = torch.arange(1000) % 2
    merged = Moments.zeros(3)
    for part in features.split(64):
        merged = merged.merge(Moments.of(part))
    by_class = class_moments(features, labels, classes=2)
    by_class_merged = Moments(by_class.count[0], by_class.mean[0], by_class.scatter[0]).merge(
        Moments(by_class.count[1], by_class.mean[1], by_class.scatter[1])
    )
    torch.testing.assert_close(Moments.of(features).covariance(), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(merged.covariance(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(by_class_merged.covariance(), expected, rtol=1e-6, atol=1e-6)
    naive = features.T @ features / 1000 - features.mean(0).outer(features.mean(0))
    assert (naive - expected).abs().max() > 0.1, "the input is too easy to tell a good formula from a bad one"


def slow_class_moments(features, labels, classes):
    each = [Moments.of(features[labels == c]) for c in range(classes)]
    return Moments(*(torch.stack([getattr(m, name) for m in each]) for name in ("count", "mean", "scatter")))


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 6), st.integers(0, 60), st.sampled_from([1, 40, 10**6])
)
def test_class_moments_equal_a_loop_over_classes(seed, classes, dim, samples, chunk):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(samples, dim, generator=generator)
    labels = (torch.rand(samples, generator=generator) ** 2 * classes).long()  # uneven, often with an empty class
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "CHUNK_ELEMENTS", chunk)
        got = class_moments(features, labels, classes=classes)
    assert got.mean.shape == (classes, dim)
    assert_same(got, slow_class_moments(features, labels, classes))


def test_a_broken_class_does_not_leak_into_the_others():
    features, labels = random_features(4, 12, 2), torch.tensor([0, 1, 1, 2] * 3)
    broken = features.clone()
    broken[labels == 1] = torch.nan
    got, clean = class_moments(broken, labels, classes=3), class_moments(features, labels, classes=3)
    assert got.scatter[1].isnan().all()
    assert torch.equal(got.scatter[[0, 2]], clean.scatter[[0, 2]])


@pytest.mark.parametrize("bad", [-1, 3])
def test_a_label_out_of_range_is_refused(bad):
    with pytest.raises(ValueError, match="expected 0 to 2"):
        class_moments(torch.zeros(2, 2), torch.tensor([0, bad]), classes=3)


def test_pairs_by_hand():
    pairs = PairedMoments.of(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0, 5.0], [7.0, 5.0]]))
    assert pairs.count == 2
    assert pairs.mean_old.tolist() == [1]
    assert pairs.mean_new.tolist() == [4, 5]
    assert pairs.cov_old.tolist() == [[2]]
    assert pairs.cov_new.tolist() == [[18, 0], [0, 0]]
    assert pairs.cross.tolist() == [[6], [0]]  # new before old


def test_pairs_merge_like_one_pass_and_need_partners():
    old, new = random_features(5, 50, 3), random_features(6, 50, 2)
    merged = PairedMoments.zeros(3, 2)
    for left, right in zip(old.split(8), new.split(8), strict=True):
        merged = merged.merge(PairedMoments.of(left, right))
    assert_same(merged.joint, PairedMoments.of(old, new).joint)
    with pytest.raises(ValueError, match="50 and 49"):
        PairedMoments.of(old, new[1:])
    with pytest.raises(ValueError, match="do not merge"):
        merged.merge(PairedMoments.of(new, old))


def test_moments_over_holders_are_those_of_all_vectors() -> None:
    """Three holders, one of them empty-handed, as threads that wait for each other's summands."""
    draws = torch.Generator().manual_seed(0)
    vectors = torch.randn(11, 3, generator=draws, dtype=torch.float64) + 100
    held = [Moments.of(vectors[:4]), Moments.of(vectors[4:]), Moments.zeros(3)]
    meeting = threading.Barrier(len(held))
    table: list[torch.Tensor] = [torch.empty(0)] * len(held)

    def together(number: int) -> Moments:
        def total(value: torch.Tensor) -> torch.Tensor:
            table[number] = value
            meeting.wait(timeout=10)
            result = torch.stack(table).sum(0)
            meeting.wait(timeout=10)
            return result

        return held[number].over(total)

    with ThreadPoolExecutor(len(held)) as pool:
        results = list(pool.map(together, range(len(held))))
    whole = Moments.of(vectors)
    for result in results:
        torch.testing.assert_close(result.mean, whole.mean)
        torch.testing.assert_close(result.scatter, whole.scatter)
        assert result.count == 11


class TestPooled:
    def test_by_hand(self):
        features, labels = torch.tensor([[0.0, 1.0], [2.0, 1.0], [5.0, 5.0]]), torch.tensor([0, 0, 1])
        pooled = PooledMoments.of(features, labels, classes=3)
        assert pooled.counts.tolist() == [2, 1, 0]
        assert pooled.means.tolist() == [[1, 1], [5, 5], [0, 0]]
        assert pooled.scatter.tolist() == [[2, 0], [0, 0]]
        assert pooled.freedom() == 1
        assert pooled.gram().tolist() == [[29, 27], [27, 27]]
        assert pooled.sums().tolist() == [[2, 2], [5, 5], [0, 0]]

    @settings(deadline=None, max_examples=40)
    @given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 30), st.integers(0, 30))
    def test_merged_parts_are_the_whole(self, seed, classes, one, other):
        """Also where a part has fewer classes, none of them, or no vectors."""
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn(one + other, 3, generator=generator, dtype=torch.float64) + 10
        labels = torch.randint(classes, (one + other,), generator=generator)
        parts = [
            PooledMoments.of(features[rows], labels[rows], classes=int(labels[rows].max()) + 1 if len(rows) else 0)
            for rows in (torch.arange(one), torch.arange(one, one + other))
        ]
        whole = PooledMoments.of(features, labels, classes=int(labels.max()) + 1)
        for merged in (parts[0].merge(parts[1]), parts[1].merge(parts[0])):
            for name in ("counts", "means", "scatter"):
                torch.testing.assert_close(getattr(merged, name), getattr(whole, name), rtol=1e-9, atol=1e-9)

    def test_scatter_is_the_sum_over_classes(self):
        features, labels = random_features(5, 50, 3) + 1e4, torch.arange(50) % 3
        by_class = class_moments(features, labels, classes=3)
        pooled = PooledMoments.of(features, labels, classes=3)
        torch.testing.assert_close(pooled.scatter, by_class.scatter.sum(0))
        torch.testing.assert_close(pooled.covariance(), by_class.scatter.sum(0) / 47)

    def test_no_class_with_two_vectors_has_no_covariance(self):
        pooled = PooledMoments.of(random_features(5, 3, 2), torch.arange(3), classes=3)
        assert pooled.covariance().tolist() == [[0, 0], [0, 0]]

    def test_share_of_noise(self):
        """As many vectors, less one of each class, as dimensions: one half."""
        pooled = PooledMoments.of(random_features(5, 6, 4), torch.arange(6) % 2, classes=2)
        assert pooled.noise_share() == 0.5
