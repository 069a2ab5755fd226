"""Would features show which images are nearly copies of each other, so that a held-out image has none in training?

    python experiments/near_copies.py FEATURES

FEATURES is the folder of encoders.py. For cosines of at least 0.8 to 0.999 between features of EfficientNet-Lite0 the
data file has the share of edited images that are found, the share of original images that have another one of their
class as near, and what grouping costs. It also has the reported and the test accuracy when each image has a copy.
"""

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import save
from encoders import BATCH, DATA, LITE, features, pixels, runtime
from PIL import Image, ImageEnhance

from gatf import EmbeddingClassifier

THRESHOLDS = (0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.999)
IMAGES, CLASSES = 200, 20


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def scaled(image: Image.Image, side: int) -> Image.Image:
    return image.resize((side, side), Image.Resampling.BILINEAR).resize(image.size, Image.Resampling.BILINEAR)


def cropped(image: Image.Image, margin: int) -> Image.Image:
    width, height = image.size
    return image.resize(image.size, Image.Resampling.BILINEAR, (margin, margin, width - margin, height - margin))


EDITS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG, quality 90": lambda image: jpeg(image, 90),
    "JPEG, quality 50": lambda image: jpeg(image, 50),
    "resized to 80 % and back": lambda image: scaled(image, round(0.8 * image.width)),
    "2 % cut from every side": lambda image: cropped(image, 2),
    "10 % brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
}


def embed(network: Any, images: list[Image.Image]) -> np.ndarray:
    mean, std = (np.array(each, np.float32)[:, None, None] for each in LITE)
    found = []
    for first in range(0, len(images), BATCH):
        batch = np.stack([np.asarray(image) for image in images[first : first + BATCH]])
        batch = (batch.transpose(0, 3, 1, 2) / np.float32(255) - mean) / std
        padded = np.concatenate([batch, np.zeros((BATCH - len(batch), *batch.shape[1:]), np.float32)])
        found.append(network.run(None, {network.get_inputs()[0].name: padded})[0][: len(batch)])
    return np.concatenate(found)


def nearest(unit: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The largest cosine to another item of the same class, [N]."""
    found = np.full(len(unit), -1.0)
    for number in np.unique(labels):
        rows = np.flatnonzero(labels == number)
        cosines = unit[rows] @ unit[rows].T
        np.fill_diagonal(cosines, -1)
        found[rows] = cosines.max(1)
    return found


def shares(cosines: np.ndarray) -> dict[str, float]:
    return {str(threshold): float((cosines >= threshold).mean()) for threshold in THRESHOLDS}


def study(folder: Path, data: str) -> dict[str, Any]:
    vectors, labels, train = features(folder, data, "lite0")
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    begun = time.process_time()
    near = nearest(unit, labels)
    grouping = time.process_time() - begun
    draws = np.random.default_rng(0)
    rows = np.sort(draws.permutation(len(labels))[:IMAGES])
    all_pixels, network = pixels(folder, data)["x"], runtime(folder, "lite0")

    def edited(numbers: np.ndarray, edit: Callable[[Image.Image], Image.Image]) -> np.ndarray:
        return embed(network, [edit(Image.fromarray(all_pixels[number])) for number in numbers])

    begun = time.process_time()
    found = {}
    for name, edit in EDITS.items():
        copies = edited(rows, edit)
        cosines = (unit[rows] * copies).sum(1) / np.linalg.norm(copies, axis=1)
        found[name] = {"found": shares(cosines), "median": float(np.median(cosines))}
    embedding = (time.process_time() - begun) / (len(EDITS) * IMAGES)
    learnt, asked = (np.flatnonzero((labels < CLASSES) & (train == part)) for part in (True, False))
    copies = edited(learnt, EDITS["JPEG, quality 50"])
    accuracies = {}
    for name, items, classes in (
        ("alone", vectors[learnt], labels[learnt]),
        ("with a copy each", np.concatenate([vectors[learnt], copies]), np.tile(labels[learnt], 2)),
    ):
        classifier = EmbeddingClassifier().fit(items, classes)
        accuracies[name] = {
            "reported": classifier.history_[-1].accuracy_new,
            "test": float(100 * (classifier.predict(vectors[asked]) == labels[asked]).mean()),
        }
    return {
        "images": len(labels), "originals": shares(near), "edits": found, "accuracy": accuracies,
        "grouping_seconds": grouping, "embedding_seconds": embedding * len(labels),
    }  # fmt: skip


if __name__ == "__main__":
    save("near_copies", {data: study(Path(sys.argv[1]), data) for data in DATA})
