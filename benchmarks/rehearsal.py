"""Rehearse the paper's tables on this machine, with generated stand-ins for data sets and weights that are missing.

python benchmarks/rehearsal.py DATA [--tables paper-table1,…] [--methods ROWS] [--memory GB]

DATA has the folders of the data sets that are there (cifar100, cub200, …). Each printed row replaces the same row in
results/rehearsal.txt, so that rows can be rehearsed one after the other. `--memory` rehearses as on a smaller machine:
what does not fit is measured with a part of its batch and extrapolated. Stand-ins have as many images as the originals.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
import torch
from harness import RESULTS
from PIL import Image
from safetensors.torch import save_file

from gatf.data.published import imagenet100_wnids
from gatf.io.files import write_text
from gatf.nets import build_backbone
from gatf.settings import BackboneConfig

TABLES = "paper-table1,paper-table2,paper-table3"
ROW = re.compile(r"([^,]+, .+?): .+ \(rehearsed in .+\)")


def folder_of_images(folder: Path, names: tuple[str, ...], count: int, side: int) -> None:
    """`count` copies of one random image per class."""
    draws = np.random.default_rng(0)
    for name in names:
        (folder / name).mkdir(parents=True)
        first = folder / name / "0.JPEG"
        Image.fromarray(draws.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(first)
        for number in range(1, count):
            (folder / name / f"{number}.JPEG").hardlink_to(first)


def make_stand_ins(folder: Path, data: Path) -> None:
    """The data sets in `data`, and generated ones for the two of ImageNet that are not there."""
    for place in data.iterdir():
        (folder / place.name).symlink_to(place.resolve())
    if not (folder / "imagenet100").exists():
        for part, count in (("train", 1300), ("val", 50)):
            folder_of_images(folder / "imagenet100" / part, imagenet100_wnids("adagauss"), count, 224)
    if not (folder / "tinyimagenet").exists():
        place = folder / "tinyimagenet" / "tiny-imagenet-200"
        names = tuple(f"n{1443537 + number:08d}" for number in range(200))
        folder_of_images(place / "train", names, 500, 64)
        for name in names:
            images = place / "train" / name / "images"
            images.mkdir()
            for image in (place / "train" / name).glob("*.JPEG"):
                image.rename(images / f"{name}_{image.name}")
        (place / "val" / "images").mkdir(parents=True)
        rows = []
        for name, number in product(names, range(50)):
            image = place / "train" / name / "images" / f"{name}_0.JPEG"
            (place / "val" / "images" / f"{name}_{number}.JPEG").hardlink_to(image)
            rows.append(f"{name}_{number}.JPEG\t{name}\t0\t0\t63\t63\n")
        (place / "val" / "val_annotations.txt").write_text("".join(rows), encoding="utf-8")


def make_weights(hub: Path) -> None:
    """Random weights in the hub's cache, under the name of the published ones."""
    place = hub / "hub" / "models--timm--resnet18.tv_in1k"
    (place / "snapshots" / "0").mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0", encoding="utf-8")
    network = build_backbone(BackboneConfig(name="resnet18", stem="7x7"), 3)
    weights = {name: value.contiguous() for name, value in network.state_dict().items() if "bottleneck" not in name}
    save_file(weights, place / "snapshots" / "0" / "model.safetensors")


def recorded(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {found[1]: line for line in lines if (found := ROW.fullmatch(line)) is not None}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--tables", default=TABLES)
    parser.add_argument("--methods")
    parser.add_argument("--memory", type=float, help="GB")
    parser.add_argument("--out", type=Path, default=RESULTS / "rehearsal.txt")
    given = parser.parse_args()
    torch.manual_seed(0)
    if given.memory is not None:
        import resource

        resource.setrlimit(
            resource.RLIMIT_DATA, (int(given.memory * 2**30), resource.getrlimit(resource.RLIMIT_DATA)[1])
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        make_stand_ins(folder / "data", given.data)
        make_weights(folder / "hub")
        environment = {
            **os.environ, "GATF_DATA": str(folder / "data"), "HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1",
            "GATF_CACHE": str(folder / "cache"),
        }  # fmt: skip
        for table in given.tables.split(","):
            command = [sys.executable, "-m", "gatf", "bench", table, "--rehearse", "--set", "device=cpu"]
            command += ["--methods", given.methods] if given.methods else []
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
                for line in map(str.rstrip, process.stdout or ()):
                    print(line, flush=True)
                    if (found := ROW.fullmatch(line)) is not None:
                        rows = recorded(given.out) | {found[1]: line}
                        write_text(given.out, "".join(f"{row}\n" for row in rows.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
