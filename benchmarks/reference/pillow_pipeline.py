"""The usual data-set transform, one image at a time with Pillow: what `benchmarks/augment.py` compares with.

Images are in memory as uint8 arrays, as CIFAR's are, so each goes array → Pillow image → crop, flip, TrivialAugment →
array → float, normalised into its place in the batch. Written for speed within that form: Python's own random numbers,
a crop with negative coordinates instead of a padded copy, normalisation by one multiply and one add.
"""

import random

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

PADDING = 4
BINS = 31
OPERATIONS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
ENHANCERS = {
    "brightness": ImageEnhance.Brightness,
    "color": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "sharpness": ImageEnhance.Sharpness,
}


def apply_operation(image: Image.Image, operation: str, fraction: float, sign: int) -> Image.Image:
    """One TrivialAugmentWide operation at `fraction` of its range."""
    if operation in ENHANCERS:
        return ENHANCERS[operation](image).enhance(1 + sign * 0.99 * fraction)
    if operation == "posterize":
        return ImageOps.posterize(image, 8 - round(6 * fraction))
    if operation == "solarize":
        return ImageOps.solarize(image, 255 * (1 - fraction))
    if operation == "autocontrast":
        return ImageOps.autocontrast(image)
    if operation == "equalize":
        return ImageOps.equalize(image)
    if operation == "rotate":
        return image.rotate(sign * 135 * fraction, Image.Resampling.BILINEAR)
    if operation == "identity":
        return image
    slope, pixels = sign * 0.99 * fraction, sign * int(32 * fraction)
    matrix = {
        "shear_x": (1, slope, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, slope, 1, 0),
        "translate_x": (1, 0, -pixels, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, -pixels),
    }[operation]
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


def trivial_augment(image: Image.Image, rng: random.Random) -> Image.Image:
    """TrivialAugmentWide: one random operation at one of 31 strengths."""
    return apply_operation(image, rng.choice(OPERATIONS), rng.randrange(BINS) / (BINS - 1), rng.choice((-1, 1)))


class PillowPipeline:
    """Crop, flip, optionally TrivialAugment, normalise: uint8 `[B, H, W, C]` → float32 `[B, H, W, C]`."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], *, trivial: bool, seed: int = 0) -> None:
        self.scale = (1 / (255 * np.array(std))).astype(np.float32)
        self.shift = (-np.array(mean) / np.array(std)).astype(np.float32)
        self.trivial = trivial
        self.rng = random.Random(seed)

    def __call__(self, arrays: np.ndarray) -> np.ndarray:
        batch = np.empty(arrays.shape, np.float32)
        _, height, width, _ = arrays.shape
        for place, array in enumerate(arrays):
            image = Image.fromarray(array)
            left, top = self.rng.randint(-PADDING, PADDING), self.rng.randint(-PADDING, PADDING)
            image = image.crop((left, top, left + width, top + height))
            if self.rng.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            if self.trivial:
                image = trivial_augment(image, self.rng)
            np.multiply(np.asarray(image), self.scale, out=batch[place])
            batch[place] += self.shift
        return batch
