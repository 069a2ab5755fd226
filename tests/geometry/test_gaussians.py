import pytest
import torch
from torch import nn

from gatf.geometry import Affine, Gaussians, cholesky, pack, push_affine, push_forward, sample, unpack, white_noise

F64 = torch.float64


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random_gaussians(make_spd, classes, dim, seed=0):
    generator = seeded(seed)
    return Gaussians(3 * torch.randn(classes, dim, generator=generator, dtype=F64), make_spd(generator, classes, dim))


def test_grows_by_concatenation_and_selects_classes(make_spd):
    some = random_gaussians(make_spd, 5, 3)
    grown = Gaussians(torch.zeros(0, 3), torch.zeros(0, 3, 3)).concat(some[:2]).concat(some[torch.tensor([4, 3])])
    assert len(Gaussians(torch.zeros(0, 3), torch.zeros(0, 3, 3))) == 0
    assert len(grown) == 4
    assert torch.equal(grown.means, some.means[[0, 1, 4, 3]])
    assert torch.equal(grown.covs, some.covs[[0, 1, 4, 3]])


def test_is_float64_and_checks_shapes():
    assert Gaussians(torch.zeros(2, 3), torch.zeros(2, 3, 3)).covs.dtype == F64
    with pytest.raises(ValueError, match=r"\[2, 3\] and \[2, 3\]"):
        Gaussians(torch.zeros(2, 3), torch.zeros(2, 3))


@pytest.mark.parametrize(("samples", "dim"), [(2, 1), (9, 8), (10_000, 64)])
def test_matched_noise_has_exact_moments(samples, dim):
    noise = white_noise(samples, dim, generator=seeded(), matched=True)
    torch.testing.assert_close(noise.mean(0), torch.zeros(dim, dtype=F64), rtol=0, atol=1e-12)
    torch.testing.assert_close(noise.mT @ noise / (samples - 1), torch.eye(dim, dtype=F64), rtol=0, atol=1e-12)


def test_matched_noise_stays_close_to_the_draw_it_comes_from():
    plain = white_noise(10_000, 8, generator=seeded(), matched=False)
    matched = white_noise(10_000, 8, generator=seeded(), matched=True)
    assert 0 < (matched - plain).square().mean() < 0.01


def test_matched_noise_needs_more_samples_than_dimensions():
    with pytest.raises(ValueError, match="8 samples of 8 dimensions"):
        white_noise(8, 8, generator=seeded(), matched=True)


@pytest.mark.parametrize(("samples", "dim"), [(2, 1), (16, 8), (1000, 5)])
def test_mirrored_noise_has_exact_moments_and_no_odd_ones(samples, dim):
    noise = white_noise(samples, dim, generator=seeded(), matched=True, mirrored=True)
    assert torch.equal(noise[: samples // 2], -noise[samples // 2 :])
    torch.testing.assert_close(noise.mT @ noise / (samples - 1), torch.eye(dim, dtype=F64), rtol=0, atol=1e-12)


def test_mirrored_noise_carries_a_quadratic_map_without_error_in_its_covariance_with_the_linear_part():
    """y = (ε, ε²): the covariance of the two is E ε³ = 0, which matched noise alone meets only on average."""
    gaussians = Gaussians(torch.zeros(1, 1), torch.eye(1)[None])

    def covariance(mirrored):
        noise = white_noise(100, 1, generator=seeded(8), matched=True, mirrored=mirrored)
        pushed = push_forward(gaussians, lambda z: torch.cat([z, z.square()], dim=1), noise=noise, dtype=F64)
        return pushed.covs[0, 0, 1].abs().item()

    assert covariance(mirrored=True) < 1e-14
    assert covariance(mirrored=False) > 1e-3


def test_mirrored_noise_needs_pairs_and_twice_as_many_samples_as_dimensions():
    with pytest.raises(ValueError, match="even number of samples, got 9"):
        white_noise(9, 2, generator=seeded(), matched=False, mirrored=True)
    with pytest.raises(ValueError, match="at least 16 samples, got 14 samples of 8"):
        white_noise(14, 8, generator=seeded(), matched=True, mirrored=True)


def test_sample_by_hand():
    gaussians = Gaussians(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[[4.0, 2], [2, 5]], [[1, 0], [0, 9]]]))
    # Cholesky factors [[2, 0], [1, 2]] and diag(1, 3)
    got = sample(gaussians, torch.tensor([[1.0, 1.0], [0.0, -1.0]]))
    assert got.tolist() == [[[3, 5], [1, 0]], [[1, 3], [0, -3]]]


def test_sample_uses_the_factor_it_is_given():
    gaussians = Gaussians(torch.zeros(1, 2), torch.eye(2)[None])
    got = sample(gaussians, torch.eye(2), factor=cholesky(4 * torch.eye(2)[None]))
    assert got.tolist() == [[[2, 0], [0, 2]]]


def test_push_affine_by_hand():
    gaussians = Gaussians(torch.tensor([[1.0, 2.0]]), torch.tensor([[[1.0, 0.0], [0.0, 4.0]]]))
    got = push_affine(gaussians, Affine(torch.tensor([[1.0, 1.0]]), torch.tensor([10.0])))
    assert got.means.tolist() == [[13]]
    assert got.covs.tolist() == [[[5]]]


