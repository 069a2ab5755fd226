"""Images per second of `gatf.data.augment` against a loop over images with Pillow, on one thread, in the same run.

    python benchmarks/augment.py [--out benchmarks/results/augment.json] [--batch 128] [--repeats 15]

The two take turns, so a busy machine slows both; the ratio is the median over the turns of their ratio.
"""

import argparse
import io
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image

from gatf.data.augment import Pipeline, parse_augmentation
from gatf.files import write_text

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from reference.pillow_pipeline import PillowPipeline  # noqa: E402

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
CIFAR = HERE.parents[1] / "shared" / "data" / "cifar100" / "test.parquet"
SCENARIOS = {
    "crop_flip_normalise": ["crop:4", "flip"],
    "crop_flip_trivial_normalise": ["crop:4", "flip", "trivial"],
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


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(arrays: np.ndarray, names: list[str], *, repeats: int) -> dict[str, float]:
    """Medians of images per second of both, and of their ratio, over `repeats` turns after one to warm up."""
    pillow = PillowPipeline(MEAN, STD, trivial="trivial" in names)
    ours = Pipeline(parse_augmentation(names), MEAN, STD)
    images = torch.from_numpy(arrays).permute(0, 3, 1, 2).contiguous()
    generator = torch.Generator().manual_seed(0)
    turns = [(seconds(lambda: pillow(arrays)), seconds(lambda: ours(images, generator))) for _ in range(repeats + 1)]
    turns = turns[1:]
    return {
        "pillow_images_per_second": round(len(arrays) / statistics.median(p for p, _ in turns)),
        "gatf_images_per_second": round(len(arrays) / statistics.median(o for _, o in turns)),
        "ratio": round(statistics.median(p / o for p, o in turns), 2),
        "ratio_lowest": round(min(p / o for p, o in turns), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "augment.json", help="where the JSON goes")
    parser.add_argument("--batch", type=int, default=128, help="images per batch")
    parser.add_argument("--repeats", type=int, default=15, help="turns; the median counts")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    arrays, source = load_images(arguments.batch)
    print(f"{len(arrays)} images of 32 × 32: {source}; one thread, median of {arguments.repeats}")
    results = {}
    for scenario, names in SCENARIOS.items():
        results[scenario] = result = compare(arrays, names, repeats=arguments.repeats)
        print(
            f"{scenario:28s} Pillow {result['pillow_images_per_second']:>7} images/s   "
            f"gatf {result['gatf_images_per_second']:>7} images/s   ratio {result['ratio']:.1f}"
        )
    report = {
        "images": source,
        "batch": arguments.batch,
        "repeats": arguments.repeats,
        "threads": 1,
        "results": results,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "pillow": PIL.__version__,
            "numpy": np.__version__,
        },
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(arguments.out, json.dumps(report, indent=2) + "\n")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
