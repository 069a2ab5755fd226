"""The real CIFAR-100, where it is at hand."""

from pathlib import Path

import pytest
import torch

from gatf.data.scenario import build_scenario
from gatf.data.sources import open_source, source_card
from gatf.settings import DataConfig, ScenarioConfig

pytestmark = pytest.mark.usefixtures("no_network")


def test_the_card_counts_and_finds_nothing_off(real_cifar: Path) -> None:
    rows = dict(source_card("cifar100", DataConfig(root=str(real_cifar))))
    assert rows["images"] == "50000 for training, 10000 for testing"
    assert rows["checks"] == "counts per class are as expected"


def test_its_test_images(real_cifar: Path, tmp_path: Path) -> None:
    """The test part in both places: 10 000 images are decoded, not 60 000. Means are those of the normalisation."""
    for part in ("train", "test"):
        (tmp_path / f"{part}.parquet").symlink_to(real_cifar / "test.parquet")
    source = open_source(DataConfig(name="cifar100", root=str(tmp_path), max_per_class=20))
    assert source.test.images.shape == (10_000, 3, 32, 32)
    assert torch.bincount(source.train.labels).tolist() == [20] * 100
    assert source.class_names[0] == "apple"
    assert source.class_names[99] == "worm"
    mean = source.test.images.float().mean((0, 2, 3)) / 255
    assert torch.allclose(mean, torch.tensor(source.mean), atol=0.004)
    scenario = build_scenario(source, ScenarioConfig(tasks=10), 0)
    assert scenario.order[:4] == (68, 56, 78, 8)
    assert scenario.class_names[0] == "road"
