import math

import pytest
import torch

from gatf.geometry import (
    Gaussians,
    PooledMoments,
    QuadraticReadout,
    bayes_readout,
    blend,
    linear_discriminant,
    mahalanobis_readout,
    margins,
    nearest_mean_distances,
    rda_readout,
    readout,
    ridge_readout,
)
from gatf.geometry.packed import PackedForms

F64 = torch.float64


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def gaussians(make_spd):
    return Gaussians(torch.randn(6, 5, generator=seeded(1), dtype=F64), make_spd(seeded(2), 6, 5))


@pytest.fixture
def features():
    return torch.randn(40, 5, generator=seeded(3), dtype=F64)


def test_bayes_by_hand():
    one = Gaussians(torch.tensor([[5.0, 0.0]]), torch.tensor([[[1.0, 0.5], [0.5, 3.0]]]))
    rule = bayes_readout(one)
    inverse = (rule.whiteners.mT @ rule.whiteners)[0]
    expected = torch.tensor([[1.003984, -0.063245], [-0.063245, 1.003984]], dtype=F64)
    torch.testing.assert_close(inverse, expected, rtol=0, atol=1e-6)
    x = torch.tensor([[3.0, 4.0]])
    torch.testing.assert_close(rule.distances(x).item(), 0.843664, rtol=0, atol=1e-6)
    torch.testing.assert_close(nearest_mean_distances(x, one.means, normalise=True).item(), 0.8)


def test_fecam_by_hand():
    root = torch.tensor([[3.0, 4.0]])  # of the mean (9, 16)
    for matrix, expected in (([[1, 0.33450], [0.33450, 1]], 1.14184), ([[1, 0.33806], [0.33806, 1]], 1.14750)):
        rule = QuadraticReadout.of(root, torch.tensor([matrix]), normalise=True)
        torch.testing.assert_close(rule.distances(torch.tensor([[1.0, 0.0]])).item(), expected, rtol=0, atol=2e-5)


def slow_distances(points, centres, matrices):
    rows = [[(z - v) @ torch.linalg.inv(m) @ (z - v) for v, m in zip(centres, matrices, strict=True)] for z in points]
    return torch.tensor(rows, dtype=F64)


@pytest.mark.parametrize(("elements", "rows"), [(1, 1), (35, 7), (2**21, 1024)])
def test_distances_equal_the_obvious_formula_however_chunked(gaussians, features, monkeypatch, elements, rows):
    monkeypatch.setattr(readout, "CHUNK_ELEMENTS", elements)
    monkeypatch.setattr(readout, "CHUNK_ROWS", rows)
    mean_variance = gaussians.covs.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    shrunk = gaussians.covs + 1e-3 * mean_variance * torch.eye(5, dtype=F64)
    got = mahalanobis_readout(gaussians).distances(features)
    torch.testing.assert_close(got, slow_distances(features, gaussians.means, shrunk))


def test_bayes_does_not_see_scale(gaussians, features):
    expected = bayes_readout(gaussians).distances(features)
    factors = torch.logspace(-3, 3, 6, dtype=F64)
    other_means = Gaussians(gaussians.means * factors[:, None], gaussians.covs)
    other_covs = Gaussians(gaussians.means, gaussians.covs * factors[:, None, None])
    for got in (
        bayes_readout(gaussians).distances(features * 1e4),
        bayes_readout(other_means).distances(features),
        bayes_readout(other_covs).distances(features),
    ):
        torch.testing.assert_close(got, expected)
    assert not torch.allclose(mahalanobis_readout(other_covs).distances(features), expected)


def test_bayes_with_round_classes_is_nearest_mean(gaussians, features):
    sizes = torch.arange(1.0, 7.0, dtype=F64)[:, None, None]
    round_classes = Gaussians(gaussians.means, sizes * torch.eye(5, dtype=F64))
    cosine = nearest_mean_distances(features, gaussians.means, normalise=True)
    torch.testing.assert_close(bayes_readout(round_classes).distances(features), cosine)
    unit = Gaussians(gaussians.means, torch.eye(5).expand(6, 5, 5))
    euclid = nearest_mean_distances(features, gaussians.means)
    torch.testing.assert_close(4 * bayes_readout(unit, normalise=False).distances(features), euclid)  # sh(I, 3) = 4I


