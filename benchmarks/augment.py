"""Images per second of `gatf.data.augment` against a loop over images with Pillow, on one thread, in the same run.

    python benchmarks/augment.py [--quick] [--out benchmarks/results/augment.json]

A batch of 128 images of 32 × 32 lies in memory as bytes, in each side's own layout.
"""

import io
from pathlib import Path

import numpy as np
import torch
from harness import Report, options, per_second, take_turns
from PIL import Image
from reference.pillow_pipeline import PillowPipeline

from gatf.data.augment import Pipeline, parse_augmentation

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
BATCH = 128
CIFAR = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar100" / "test.parquet"
SCENARIOS = {
    "crop, flip, normalise": ["crop:4", "flip"],
    "crop, flip, TrivialAugment, normalise": ["crop:4", "flip", "trivial"],
}


def load_images(count: int) -> tuple[np.ndarray, str]:
    """`[count, 32, 32, 3]` uint8 images and where they come from: CIFAR-100 if it is there, else smooth noise."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        reason = "pyarrow is not installed"
    else:
        if CIFAR.exists():
            column = next(parquet.ParquetFile(CIFAR).iter_batches(batch_size=count, columns=["img"]))["img"]
            images = [np.asarray(Image.open(io.BytesIO(row["bytes"])).convert("RGB")) for row in column.to_pylist()]
            return np.stack(images), "the first images of CIFAR-100's test set"
        reason = f"{CIFAR} is not there"
    coarse = torch.rand((count, 3, 6, 6), generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(coarse, size=32, mode="bicubic").clamp(0, 1)
    return (smooth * 255).byte().permute(0, 2, 3, 1).contiguous().numpy(), f"random smooth images ({reason})"


def main() -> None:
    arguments = options("augment", __doc__, threads=1)
    arrays, source = load_images(BATCH)
    images = torch.from_numpy(arrays).permute(0, 3, 1, 2).contiguous()
    report = Report(arguments, {"images": source, "batch": len(arrays)})
    for scenario, names in SCENARIOS.items():
        pillow = PillowPipeline(MEAN, STD, trivial="trivial" in names)
        ours = Pipeline(parse_augmentation(names), MEAN, STD)
        generator = torch.Generator().manual_seed(0)
        turns = take_turns(
            lambda pillow=pillow: pillow(arrays),
            lambda ours=ours, generator=generator: ours(images, generator),
            repeats=5 if arguments.quick else 25,
        )
        report.add(scenario, **per_second(turns, len(arrays)), unit="images/s")
    report.write("pillow")


if __name__ == "__main__":
    main()
