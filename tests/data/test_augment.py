"""Steps, the pipeline, names of augmentations, and the helpers of methods."""

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from gatf.data.augment import (
    EXAMPLES,
    STEPS,
    AutoAugment,
    ColorJitter,
    Cutout,
    Pad,
    Pipeline,
    RandomCrop,
    RandomFlip,
    RandomWindow,
    ResizedCrop,
    TrivialAugment,
    centre,
    four_rotations,
    parse_augmentation,
    rotation_labels,
    rotation_labels_class_major,
)
from gatf.errors import UserError

EVERY_STEP = [
    "crop:4", "flip", "pad:2", "resized_crop:24", "jitter:0.247", "jitter:brightness=0.4,contrast=0.4,saturation=0.4",
    "trivial", "autoaugment", "autoaugment:128", "cutout:16", "window:12",
]  # fmt: skip


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator(seed))


# --- what every step promises ---


@pytest.mark.parametrize("name", EVERY_STEP)
@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (6, 1, 32, 32), (6, 3, 33, 17), (40, 3, 16, 16)])
def test_a_step_depends_only_on_images_and_generator(name: str, shape: tuple[int, ...]) -> None:
    (step,) = parse_augmentation([name])
    images = noise(*shape)
    before, global_state = images.clone(), torch.get_rng_state()
    first, again = step(images, generator(5)), step(images, generator(5))
    assert torch.equal(first, again)
    assert first.dtype == torch.uint8
    assert first.shape[:2] == images.shape[:2]
    assert torch.equal(images, before)  # the caller's images are not written to
    assert torch.equal(torch.get_rng_state(), global_state)


@pytest.mark.parametrize("name", EVERY_STEP)
def test_an_image_does_not_see_its_neighbours(name: str) -> None:
    (step,) = parse_augmentation([name])
    images, changed = noise(64, 3, 20, 20), noise(64, 3, 20, 20)
    changed[::2] = noise(32, 3, 20, 20, seed=1)
    result, other = step(images, generator(2)), step(changed, generator(2))
    assert torch.equal(result[1::2], other[1::2])
    assert not torch.equal(result[::2], other[::2])


@pytest.mark.parametrize("name", [name for name in EVERY_STEP if not name.startswith("pad")])
def test_images_of_a_batch_are_augmented_differently(name: str) -> None:
    (step,) = parse_augmentation([name])
    same = noise(1, 3, 20, 20).expand(64, -1, -1, -1).contiguous()
    assert len(step(same, generator()).unique(dim=0)) > (1 if name == "flip" else 15)


@pytest.mark.parametrize("name", EVERY_STEP)
def test_memory_format_of_the_input_does_not_matter(name: str) -> None:
    (step,) = parse_augmentation([name])
    images = noise(16, 3, 20, 24)
    strided = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(step(images, generator()), step(strided, generator()))


# --- single steps ---


def test_crop_cuts_every_window_of_the_padded_image_equally_often() -> None:
    places = torch.arange(1, 16 * 15 + 1).view(1, 1, 16, 15).to(torch.uint8)  # each pixel is its place
    count, padding = 81 * 60, 4
    crops = RandomCrop(padding)(places.expand(count, -1, -1, -1), generator())
    centre = crops[:, 0, 8, 7].long() - 1
    top, left = centre // 15 - 8 + padding, centre % 15 - 7 + padding
    assert chisquare(torch.bincount(top * 9 + left, minlength=81).numpy()).pvalue > 1e-3
    padded = torch.nn.functional.pad(places, (padding,) * 4)[0, 0]
    for i in range(0, count, 20):
        assert torch.equal(crops[i, 0], padded[top[i] : top[i] + 16, left[i] : left[i] + 15])


def test_flip_mirrors_about_half_of_the_images() -> None:
    images = noise(2000, 3, 4, 5)
    flipped = RandomFlip()(images, generator())
    mirrored = (flipped == images.flip(-1)).all(dim=(1, 2, 3))
    kept = (flipped == images).all(dim=(1, 2, 3))
    assert torch.equal(mirrored, ~kept)
    assert chisquare(torch.bincount(mirrored.long()).numpy()).pvalue > 1e-3


