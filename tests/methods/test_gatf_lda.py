"""GATF in the full feature width: `slda` without training; means and covariance follow a network that moves."""

from collections.abc import Callable

import torch

from gatf.config import RunConfig
from gatf.experiment import Experiment
from gatf.geometry.moments import PooledMoments
from gatf.methods.gatf_lda import GATFLDA
from gatf.methods.parts.extraction import extract

Tiny = Callable[..., RunConfig]
Learn = Callable[..., Experiment]


def test_without_training_it_equals_slda(tiny_config: Tiny, learn: Learn) -> None:
    ours, slda = (
        learn(tiny_config(name, **{"method.train_first": False}), tasks=3).method.state_dict()
        for name in ("gatf-lda", "slda")
    )
    assert ours.keys() == slda.keys()
    for name, tensor in slda.items():
        assert torch.equal(ours[name], tensor), name


def test_older_classes_follow_the_network_by_the_anchor(
    tiny_config: Tiny, learn: Learn, train: Callable[..., None]
) -> None:
    """Transported means are nearer to those of the old images in the new network than the means as they were."""
    experiment = learn(tiny_config("gatf-lda", **{"method.topology": 0.1}), tasks=1)
    method = experiment.method
    assert isinstance(method, GATFLDA)
    before = method.memory.means
    data = experiment.task_data(1)
    method.begin_task(data.info)
    for phase in method.phases(data.info):
        train(experiment, phase, data)
    method.eval()
    method.end_task(data)
    features, labels = extract(method.backbone, experiment.task_data(0))
    truth = PooledMoments.of(features, labels, classes=data.info.old).means
    away = (before - truth).norm()
    assert away > 0.01 * truth.norm()  # the network has moved
    assert (method.memory.means[: data.info.old] - truth).norm() < 0.7 * away


def test_moments_of_mapped_vectors_by_hand() -> None:
    draws = torch.Generator().manual_seed(0)
    vectors, labels = torch.randn(30, 4, generator=draws, dtype=torch.float64), torch.arange(30) % 3
    weight, bias = torch.randn(4, 4, generator=draws, dtype=torch.float64), torch.arange(4.0, dtype=torch.float64)
    mapped = PooledMoments.of(vectors, labels, classes=3).mapped(weight, bias)
    expected = PooledMoments.of(vectors @ weight.T + bias, labels, classes=3)
    torch.testing.assert_close(mapped.means, expected.means)
    torch.testing.assert_close(mapped.scatter, expected.scatter)