def test_distances_keep_their_digits_far_from_the_origin(gaussians, features):
    far = Gaussians(gaussians.means + 2.0**26, gaussians.covs)
    moved = (features + 2.0**26) - 2.0**26
    centred = Gaussians(far.means - 2.0**26, gaussians.covs)
    torch.testing.assert_close(
        mahalanobis_readout(far).distances(moved + 2.0**26), mahalanobis_readout(centred).distances(moved)
    )
    torch.testing.assert_close(
        nearest_mean_distances(moved + 2.0**26, far.means),
        nearest_mean_distances(moved, centred.means),
        rtol=1e-5,
        atol=1e-5,
    )


def test_distances_keep_their_digits_when_classes_are_a_hundred_widths_apart(gaussians, features):
    apart = Gaussians(100 * gaussians.means, gaussians.covs)
    near = apart.means.repeat(7, 1)[:40] + features
    rule = mahalanobis_readout(apart)
    whitened = (near - apart.means[:, None]) @ rule.whiteners.mT  # [C, B, S], differences first
    torch.testing.assert_close(rule.distances(near), whitened.square().sum(-1).mT, rtol=1e-11, atol=0)


def test_a_class_of_one_sample_is_reported_and_still_has_distances():
    classes = Gaussians(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.stack([torch.eye(2), torch.zeros(2, 2)]))
    rule = mahalanobis_readout(classes)
    assert rule.repaired.tolist() == [False, True]
    assert rule.distances(torch.tensor([[3.0, 4.0]])).isfinite().all()
    assert not bayes_readout(classes).repaired.any()  # its correlation matrix is I


def many_classes(make_spd, dim, classes=40):
    return Gaussians(torch.randn(classes, dim, generator=seeded(1), dtype=F64), make_spd(seeded(2), classes, dim))


@pytest.mark.parametrize("dim", [5, 8, 13])
def test_packed_scores_of_many_classes_are_minus_the_distances(make_spd, dim, monkeypatch):
    classes, points = many_classes(make_spd, dim), torch.randn(50, dim, generator=seeded(3))
    for rule in (bayes_readout(classes), mahalanobis_readout(classes), rda_readout(classes, 0.5, 0.1)):
        constants = 0 if rule.constants is None else rule.constants
        expected = -rule.distances(points) - constants
        got = PackedForms.of(rule).scores(points)[0]
        torch.testing.assert_close(got, expected, rtol=2e-6, atol=2e-6 * float(expected.abs().max()))
        monkeypatch.setattr("gatf.geometry.packed.PACKED_ELEMENTS", 7)  # a row at a time
        torch.testing.assert_close(PackedForms.of(rule).scores(points)[0], got, rtol=1e-5, atol=1e-5)
        monkeypatch.undo()


def test_few_classes_or_many_dimensions_are_not_packed(make_spd, monkeypatch):
    """A table of 1 280 dimensions takes longer to pack than all test images of a benchmark to score."""
    monkeypatch.setattr(readout, "PACKED_DIM", 6)
    for dim, classes, packed in ((6, 40, True), (7, 40, False), (6, 20, False)):
        rule = bayes_readout(many_classes(make_spd, dim, classes))
        points = torch.randn(9, dim, generator=seeded(3))
        scores = rule.scores(points)
        assert ("_packed" in vars(rule)) is packed
        assert torch.equal(scores, -rule.distances(points)) is not packed


def test_packed_scores_choose_as_float64_does_where_float32_cannot(make_spd):
    one = many_classes(make_spd, 8, 20)
    steps = 1e-9 * torch.randn(20, 8, generator=seeded(4), dtype=F64)
    twins = one.concat(Gaussians(one.means + steps, one.covs))
    far = Gaussians(1e4 * one.means, one.covs).concat(Gaussians(1e4 * one.means + 1e-2, one.covs))
    for classes in (twins, far):
        points = classes.means.repeat(5, 1) + torch.randn(200, 8, generator=seeded(5), dtype=F64)
        rule = mahalanobis_readout(classes)
        packed, unsure = PackedForms.of(rule).scores(points)
        best = rule.distances(points).argmin(1)
        assert not torch.equal(packed.argmax(1), best)  # float32 alone would not do
        assert torch.equal(rule.scores(points).argmax(1), best)
        assert unsure[packed.argmax(1) != best].all()


