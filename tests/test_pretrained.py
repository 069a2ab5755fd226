"""Pretrained backbones in runs, classifiers and model files."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from gatf.config import RunConfig, load_config
from gatf.experiment import Experiment
from gatf.nets.pretrained import IMAGENET
from gatf.nets.resnet import ResNet18


def test_a_run_normalises_as_the_weights_expect(tmp_path: Path) -> None:
    save_file(ResNet18(width=4, stem="7x7", bottleneck=None).state_dict(), tmp_path / "w.safetensors")
    small = {"data.glyphs.classes": 4, "data.glyphs.train_per_class": 4, "data.glyphs.test_per_class": 2}
    small |= {"scenario.tasks": 2, "backbone.name": "resnet18", "backbone.width": 4, "backbone.stem": "7x7"}
    plain = Experiment(load_config("glyphs", overrides=small)).session
    fine = Experiment(
        load_config("glyphs", overrides={**small, "backbone.pretrained": str(tmp_path / "w.safetensors")})
    ).session
    assert plain.preprocessing.mean == (0.5, 0.5, 0.5)
    assert (fine.preprocessing.mean, fine.preprocessing.std) == IMAGENET
    pixels = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    expected = -torch.tensor(IMAGENET[0]) / torch.tensor(IMAGENET[1])
    torch.testing.assert_close(fine.pipeline(pixels)[0, :, 0, 0], expected)


def test_grey_images_keep_their_own(tmp_path: Path, tiny_config: Callable[..., RunConfig]) -> None:
    save_file(ResNet18(1, width=4, stem="7x7", bottleneck=None).state_dict(), tmp_path / "w.safetensors")
    settings = {"backbone.name": "resnet18", "backbone.width": 4, "backbone.stem": "7x7"}
    path = {"backbone.pretrained": str(tmp_path / "w.safetensors")}
    plain, fine = (Experiment(tiny_config("gatf", **settings, **more)).session for more in ({}, path))
    assert fine.preprocessing == plain.preprocessing
    assert fine.method.backbone.pretrained
