"""Images per second of decoding photos to 224 × 224, against a plain loop with Pillow, in the same run.

    python benchmarks/decode.py [--out benchmarks/results/decode.json] [--images 96] [--repeats 9]

Photos of 500 × 375 (ImageNet's usual size) are cut from the two that scikit-learn ships and stored as JPEG. `train` is
a random resized crop, `test` is resize to 256 and centre crop, `worker` is `train` done by one worker process each and
handed over to this one. The two take turns, so a busy machine slows both; the ratio is the median over the turns of their ratio.
"""

import argparse
import json
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor

from gatf.data.decode import RandomWindows
from gatf.data.encoded import Files
from gatf.data.lazy import PIECE, DecodePiece, LazyImages
from gatf.data.workers import PREFETCH, in_order

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


def pillow_train(paths: tuple[str, ...], draws: random.Random) -> Tensor:
    """The usual loop: open, convert, draw a window, crop, resize, to a tensor, stack."""
    batch = []
    for path in paths:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        width, height = image.size
        area, ratio = width * height * draws.uniform(0.08, 1), draws.uniform(3 / 4, 4 / 3)
        across, down = min(width, round((area * ratio) ** 0.5)), min(height, round((area / ratio) ** 0.5))
        left, top = draws.randrange(width - across + 1), draws.randrange(height - down + 1)
        image = image.crop((left, top, left + across, top + down)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        batch.append(torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous())
    return torch.stack(batch)


@dataclass(frozen=True)
class PillowPiece:
    """`pillow_train` as a worker's task."""

    paths: tuple[str, ...]

    def __call__(self, numbers: list[int]) -> Tensor:
        return pillow_train(tuple(self.paths[number] for number in numbers), random.Random(numbers[0]))


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
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(pillow: Callable[[], float], ours: Callable[[], float], images: int, repeats: int) -> dict[str, float]:
    """Medians of images per second of both, and of their ratio, over `repeats` turns after one to warm up."""
    turns = [(pillow(), ours()) for _ in range(repeats + 1)][1:]
    return {
        "pillow_images_per_second": round(images / statistics.median(p for p, _ in turns), 1),
        "gatf_images_per_second": round(images / statistics.median(o for _, o in turns), 1),
        "ratio": round(statistics.median(p / o for p, o in turns), 3),
        "ratio_lowest": round(min(p / o for p, o in turns), 3),
    }


def steady(stream: Iterator[Tensor], batches: int) -> float:
    """Seconds for so many batches from a worker that is at work: what it had ready is taken first.

    Afterwards it gets the time to fill its queue and fall asleep, so that it does not compete with the other's turn.
    """
    for _ in range(PREFETCH):
        next(stream)
    taken = seconds(lambda: [next(stream) for _ in range(batches)])
    time.sleep(1.0)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "decode.json", help="where the JSON goes")
    parser.add_argument("--images", type=int, default=96, help="photos per batch")
    parser.add_argument("--repeats", type=int, default=9, help="turns; the median counts")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    count, repeats = arguments.images, arguments.repeats
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photos(Path(folder), count)
        windows, draws = RandomWindows((0.08, 1.0), (0, "benchmark")), random.Random(0)
        images = LazyImages(Files(paths), SIZE)
        numbers, pieces = [torch.arange(count)], count // PIECE
        endless = [list(range(at, at + PIECE)) for at in range(0, pieces * PIECE, PIECE)] * 1000
        workers = [
            in_order(work, endless, workers=1)
            for work in (PillowPiece(paths), DecodePiece(images.encoded, SIZE, windows))
        ]
        results = {
            "train": compare(
                lambda: seconds(lambda: pillow_train(paths, draws)),
                lambda: seconds(lambda: list(images.stream(numbers, windows))),
                count, repeats,
            ),
            "test": compare(
                lambda: seconds(lambda: pillow_test(paths)),
                lambda: seconds(lambda: list(images.stream(numbers))),
                count, repeats,
            ),
            "worker": compare(
                lambda: steady(workers[0], pieces), lambda: steady(workers[1], pieces), pieces * PIECE, repeats
            ),
        }  # fmt: skip
    for name, result in results.items():
        print(
            f"{name:7s} Pillow {result['pillow_images_per_second']:>7} images/s   "
            f"gatf {result['gatf_images_per_second']:>7} images/s   ratio {result['ratio']:.2f}"
        )
    report = {
        "images": f"{count} JPEG photos of 500 x 375, cut from scikit-learn's samples",
        "repeats": repeats,
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
    unfinished = arguments.out.with_suffix(".part")
    unfinished.write_text(json.dumps(report, indent=2) + "\n")
    unfinished.replace(arguments.out)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