@pytest.mark.parametrize("samples", [9, 1000])
def test_affine_maps_are_transported_exactly_with_matched_noise(make_spd, samples):
    gaussians = random_gaussians(make_spd, 5, 8)
    generator = seeded(1)
    affine = Affine(torch.randn(6, 8, generator=generator, dtype=F64), torch.randn(6, generator=generator, dtype=F64))
    noise = white_noise(samples, 8, generator=generator, matched=True)
    got, exact = push_forward(gaussians, affine, noise=noise, dtype=F64), push_affine(gaussians, affine)
    torch.testing.assert_close(got.means, exact.means, rtol=0, atol=1e-11)
    torch.testing.assert_close(got.covs, exact.covs, rtol=0, atol=1e-11)


def test_affine_maps_are_transported_up_to_monte_carlo_error_with_plain_noise(make_spd):
    gaussians = random_gaussians(make_spd, 3, 4)
    affine = Affine(torch.randn(4, 4, generator=seeded(2), dtype=F64), torch.ones(4, dtype=F64))
    noise = white_noise(100_000, 4, generator=seeded(3), matched=False)
    got, exact = push_forward(gaussians, affine, noise=noise), push_affine(gaussians, affine)
    error = (got.covs - exact.covs).abs().amax()
    assert 1e-5 < error < 0.1
    assert (got.means - exact.means).abs().amax() < 0.05


def test_the_identity_has_the_expected_monte_carlo_error():
    dim, samples = 64, 10_000
    gaussians = Gaussians(torch.zeros(1, dim), torch.eye(dim)[None])
    noise = white_noise(samples, dim, generator=seeded(4), matched=False)
    got = push_forward(gaussians, lambda z: z, noise=noise)
    frobenius, mean = (got.covs - gaussians.covs).norm().item(), got.means.norm().item()
    assert 0.645 / 1.2 < frobenius < 0.645 * 1.2  # sqrt((S² + S)/(N − 1)); the sum of 4096 terms hardly varies
    assert 0.08 / 3 < mean < 0.08 * 3  # sqrt(S/N)


def test_a_network_is_transported_as_an_obvious_loop_would(make_spd):
    gaussians = random_gaussians(make_spd, 7, 4)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 3))
    noise = white_noise(50, 4, generator=seeded(5), matched=False)
    shapes = []

    def transport(z):
        assert z.dtype == torch.float32
        shapes.append(tuple(z.shape))
        return network(z)

    got = push_forward(gaussians, transport, noise=noise, chunk_rows=149)  # room for two classes, not three
    assert shapes == [(100, 4)] * 3 + [(50, 4)]
    shapes.clear()
    in_parts = push_forward(gaussians, transport, noise=noise, chunk_rows=20)  # a class in three parts
    assert shapes == [(20, 4), (20, 4), (10, 4)] * 7
    torch.testing.assert_close(in_parts.covs, got.covs, rtol=0, atol=1e-6)
    assert not got.means.requires_grad
    for index in range(7):
        drawn = gaussians.means[index] + noise @ torch.linalg.cholesky(gaussians.covs[index]).T
        mapped = network(drawn.float()).double()
        torch.testing.assert_close(got.means[index], mapped.mean(0), rtol=0, atol=1e-6)
        torch.testing.assert_close(got.covs[index], torch.cov(mapped.T), rtol=0, atol=1e-6)
    one_at_a_time = push_forward(gaussians, network, noise=noise, chunk_rows=1)
    torch.testing.assert_close(one_at_a_time.covs, got.covs, rtol=0, atol=1e-6)


def test_transport_of_a_singular_class_is_repaired_and_can_be_reported():
    gaussians = Gaussians(torch.ones(2, 3), torch.stack([torch.eye(3), torch.zeros(3, 3)]))
    factor = cholesky(gaussians.covs)
    noise = white_noise(10, 3, generator=seeded(6), matched=True)
    got = push_forward(gaussians, lambda z: 2 * z, noise=noise, factor=factor, chunk_rows=10)
    assert factor.repaired.tolist() == [False, True]
    expected = torch.stack([4 * torch.eye(3, dtype=F64), 4e-4 * torch.eye(3, dtype=F64)])
    torch.testing.assert_close(got.covs, expected, rtol=1e-4, atol=1e-6)


def test_no_classes_are_transported_to_no_classes():
    noise = white_noise(10, 3, generator=seeded(), matched=True)
    assert len(push_forward(Gaussians(torch.zeros(0, 3), torch.zeros(0, 3, 3)), lambda z: z, noise=noise)) == 0


def test_triangles_by_hand_and_back(make_spd):
    assert pack(torch.tensor([[[1.0, 2, 4], [2, 3, 5], [4, 5, 6]]])).tolist() == [[1, 2, 3, 4, 5, 6]]
    covs = make_spd(seeded(7), 4, 5)
    assert pack(covs).shape == (4, 15)
    assert torch.equal(unpack(pack(covs), 5), covs)
    with pytest.raises(ValueError, match="15 numbers"):
        unpack(pack(covs), 4)


class TestSharing:
    def test_one_matrix_in_memory(self, make_spd):
        cov = make_spd(seeded(), 1, 4)[0]
        shared = Gaussians.sharing(torch.zeros(1000, 4), cov)
        for some in (shared, shared[5:900], shared.to("cpu")):
            assert some.common is not None
            assert some.common.data_ptr() == cov.data_ptr()
            assert torch.equal(some.covs[-1], cov)
        assert torch.equal(shared.mean_cov(), cov)

    def test_classes_with_their_own_share_nothing(self, make_spd):
        own = random_gaussians(make_spd, 3, 4)
        assert own.common is None
        torch.testing.assert_close(own.mean_cov(), own.covs.mean(0))
        assert Gaussians(torch.zeros(0, 4), torch.zeros(0, 4, 4)).common is None