def test_pad_adds_black_borders() -> None:
    images = noise(2, 3, 6, 7)
    padded = Pad(4)(images, generator())
    assert padded.shape == (2, 3, 14, 15)
    assert torch.equal(padded[:, :, 4:-4, 4:-4], images)
    assert padded.long().sum() == images.long().sum()


def test_window_cuts_every_place_equally_often() -> None:
    places = torch.arange(9 * 7).view(1, 1, 9, 7).to(torch.uint8)  # each pixel is its place
    windows = RandomWindow(5)(places.expand(15 * 200, -1, -1, -1), generator())
    first = windows[:, 0, 0, 0].long()
    top, left = first // 7, first % 7
    assert chisquare(torch.bincount(top * 3 + left, minlength=15).numpy()).pvalue > 1e-3
    for i in range(0, len(windows), 100):
        assert torch.equal(windows[i, 0], places[0, 0, top[i] : top[i] + 5, left[i] : left[i] + 5])


def test_window_larger_than_the_image_is_refused() -> None:
    with pytest.raises(UserError, match="window:9 does not fit images of 8 × 12 pixels"):
        RandomWindow(9)(noise(2, 3, 8, 12), generator())


def test_the_released_tinyimagenet_crop() -> None:
    """Padding 4 and a window of 32 from 64 pixels: 41 places a side, of which 4 … 36 show no border."""
    images = torch.full((4000, 1, 64, 64), 9, dtype=torch.uint8)
    steps = parse_augmentation(["pad:4", "window:32"])
    draws = generator()
    windows = steps[1](steps[0](images, draws), draws)
    assert windows.shape == (4000, 1, 32, 32)
    whole = (windows == 9).all(dim=(1, 2, 3)).double().mean().item()
    assert whole == pytest.approx((33 / 41) ** 2, abs=0.03)


def test_resized_crop_of_the_whole_image_at_its_size_is_the_identity() -> None:
    images = noise(20, 3, 16, 16)
    assert torch.equal(ResizedCrop(16, 1.0, 1.0)(images, generator()), images)


def test_resized_crop_draws_windows_inside_the_image_with_area_and_ratio_in_range() -> None:
    top, left, height, width = ResizedCrop(32, 0.25, 0.5).draw(5000, 100, 120, generator())
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 100).all()
    assert (left + width <= 120).all()
    area, ratio = (height * width) / 12_000, width / height
    assert area.min() > 0.24
    assert area.max() < 0.51
    assert area.mean() == pytest.approx(0.375, abs=0.01)  # uniform in area
    assert ratio.min() > 0.74
    assert ratio.max() < 1.35
    assert ratio.log().mean() == pytest.approx(0.0, abs=0.01)  # log-uniform in ratio
    assert len(top.unique()) > 40
    assert len(left.unique()) > 40


def test_resized_crop_places_its_window_uniformly() -> None:
    top, left, height, width = ResizedCrop(8, 9 / 16, 9 / 16).draw(4000, 4, 4, generator())
    assert height.unique().tolist() == width.unique().tolist() == [3]  # 9 of 16 pixels: every ratio rounds to 3 × 3
    assert chisquare(torch.bincount(2 * top + left, minlength=4).numpy()).pvalue > 1e-3


def test_resized_crop_falls_back_to_the_largest_centred_window() -> None:
    top, left, height, width = ResizedCrop(32, 1.0, 1.0).draw(3, 8, 64, generator())
    assert (top[0], left[0], height[0], width[0]) == (0, 26, 8, 11)  # ratio 4/3: 8 by round(10.67)


def test_jitter_keeps_brightness_factors_in_range() -> None:
    grey = torch.full((5000, 1, 2, 2), 100, dtype=torch.uint8)
    levels = ColorJitter(brightness=63 / 255)(grey, generator())[:, 0, 0, 0]
    assert levels.min() == 75
    assert levels.max() == 124
    assert chisquare(torch.bincount(levels.long() - 75)[1:-1].numpy()).pvalue > 1e-3  # the end levels are partial


