"""Leave-one-out in closed form against rules that are solved without each vector."""

import pytest
import torch

from gatf.geometry import spd
from gatf.geometry.leave_one_out import LeaveOneOut
from gatf.geometry.moments import PooledMoments
from gatf.geometry.readout import linear_discriminant


@pytest.mark.parametrize(("vectors", "dim"), [(40, 6), (18, 30)])
def test_equals_the_rule_without_the_vector(vectors, dim):
    torch.manual_seed(vectors)
    labels = torch.cat([torch.arange(4).repeat(3), torch.randint(4, (vectors - 12,))])
    x = torch.randn(vectors, dim, dtype=torch.float64) @ torch.randn(dim, dim, dtype=torch.float64) + labels[:, None]
    total, share = PooledMoments.of(x, labels, classes=4), 0.3
    scores, distances = LeaveOneOut(total, share, allows_for_noise=False).scores(x, labels)
    level = total.covariance().diagonal().mean()
    for i in range(vectors):
        rest = torch.arange(vectors) != i
        part = PooledMoments.of(x[rest], labels[rest], classes=4)
        matrix = (1 - share) * part.covariance() + share * level * torch.eye(dim, dtype=torch.float64)
        rule = linear_discriminant(part.means, matrix, 0.0)
        expected = rule.scores(x[i : i + 1])[0]
        lower = spd.cholesky(matrix).lower
        centres = torch.cat([part.means, part.means.mean(0, keepdim=True)])
        apart = torch.linalg.solve_triangular(lower, (x[i] - centres).mT, upper=False).square().sum(0)
        torch.testing.assert_close(scores[i] - scores[i, 0], expected - expected[0], rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(distances[i], apart, rtol=1e-7, atol=1e-7)


def test_the_allowance_for_noise_is_that_of_the_rule_up_to_one_vector_of_many():
    torch.manual_seed(0)
    labels = torch.arange(3).repeat_interleave(torch.tensor([200, 300, 8]))
    x = torch.randn(508, 5, dtype=torch.float64) + 2 * torch.eye(5, dtype=torch.float64)[labels]
    total = PooledMoments.of(x, labels, classes=3)
    scores, _ = LeaveOneOut(total, total.noise_share()).scores(x, labels)
    rest = torch.arange(508) != 507
    part = PooledMoments.of(x[rest], labels[rest], classes=3)
    expected = linear_discriminant(part.means, part.covariance(), part.noise_share(), part.counts).scores(x[507:])[0]
    torch.testing.assert_close(scores[507] - scores[507, 0], expected - expected[0], rtol=0, atol=0.1)
