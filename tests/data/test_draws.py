"""What happens to an image does not depend on how many processes share its batch."""

import pytest
import torch

from gatf.data.augment import Pipeline, parse_augmentation
from gatf.data.draws import BatchGenerator, rand, randint

STEPS = ["crop:2", "flip", "resized_crop:8", "jitter:0.3", "trivial", "autoaugment", "cutout:4", "window:6"]


def part(first: int, whole: int | None, seed: int = 5) -> BatchGenerator:
    generator = BatchGenerator()
    generator.manual_seed(seed)
    generator.first, generator.whole = first, whole
    return generator


def test_parts_are_cut_from_the_whole() -> None:
    plain = torch.Generator().manual_seed(5)
    whole = rand((2, 7), plain, dim=1)
    torch.testing.assert_close(rand((2, 3), part(4, 7), dim=1), whole[:, 4:], rtol=0, atol=0)
    assert torch.equal(randint(9, (7, 2), part(0, None)), randint(9, (7, 2), part(0, 7)))


@pytest.mark.parametrize("step", STEPS)
def test_every_augmentation_of_a_part_is_a_part_of_the_augmentation(step: str) -> None:
    images = torch.randint(256, (7, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pipeline = Pipeline(parse_augmentation([step]), (0.5,), (0.25,))
    whole = pipeline(images, part(0, None))
    assert not torch.equal(whole, pipeline(images, part(0, None, seed=6)))
    torch.testing.assert_close(pipeline(images[:4], part(0, 7)), whole[:4])
    torch.testing.assert_close(pipeline(images[4:], part(4, 7)), whole[4:])