def test_jitter_orders_its_operations_by_image() -> None:
    image = noise(1, 3, 8, 8)
    step = ColorJitter(brightness=0.9, contrast=0.9, saturation=0.9)
    results = step(image.expand(200, -1, -1, -1), generator())
    assert len(results.unique(dim=0)) > 190


def test_cutout_paints_one_square_around_a_uniform_pixel() -> None:
    images = torch.full((4000, 3, 10, 12), 200, dtype=torch.uint8)
    painted = Cutout(4, fill=7)(images, generator()) == 7
    assert torch.equal(painted[:, 0], painted[:, 2])
    rows, columns = painted[:, 0].any(2), painted[:, 0].any(1)
    assert torch.equal(painted[:, 0], rows[:, :, None] & columns[:, None, :])
    assert rows.sum(1).max() == 4
    assert rows.sum(1).min() == 2  # half of it outside
    last = torch.where(rows, torch.arange(10), -1).amax(1)  # the centre is one above, except at the bottom
    assert chisquare(torch.bincount(last)[1:9].numpy()).pvalue > 1e-3


# --- the pipeline ---


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_without_generator_the_pipeline_only_normalises(memory_format: torch.memory_format) -> None:
    mean, std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
    images = noise(5, 3, 7, 9).contiguous(memory_format=memory_format)
    result = Pipeline(parse_augmentation(["crop:4", "trivial"]), mean, std)(images, None)
    expected = (images.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert result.dtype == torch.float32
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, expected.float(), rtol=1e-6, atol=1e-6)


def test_the_test_transform_may_cut_the_centre() -> None:
    """56 of 64 pixels begin at 4; an odd rest is cut at the bottom right."""
    images = noise(3, 3, 64, 64)
    assert torch.equal(centre(images, 56), images[:, :, 4:60, 4:60])
    assert torch.equal(centre(images[..., :7, :9], 4), images[..., 1:5, 2:6])
    pipeline = Pipeline((RandomFlip(),), (0.0,), (1.0,), test_crop=56).check((3, 64, 64))
    torch.testing.assert_close(pipeline(images) * 255, images[:, :, 4:60, 4:60].float())
    assert pipeline(images, generator()).shape == images.shape  # training images are not cut
    with pytest.raises(UserError, match=r"data.test_crop is 56, but the images have 64 × 48 pixels"):
        pipeline.check((3, 64, 48))


