"""Images per second of decoding photos to 224 × 224, against a plain loop with Pillow, in the same run.

    python benchmarks/decode.py [--quick] [--out benchmarks/results/decode.json]

Photos of 500 × 375 (ImageNet's usual size) are cut from the two that scikit-learn ships and stored as JPEG. `train` is
a random resized crop, `test` is resize to 256 and centre crop. What is timed is what one worker process runs. Times are
CPU seconds of this process, which other processes do not stretch as they do the clock's.
"""

import random
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from harness import Report, options, per_second, take_turns
from PIL import Image
from torch import Tensor

from gatf.data.base import DecodePiece
from gatf.data.decode import CENTRAL_SHARE, RandomWindows
from gatf.data.encoded import Files

SIZE = 224
PHOTOS = 32
"""A batch, as many as a worker decodes at a time."""


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


def pieces(paths: tuple[str, ...], windows: RandomWindows) -> tuple[DecodePiece, DecodePiece]:
    """What decodes images for training and for testing."""
    train, test = (DecodePiece(Files(paths), SIZE, choice, CENTRAL_SHARE) for choice in (windows, None))
    return train, test


def main() -> None:
    arguments = options("decode", __doc__, threads=1)
    images = f"{PHOTOS} JPEG photos of 500 x 375, cut from scikit-learn's samples"
    report = Report(arguments, {"images": images, "clock": "CPU time of the process"})
    repeats = 5 if arguments.quick else 15
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photos(Path(folder), PHOTOS)
        numbers = list(range(PHOTOS))
        windows = RandomWindows((0.08, 1.0), (0, "benchmark"))
        train, test = pieces(paths, windows)
        calls = {
            "train": (lambda: pillow_train(paths, windows), lambda: train(numbers)),
            "test": (lambda: pillow_test(paths), lambda: test(numbers)),
        }
        for name, (pillow, ours) in calls.items():
            turns = take_turns(pillow, ours, repeats=repeats, clock=time.process_time)
            report.add(f"decoding, {name}", **per_second(turns, PHOTOS), unit="images/s")
    report.write("pillow")


if __name__ == "__main__":
    main()