def test_packed_scores_of_features_that_are_not_finite_are_not_finite(make_spd):
    rule = mahalanobis_readout(many_classes(make_spd, 8))
    points = torch.zeros(3, 8)
    points[1, 2] = torch.nan
    assert rule.scores(points).isfinite().all(1).tolist() == [True, False, True]
    assert rule.scores(points[:0]).shape == (0, 40)


def test_no_classes_and_no_features_have_no_distances(gaussians):
    assert bayes_readout(Gaussians(torch.zeros(0, 5), torch.zeros(0, 5, 5))).distances(torch.zeros(3, 5)).shape == (
        3,
        0,
    )
    assert bayes_readout(gaussians).distances(torch.zeros(0, 5)).shape == (0, 6)


def test_features_at_the_origin_have_distances(gaussians):
    assert bayes_readout(gaussians).distances(torch.zeros(1, 5)).isfinite().all()


def test_rda_by_hand():
    """Variances (1, 3) and (5, 7) are (3, 5) pooled, half-way (2, 4) and (4, 6), with γ = ½ (2.5, 3.5), (4.5, 5.5)."""
    two = Gaussians(torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.diag_embed(torch.tensor([[1.0, 3.0], [5.0, 7.0]])))
    first = 1 / 2.5 + 4 / 3.5 + math.log(2.5 * 3.5)  # z = (1, 2)
    second = math.log(4.5 * 5.5)
    got = rda_readout(two, 0.5, 0.5).scores(torch.tensor([[1.0, 2.0]]))
    torch.testing.assert_close(got, torch.tensor([[-first, -second]], dtype=F64))


def test_rda_is_quadratic_linear_or_nearest_mean_at_its_corners(gaussians, features):
    densities = [
        torch.distributions.MultivariateNormal(mean, cov).log_prob(features)
        for mean, cov in zip(gaussians.means, gaussians.covs, strict=True)
    ]
    twice = 2 * torch.stack(densities, dim=1) + 5 * math.log(2 * math.pi)
    torch.testing.assert_close(rda_readout(gaussians, 0.0, 0.0).scores(features), twice)
    pooled = torch.linalg.inv(gaussians.covs.mean(0))
    linear = features @ pooled @ gaussians.means.mT - ((gaussians.means @ pooled) * gaussians.means).sum(1) / 2
    got = rda_readout(gaussians, 1.0, 0.0).scores(features) / 2
    torch.testing.assert_close(got - got[:, :1], linear - linear[:, :1])
    nearest = nearest_mean_distances(features, gaussians.means).argmin(1)
    assert torch.equal(rda_readout(gaussians, 1.0, 1.0).scores(features).argmax(1), nearest)


def test_nearest_mean_by_hand():
    got = nearest_mean_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0], [0.0, 4.0]]))
    torch.testing.assert_close(got, torch.tensor([[25.0, 16.0], [0.0, 9.0]], dtype=F64), rtol=0, atol=1e-12)
    assert (got >= 0).all()


def test_margins_by_hand():
    distances = torch.tensor([[1.0, 4.0, 2.0], [5.0, 3.0, 9.0]])
    assert margins(distances, torch.tensor([0, 0])).tolist() == [1, -2]
    assert margins(torch.tensor([[7.0]]), torch.tensor([0])).tolist() == [torch.inf]