def test_the_pipeline_runs_its_steps_in_order() -> None:
    images = noise(5, 3, 8, 8)
    pipeline = Pipeline((Pad(4), ResizedCrop(6)), (0.0,), (1.0,))
    by_hand = generator()
    expected = ResizedCrop(6)(Pad(4)(images, by_hand), by_hand)
    torch.testing.assert_close(pipeline(images, generator()) * 255, expected.float())


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (4, 1, 8, 8), (3, 3, 17, 33), (0, 3, 8, 8)])
def test_the_pipeline_takes_grey_odd_single_and_empty(shape: tuple[int, ...]) -> None:
    pipeline = Pipeline(parse_augmentation(["crop:2", "flip", "trivial"]), (0.5,), (0.25,))
    result = pipeline(noise(*shape), generator())
    assert result.shape == shape
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_the_pipeline_reports_what_it_cannot_process() -> None:
    pipeline = Pipeline((), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    with pytest.raises(ValueError, match=r"must be uint8 .* not torch.float32 \[2, 3, 4, 4\]"):
        pipeline(torch.zeros(2, 3, 4, 4))
    with pytest.raises(ValueError, match="must have 1 number for images of 1 channel, not 3 and 3"):
        pipeline(noise(2, 1, 4, 4))
    with pytest.raises(ValueError, match="std must be positive"):
        Pipeline((), (0.5,), (0.0,))


# --- names ---


def test_names_become_steps() -> None:
    assert parse_augmentation(["crop:4", "flip", "pad:4", "resized_crop:32"]) == (
        RandomCrop(4),
        RandomFlip(),
        Pad(4),
        ResizedCrop(32, 0.08, 1.0),
    )
    assert parse_augmentation(["resized_crop:224,0.2,0.9"]) == (ResizedCrop(224, 0.2, 0.9),)
    assert parse_augmentation(["jitter:0.247"]) == (ColorJitter(brightness=0.247),)
    assert parse_augmentation(["jitter:contrast=0.2, brightness=0.1"]) == (ColorJitter(0.1, 0.2),)
    assert parse_augmentation(["trivial", "autoaugment"]) == (TrivialAugment(), AutoAugment())
    assert parse_augmentation(["autoaugment:128", "cutout:16"]) == (AutoAugment(fill=128), Cutout(16))
    assert parse_augmentation(["cutout:8,128"]) == (Cutout(8, fill=128),)
    assert parse_augmentation(["window:32"]) == (RandomWindow(32),)
    assert parse_augmentation([]) == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("crops:4", "no augmentation is called 'crops'; did you mean 'crop'"),
        ("mixup", "no augmentation is called 'mixup'; choose from autoaugment, crop"),
        ("crop", "bad augmentation 'crop': its 'padding' is missing; write crop:4."),
        ("crop:four", "its 'padding': Input should be a valid integer"),
        ("crop:1.5", "its 'padding': Input should be a valid integer"),
        ("crop:0", "its 'padding': Input should be greater than 0"),
        ("crop:nan", "its 'padding': Input should be a valid integer"),
        ("crop:4,5", "'5' is too much"),
        ("flip:2", "'2' is too much; write flip."),
        ("resized_crop:32,0.5,0.2", "the largest area must be between 0.5 and 1, not 0.2"),
        ("resized_crop:32,0", "its 'smallest': Input should be greater than or equal to"),
        ("jitter", "a strength is missing"),
        ("jitter:nan", "its 'brightness': Input should be a finite number"),
        ("jitter:contrats=0.2", "'contrats=0.2' is too much; write jitter:0.247 or jitter:brightness="),
        ("jitter:-1", "its 'brightness': Input should be greater than or equal to 0"),
        ("autoaugment:300", "its 'fill': Input should be less than or equal to 255"),
        ("cutout:16,grey", "its 'fill': Input should be a valid integer"),
    ],
)
def test_a_bad_name_is_explained_in_one_sentence(name: str, message: str) -> None:
    with pytest.raises(ValueError, match="augmentation") as caught:
        parse_augmentation(["flip", name])
    text = str(caught.value)
    assert message in text
    assert "\n" not in text


def test_a_text_instead_of_a_list_is_explained() -> None:
    with pytest.raises(ValueError, match=r"write \['crop:4'\]"):
        parse_augmentation("crop:4")


def test_every_example_in_the_error_messages_parses() -> None:
    for name in STEPS:
        assert len(parse_augmentation(EXAMPLES.get(name, name).split(" or "))) >= 1


# --- helpers of methods ---


def test_four_rotations_are_blocks_counter_clockwise() -> None:
    images = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]], [[[5.0, 6.0], [7.0, 8.0]]]])
    rotated = four_rotations(images)
    assert rotated.shape == (8, 1, 2, 2)
    assert torch.equal(rotated[:2], images)
    assert rotated[2, 0].tolist() == [[2.0, 4.0], [1.0, 3.0]]
    assert rotated[3, 0].tolist() == [[6.0, 8.0], [5.0, 7.0]]
    assert rotated[4, 0].tolist() == [[4.0, 3.0], [2.0, 1.0]]
    assert rotated[6, 0].tolist() == [[3.0, 1.0], [4.0, 2.0]]
    assert torch.equal(torch.rot90(four_rotations(images)[len(images) : 2 * len(images)], 3, (-2, -1)), images)


def test_four_rotations_keep_the_memory_format() -> None:
    images = torch.randn(2, 3, 4, 4, generator=generator())
    rotated = four_rotations(images.contiguous(memory_format=torch.channels_last))
    assert rotated.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(rotated, four_rotations(images))
    assert four_rotations(images).is_contiguous()


def test_rotation_labels_of_adagauss_and_pass() -> None:
    labels = torch.tensor([3, 0])
    assert rotation_labels(labels, 10).tolist() == [3, 0, 13, 10, 23, 20, 33, 30]
    assert rotation_labels_class_major(labels).tolist() == [12, 0, 13, 1, 14, 2, 15, 3]
