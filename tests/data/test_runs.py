"""Whole runs on other data than digits: images on the fly, a backbone from Python, warnings that are reported."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gatf.config import RunConfig, load_config
from gatf.errors import UserError
from gatf.experiment import Experiment, start
from gatf.io import events


def config(root: Path, **overrides: Any) -> RunConfig:
    stage = {"epochs": 1, "batch_size": 4, "lr": 0.1}
    recipe = {
        "data": {"name": "folder", "root": str(root), "augment": ["resized_crop:72", "flip"], "image_size": 72},
        "scenario": {"tasks": 2, "order": ["dog", "ant", "cat"], "first_task_classes": 2},
        "backbone": {"width": 2, "stem": "7x7", "bottleneck": None},
        "optimisation": {"first": stage, "next": stage},
    }
    return load_config(recipe, method="finetune", overrides=overrides)


@pytest.fixture
def photos(tmp_path: Path, image_folder: Callable[..., Path]) -> Path:
    counts = {f"{part}/{name}": 6 for part in ("train", "test") for name in ("ant", "cat", "dog")}
    return image_folder(tmp_path / "photos", counts, size=(100, 80), kind="JPEG")


def test_a_run_on_images_decoded_on_the_fly(tmp_path: Path, photos: Path) -> None:
    """Two workers or none: the same model, bit for bit."""
    summaries = []
    for workers in (0, 2):
        summaries.append(start(config(photos, **{"data.workers": workers}), tmp_path / f"run{workers}"))
    models = [(tmp_path / f"run{workers}" / "model.safetensors").read_bytes()[-2000:] for workers in (0, 2)]
    assert models[0] == models[1]
    assert summaries[0].class_names == ["dog", "ant", "cat"]
    assert summaries[0].accuracy_matrix == summaries[1].accuracy_matrix


def test_a_backbone_from_python(tmp_path: Path, photos: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    weights = net[0].weight.clone()
    summary = start(config(photos), tmp_path / "run", backbone=net)
    assert len(summary.accuracy_seen) == 2
    assert not torch.equal(net[0].weight, weights)  # it was trained, not copied


def test_augmentation_that_does_not_fit_is_found_before_the_run(photos: Path) -> None:
    with pytest.raises(UserError, match=r"data.augment must begin with resized_crop:72"):
        Experiment(config(photos, **{"data.augment": ["resized_crop:32"]}))


def test_odd_folders_are_reported(tmp_path: Path, photos: Path) -> None:
    (photos / "test" / "ufo").mkdir()
    (photos / "test" / "ufo" / "x.png").write_bytes(b"")
    reported: list[events.Event] = []
    start(config(photos), tmp_path / "run", (reported.append,))
    warnings = [event.text for event in reported if isinstance(event, events.WarningEvent)]
    assert warnings == [f"{photos / 'test'}: class ufo has no training images and is left out"]