class TestLinearDiscriminant:
    def test_by_hand(self):
        """Means 1 and 5 with variance 2: w = (μ − 3)/2, and the border half-way at 3."""
        found = linear_discriminant(torch.tensor([[1.0], [5.0]]), torch.tensor([[2.0]]), 0.0)
        torch.testing.assert_close(found.weight, torch.tensor([[-1.0], [1.0]], dtype=F64))
        scores = found.scores(torch.tensor([[3.0], [4.0]]))
        torch.testing.assert_close(scores, torch.tensor([[-1.0, -1.0], [-2.0, 0.0]], dtype=F64))

    def test_differences_are_those_of_gaussian_log_densities(self, gaussians, features):
        cov = gaussians.covs[0]
        scores = linear_discriminant(gaussians.means, cov, 0.2).scores(features)
        matrix = blend(cov, 0.2)
        laws = [torch.distributions.MultivariateNormal(mean, matrix) for mean in gaussians.means]
        densities = torch.stack([law.log_prob(features) for law in laws], dim=1)
        torch.testing.assert_close(scores - scores[:, :1], densities - densities[:, :1])

    def test_keeps_its_digits_far_from_the_origin(self, gaussians, features):
        near = linear_discriminant(gaussians.means, gaussians.covs[0], 0.2).scores(features)
        far = linear_discriminant(gaussians.means + 1e6, gaussians.covs[0], 0.2).scores(features + 1e6)
        torch.testing.assert_close(far - far[:, :1], near - near[:, :1], rtol=1e-6, atol=1e-6)

    def test_noise_of_few_images_by_hand(self):
        """Means −2 and 2 with variance 2 from 1 and 4 images: ‖μ − o‖² = 2 for both, of which noise is 1 and ¼. On
        average 1⅜ are left, so that 11/19 and 11/13 of the means are kept."""
        counts = torch.tensor([1.0, 4.0])
        found = linear_discriminant(torch.tensor([[-2.0], [2.0]]), torch.tensor([[2.0]]), 0.0, counts)
        kept = torch.tensor([11 / 19, 11 / 13], dtype=F64)
        torch.testing.assert_close(found.weight, (kept * torch.tensor([-1.0, 1.0], dtype=F64))[:, None])
        torch.testing.assert_close(found.bias, -(kept**2) * torch.tensor([1.0, 1.75], dtype=F64) / 2)

    def test_many_images_have_no_noise(self, gaussians, features):
        plain = linear_discriminant(gaussians.means, gaussians.covs[0], 0.2)
        many = torch.full((len(gaussians.means),), 1e12, dtype=F64)
        found = linear_discriminant(gaussians.means, gaussians.covs[0], 0.2, many)
        torch.testing.assert_close(found.scores(features), plain.scores(features))

    def test_where_no_class_has_two_images_nothing_is_known_of_noise(self):
        means, nothing = torch.tensor([[0.0, 1.0], [1.0, 0.0], [4.0, 4.0]]), torch.zeros(2, 2)
        found = linear_discriminant(means, nothing, 0.5, torch.ones(3))
        plain = linear_discriminant(means, nothing, 0.5)
        torch.testing.assert_close(found.weight, plain.weight)
        torch.testing.assert_close(found.bias, plain.bias)

    def test_a_class_of_few_images_is_found_again(self):
        """Forty dimensions, six classes a distance of 5 apart, of 200 or of 4 images: with the correction more
        of the few are answered rightly, and more of all."""
        draws = seeded(3)
        centres = 3.5 * torch.eye(6, 40)
        counts = torch.tensor([200, 4] * 3)
        labels = torch.repeat_interleave(torch.arange(6), counts)
        images = centres[labels] + torch.randn(len(labels), 40, generator=draws)
        known = PooledMoments.of(images, labels, classes=6)
        asked = torch.arange(6).repeat_interleave(200)
        points = centres[asked] + torch.randn(1200, 40, generator=draws)

        def right(counts):
            found = linear_discriminant(known.means, known.covariance(), known.noise_share(), counts)
            hits = (found.scores(points).argmax(1) == asked).double().view(6, 200).mean(1)
            return hits[1::2].mean(), hits.mean()

        (few, total), (few_plain, total_plain) = right(known.counts), right(None)
        assert few > few_plain + 0.1
        assert total > total_plain + 0.03

    def test_graph_gives_the_scores(self, gaussians, features):
        found = linear_discriminant(gaussians.means, gaussians.covs[0], 0.2)
        torch.testing.assert_close(found.graph()(features), found.scores(features))


def test_ridge_by_hand():
    """(4 + 6)⁻¹·5 and (4 + 6)⁻¹·1."""
    found = ridge_readout(torch.tensor([[4.0]], dtype=F64), torch.tensor([[5.0], [1.0]]), 6.0)
    torch.testing.assert_close(found.weight, torch.tensor([[0.5], [0.1]], dtype=F64))
    assert found.bias.tolist() == [0, 0]
