"""How a model turns images into the input of its network."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from gatf.data.augment import Pipeline, parse_augmentation
from gatf.data.base import ImageSet
from gatf.data.decode import CENTRAL_SHARE, SMALL
from gatf.data.inputs import ImageInput
from gatf.errors import UserError
from gatf.settings import DataConfig


@dataclass(frozen=True)
class Preprocessing:
    """From images to the network's input: (pixels/255 − mean)/std of a central square of uint8 pixels."""

    shape: tuple[int, ...]
    """Channels, height, width; of vectors their dimension alone."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    central_share: float = CENTRAL_SHARE
    """Share of the shorter side that the test view of large images keeps; small images are kept whole."""

    @property
    def takes_vectors(self) -> bool:
        return len(self.shape) == 1

    @property
    def noun(self) -> Literal["images", "vectors"]:
        """What the model classifies."""
        return "vectors" if self.takes_vectors else "images"

    @property
    def description(self) -> str:
        """The input in a few words."""
        if self.takes_vectors:
            return f"vectors of {self.shape[0]} numbers"
        channels, height, width = self.shape
        return f"{height}×{width} {'grey' if channels == 1 else 'colour'} images"

    def suited_to(self, backbone: nn.Module) -> "Preprocessing":
        """The same with the mean, deviation and central share that a pretrained backbone declares."""
        if self.takes_vectors:
            return self
        suited = self
        expected = getattr(backbone, "normalisation", None)
        if expected is not None and len(expected[0]) == self.shape[0]:
            suited = replace(suited, mean=expected[0], std=expected[1])
        share = getattr(backbone, "central_share", None)
        if share is not None and self.shape[1] > SMALL:
            if not 0 < share <= 1:
                raise UserError(f"a backbone's central_share is above 0 and at most 1, not {share!r}")
            suited = replace(suited, central_share=share)
        return suited

    def images(self, given: ImageInput | Tensor, labels: Tensor | None = None) -> ImageSet:
        """The test views of images, not yet normalised, or vectors, with class numbers."""
        images = given if isinstance(given, Tensor) else given.images(self.shape, self.central_share)
        return ImageSet(images, torch.zeros(len(given), dtype=torch.int64) if labels is None else labels)

    def pipeline(self, config: DataConfig) -> Pipeline:
        """The training and test pipeline with the configured augmentation and test crop."""
        if self.takes_vectors:
            return Pipeline((), (), ())
        steps = parse_augmentation(config.augment)
        return Pipeline(steps, self.mean, self.std, config.test_crop).check(self.shape)
