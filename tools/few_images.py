"""What it gains to allow for the noise in means of few images (`method.few_images` of slda and klda).

python tools/few_images.py     measures (GATF_DATA as for `gatf run`) and writes the table of docs/methods.md

Features of EfficientNet-Lite0 with ImageNet's weights, from training images alone: some are learnt from, others, held
out, are answered. Every second class has few images. Numbers are means over draws of classes and images.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from update_docs import ROOT, replace_between

from gatf.config import load_config
from gatf.data.augment import Pipeline
from gatf.data.loader import views
from gatf.data.sources import open_source
from gatf.geometry.moments import PooledMoments
from gatf.geometry.readout import linear_discriminant
from gatf.io.files import write_text
from gatf.nets import build_backbone
from gatf.nets.folding import folded
from gatf.settings import BackboneConfig

RECORD, PAGE = ROOT / "benchmarks" / "results" / "few_images.json", ROOT / "docs" / "methods.md"
SEED, DRAWS = 5, 6
PHOTOS: dict[str, dict[str, Any]] = {
    "birds": {"recipe": "cub200-128px", "side": 112, "classes": 60, "per_class": 30, "held_out": 6},
    "CIFAR-100": {"recipe": "cifar100-t10", "side": 96, "classes": 20, "per_class": 300, "held_out": 60},
}
CASES = {
    "birds": [(20, 22, 22), (60, 22, 22), (60, 3, 3), (60, 22, 10), (60, 22, 3), (20, 22, 3), (60, 22, 1)],
    "CIFAR-100": [(20, 30, 30), (20, 10, 10), (20, 240, 10), (10, 240, 10), (20, 60, 3), (20, 30, 1)],
}
"""Classes, images of every other one, images of the rest."""


@torch.no_grad()
def features_of(photos: dict[str, Any]) -> list[Tensor]:
    """Features of training images of some classes, [per class, S] each."""
    config = load_config(photos["recipe"], method="finetune", overrides={"data.image_size": photos["side"]})
    train = open_source(config.data).train
    net = build_backbone(BackboneConfig(name="efficientnet_lite0", pretrained="package", bottleneck=None), 3)
    pipeline = Pipeline((), *net.normalisation, None)  # type: ignore[misc]
    quick, draws = folded(net), torch.Generator().manual_seed(SEED)
    found = []
    for number in torch.randperm(int(train.labels.max()) + 1, generator=draws)[: photos["classes"]]:
        members = (train.labels == number).nonzero()[:, 0][: photos["per_class"]]
        found.append(torch.cat([quick(images) for images in views(train, members, pipeline, torch.device("cpu"))]))
    return found


def right(features: list[Tensor], counts: list[int], held_out: int, seed: int) -> dict[str, list[float]]:
    """Shares of held-out images answered rightly, by classes of many and of few images, without and with noise."""
    draws = torch.Generator().manual_seed(seed)
    classes = torch.randperm(len(features), generator=draws)[: len(counts)].tolist()
    mixed = [features[number][torch.randperm(len(features[number]), generator=draws)] for number in classes]
    learnt = [each[held_out : held_out + count] for each, count in zip(mixed, counts, strict=True)]
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor([len(each) for each in learnt]))
    known = PooledMoments.of(torch.cat(learnt), labels, classes=len(counts))
    found = {}
    for name, numbers in (("plain", None), ("few", known.counts)):
        rule = linear_discriminant(known.means, known.covariance(), known.noise_share(), numbers)
        answers = torch.stack([rule.scores(each[:held_out].double()).argmax(1) for each in mixed])
        hits = (answers == torch.arange(len(counts))[:, None]).double().mean(1)
        found[name] = [float(hits[0::2].mean()), float(hits[1::2].mean())]
    return found


def measure() -> list[dict[str, Any]]:
    records = []
    for data, photos in PHOTOS.items():
        features = features_of(photos)
        for classes, many, few in CASES[data]:
            counts = [many, few] * (classes // 2)
            drawn = [right(features, counts, photos["held_out"], seed) for seed in range(DRAWS)]
            means = {
                name: (100 * torch.tensor([each[name] for each in drawn]).mean(0)).tolist() for name in ("plain", "few")
            }
            records.append({"data": data, "classes": classes, "many": many, "few": few, "right": means})
            print(json.dumps(records[-1]), flush=True)
    return records


def table(records: list[dict[str, Any]]) -> str:
    headings = ("data", "classes", "images of every other class, of the rest", "as published %", "allowing for noise %")
    lines = [f"| {' | '.join(headings)} | of the rest, before and after % |", "|---|---:|---:|---:|---:|---:|"]
    for each in records:
        plain, few = each["right"]["plain"], each["right"]["few"]
        total = [f"{sum(pair) / 2:.1f}" for pair in (plain, few)]
        cells = [
            each["data"],
            each["classes"],
            f"{each['many']}, {each['few']}",
            *total,
            f"{plain[1]:.1f}, {few[1]:.1f}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main(page: Path = PAGE) -> None:
    torch.set_num_threads(1)
    records = measure()
    write_text(RECORD, json.dumps(records, indent=1) + "\n")
    page.write_text(replace_between(page.read_text(encoding="utf-8"), "few-images", table(records)), encoding="utf-8")


if __name__ == "__main__":
    main()
