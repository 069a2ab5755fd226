"""What tools/tried.py says of ideas is only worth something if its mixtures and maps do what they are for."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gatf.geometry.gaussians import Gaussians, push_forward, white_noise
from gatf.geometry.readout import rda_readout

TOOLS = Path(__file__).parent.parent / "tools"


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TOOLS)
    module = importlib.import_module("tried")
    monkeypatch.setattr(module, "FEATURES", 200)
    return module


def normal(rows: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_bic_finds_how_many_gaussians_there_are(tried: Any) -> None:
    draws, one = torch.Generator().manual_seed(0), normal(600, 3)
    three = one + 10 * torch.nn.functional.one_hot(torch.arange(600) % 3, 3)

    def best(x: Tensor) -> Any:
        return tried.by_bic([tried.mixture(x, count, draws) for count in tried.COMPONENTS], len(x))

    assert len(best(one).means) == 1
    found = best(three)
    torch.testing.assert_close(found.shares, torch.full((3,), 1 / 3, dtype=torch.float64), atol=0.01, rtol=0)
    torch.testing.assert_close(found.means.sort(0).values[-1], torch.full((3,), 10.0).double(), atol=0.2, rtol=0)
    torch.testing.assert_close(found.cov, torch.eye(3, dtype=torch.float64), atol=0.15, rtol=0)


def test_one_gaussian_per_class_answers_and_moves_as_gaussians_do(tried: Any) -> None:
    draws, rows = torch.Generator().manual_seed(0), [normal(200, 3, seed) * (1 + seed) + seed for seed in (0, 1)]
    stored = tried.Stored.of([tried.mixture(x, 1, draws) for x in rows], 0)
    noise = white_noise(48, 3, generator=draws, matched=True, mirrored=True)
    moved = stored.moved(lambda z: 2 * z + 1, noise)
    plain = push_forward(Gaussians(stored.gaussians.means, stored.gaussians.covs), lambda z: 2 * z + 1, noise=noise)
    torch.testing.assert_close(moved.gaussians.covs, plain.covs)
    torch.testing.assert_close(moved.scores(rows[0], "rda"), rda_readout(plain, *tried.RDA).scores(rows[0]) / 2)


def test_two_gaussians_tell_apart_what_one_cannot(tried: Any) -> None:
    """Two classes in turn along a line."""
    draws, labels = torch.Generator().manual_seed(0), torch.arange(800) % 2
    features = normal(800, 2)
    features[:, 0] += 6 * (torch.arange(800) % 4)

    def right(components: int, rule: str) -> float:
        stored = tried.Stored.of([tried.mixture(features[labels == c], components, draws) for c in (0, 1)], 0)
        return float((stored.scores(features, rule).argmax(1) == labels).double().mean())

    for rule in ("rda", "bayes"):
        assert right(1, rule) < 0.9
    assert right(2, "rda") > 0.99


@pytest.mark.parametrize("name", ["anchor + random Fourier features", "4 local anchors"])
def test_maps_beyond_the_anchor_follow_a_bend_and_leave_what_is_straight(tried: Any, name: str) -> None:
    old = normal(2000, 2)
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]], dtype=torch.float64)
    for new, share in ((old @ turn, 1.1), (old @ turn + old.abs(), 0.5)):
        pairs = tried.Pairs(old[:1000], new[:1000])
        errors = [
            float((fit(pairs)(old[1000:]) - new[1000:]).square().mean())
            for fit in (tried.FITS[name], tried.towards_identity)
        ]
        assert errors[0] <= share * errors[1]
