"""Images per second of decoding photos to 224 × 224, against a plain loop with Pillow, in the same run.

    python benchmarks/decode.py [--out benchmarks/results/decode.json] [--images 32] [--repeats 25]

Photos of 500 × 375 (ImageNet's usual size) are cut from the two that scikit-learn ships and stored as JPEG. `train` is
a random resized crop, `test` is resize to 256 and centre crop. What is timed is what one worker process runs. Times are
CPU seconds of this process, which other processes do not stretch as they do the clock's; the two take turns, and the
ratio is the median over the turns of their ratio.
"""

import argparse
import json
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor

from gatf.data.decode import RandomWindows
from gatf.data.encoded import Files
from gatf.data.lazy import DecodePiece
from gatf.files import write_text

HERE = Path(__file__).resolve().parent
SIZE = 224


def write_photos(folder: Path, count: int) -> tuple[str, ...]:
    """Random 500 × 375 cuts of scikit-learn's two photos, mirrored at random, as JPEG of quality 90."""
    from sklearn.datasets import load_sample_images

    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    draws = random.Random(0)
    paths = []
    for number in range(count):
        photo = draws.choice(photos)
        left, top = draws.randrange(photo.width - 500), draws.randrange(photo.height - 375)
        cut = photo.crop((left, top, left + 500, top + 375))
        if draws.random() < 0.5:
            cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        path = folder / f"{number:04d}.jpg"
        cut.save(path, quality=90)
        paths.append(str(path))
    return tuple(paths)


def pillow_train(paths: tuple[str, ...], windows: RandomWindows) -> Tensor:
    """The usual loop: open, convert, crop, resize, to a tensor, stack; with the same windows, so that work is equal."""
    batch = []
    for number, path in enumerate(paths):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        box = windows.box(number, image.width, image.height)
        image = image.crop(box).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        batch.append(torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous())
    return torch.stack(batch)


def pillow_test(paths: tuple[str, ...]) -> Tensor:
    """Open, convert, resize the shorter side to 256, centre crop 224, to a tensor, stack."""
    batch = []
    for path in paths:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        scale = 256 / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
        left, top = (image.width - SIZE) // 2, (image.height - SIZE) // 2
        image = image.crop((left, top, left + SIZE, top + SIZE))
        batch.append(torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous())
    return torch.stack(batch)


def seconds(call: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def compare(pillow: Callable[[], object], ours: Callable[[], object], images: int, repeats: int) -> dict[str, float]:
    """Medians of images per second of both, and of their ratio, over `repeats` turns after one to warm up."""
    turns = [(seconds(pillow), seconds(ours)) for _ in range(repeats + 1)][1:]
    return {
        "pillow_images_per_second": round(images / statistics.median(p for p, _ in turns), 1),
        "gatf_images_per_second": round(images / statistics.median(o for _, o in turns), 1),
        "ratio": round(statistics.median(p / o for p, o in turns), 3),
        "ratio_lowest": round(min(p / o for p, o in turns), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "decode.json", help="where the JSON goes")
    parser.add_argument(
        "--images", type=int, default=32, help="photos per batch, as many as a worker decodes at a time"
    )
    parser.add_argument("--repeats", type=int, default=25, help="turns; the median counts")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    count, repeats = arguments.images, arguments.repeats
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photos(Path(folder), count)
        numbers = list(range(count))
        windows = RandomWindows((0.08, 1.0), (0, "benchmark"))
        train, test = (DecodePiece(Files(paths), SIZE, choice) for choice in (windows, None))
        results = {
            "train": compare(lambda: pillow_train(paths, windows), lambda: train(numbers), count, repeats),
            "test": compare(lambda: pillow_test(paths), lambda: test(numbers), count, repeats),
        }
    for name, result in results.items():
        print(
            f"{name:7s} Pillow {result['pillow_images_per_second']:>7} images/s   "
            f"gatf {result['gatf_images_per_second']:>7} images/s   ratio {result['ratio']:.2f}"
        )
    report = {
        "images": f"{count} JPEG photos of 500 x 375, cut from scikit-learn's samples",
        "repeats": repeats,
        "threads": 1,
        "clock": "CPU time of the process",
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
